//! Many short TCP connections: a client and a server that drive them without waiting for any.
//!
//! ```text
//!   client  ── SYN ──▶  ◀── SYN ACK ──  ── number ──▶  ◀── the same number ──  ── RST ──▶  server
//! ```
//!
//! The reset (a linger time of zero) leaves no end waiting, so ports are used again at once and
//! a client needs few of them for any number of connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// A client that opens connections all the time.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where to, in turns.
    pub targets: Vec<SocketAddr>,
    /// Connections that are open or opening at a time.
    pub at_once: usize,
    /// Time after which one counts as unanswered.
    pub patience: Duration,
}

/// Outcomes of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Connections whose number came back.
    pub answered: u64,
    /// Connections without a reply in time.
    pub silent: u64,
    /// Connections that ended otherwise, by their outcome.
    pub failed: BTreeMap<String, u64>,
}

/// Bytes of a number.
const NUMBER: usize = 8;
/// Events handled at a time.
const EVENTS: usize = 256;
/// Interval of looking at clocks.
const TICK: Duration = Duration::from_millis(2);

impl Caller {
    /// Calls until `goes_on` returns false; calls under way are left to their end.
    ///
    /// # Panics
    /// If the system has no sockets or ports left.
    pub fn run(&self, mut goes_on: impl FnMut(&Calls) -> bool) -> Calls {
        let poll = Poll::new();
        let mut calls = Calls::default();
        let mut open: Vec<Option<Call>> = (0..self.at_once).map(|_| None).collect();
        let mut free: Vec<usize> = (0..self.at_once).collect();
        let (mut number, mut next_tick) = (0_u64, Instant::now());
        loop {
            let wants_more = goes_on(&calls);
            while wants_more && let Some(place) = free.pop() {
                let target = &self.targets[(number % self.targets.len() as u64) as usize];
                match Call::begin(number, target, Instant::now() + self.patience) {
                    Ok(call) => {
                        poll.add(&call.socket, place);
                        open[place] = Some(call);
                    }
                    Err(error) => {
                        calls.fail(error);
                        free.push(place);
                    }
                }
                number += 1;
            }
            if free.len() == open.len() {
                return calls;
            }
            for place in poll.wait(TICK) {
                let Some(call) = &mut open[place] else { continue };
                match call.go_on() {
                    Ok(false) => continue,
                    Ok(true) => calls.answered += 1,
                    Err(error) => calls.fail(error),
                }
                open[place] = None;
                free.push(place);
            }
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + TICK;
                for (place, call) in open.iter_mut().enumerate() {
                    if call.as_ref().is_some_and(|call| call.deadline <= now) {
                        *call = None;
                        free.push(place);
                        calls.silent += 1;
                    }
                }
            }
        }
    }
}

impl Calls {
    fn fail(&mut self, error: Errno) {
        *self.failed.entry(io::Error::from(error).to_string()).or_default() += 1;
    }

    /// All connections that ended.
    pub fn ended(&self) -> u64 {
        self.answered + self.silent + self.failed.values().sum::<u64>()
    }
}

/// A connection of the client's.
struct Call {
    socket: OwnedFd,
    number: u64,
    is_asked: bool,
    deadline: Instant,
}

impl Call {
    fn begin(number: u64, target: &SocketAddr, deadline: Instant) -> Result<Self, Errno> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        match net::connect(&socket, target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Self { socket, number, is_asked: false, deadline })
    }

    /// Does what can be done now; whether it is answered.
    fn go_on(&mut self) -> Result<bool, Errno> {
        if !self.is_asked {
            match net::send(&self.socket, &self.number.to_be_bytes(), net::SendFlags::NOSIGNAL) {
                Ok(NUMBER) => self.is_asked = true,
                Ok(_) => return Err(Errno::IO),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let mut answer = [0; NUMBER];
        match rustix::io::read(&self.socket, &mut answer) {
            Ok(NUMBER) if answer == self.number.to_be_bytes() => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
            // The connection ended, or this is the answer to another one.
            Ok(_) => Err(Errno::BADMSG),
        }
    }
}

/// The server: sends every number back. Returns, once `stop` is set, how many connections each
/// client opened.
///
/// # Panics
/// If it cannot listen.
pub fn answer(
    addresses: &[SocketAddr],
    ready: impl FnOnce(),
    stop: &AtomicBool,
) -> BTreeMap<IpAddr, u64> {
    let poll = Poll::new();
    let listeners: Vec<TcpListener> = addresses.iter().map(listen).collect();
    for (place, listener) in listeners.iter().enumerate() {
        poll.add(listener, place);
    }
    ready();
    let mut accepted = BTreeMap::new();
    let mut open: Vec<Option<OwnedFd>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    while !stop.load(Ordering::Acquire) {
        for place in poll.wait(Duration::from_millis(20)) {
            if let Some(listener) = listeners.get(place) {
                while let Ok((stream, from)) = listener.accept() {
                    *accepted.entry(from.ip().to_canonical()).or_default() += 1;
                    stream.set_nonblocking(true).expect("a socket can be told not to wait");
                    let place = free.pop().unwrap_or(open.len());
                    if place == open.len() {
                        open.push(None);
                    }
                    poll.add(&stream, listeners.len() + place);
                    open[place] = Some(stream.into());
                }
                continue;
            }
            let place = place - listeners.len();
            let Some(socket) = &open[place] else { continue };
            if !echo(socket) {
                open[place] = None;
                free.push(place);
            }
        }
    }
    accepted
}

/// Sends back what came; whether the connection goes on.
fn echo(socket: &OwnedFd) -> bool {
    let mut number = [0; NUMBER];
    loop {
        match rustix::io::read(socket, &mut number) {
            Ok(NUMBER) => match net::send(socket, &number, net::SendFlags::NOSIGNAL) {
                Ok(NUMBER) => {}
                _ => return false,
            },
            Err(Errno::AGAIN) => return true,
            _ => return false,
        }
    }
}

fn listen(address: &SocketAddr) -> TcpListener {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listen = || -> Result<OwnedFd, Errno> {
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, address)?;
        net::listen(&socket, 4096)?;
        Ok(socket)
    };
    listen().unwrap_or_else(|error| panic!("listen at {address}: {error}")).into()
}

/// Sockets with events.
struct Poll(OwnedFd);

impl Poll {
    fn new() -> Self {
        Self(epoll::create(epoll::CreateFlags::CLOEXEC).expect("the system can poll"))
    }

    /// Edge-triggered; a socket leaves the set with its last descriptor.
    fn add(&self, socket: impl AsFd, place: usize) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(place as u64);
        epoll::add(&self.0, socket, data, flags).expect("a socket can be polled");
    }

    fn wait(&self, longest: Duration) -> Vec<usize> {
        let mut events = Vec::with_capacity(EVENTS);
        let longest = Timespec::try_from(longest).expect("a short time");
        match epoll::wait(&self.0, spare_capacity(&mut events), Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        events.iter().map(|event| event.data.u64() as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(ports: &[u16]) -> Vec<SocketAddr> {
        let address = |port: &u16| SocketAddr::from(([127, 0, 0, 1], *port));
        ports.iter().map(address).collect()
    }

    #[test]
    fn every_connection_is_answered_and_counted() {
        crate::requires_root!();
        let place = crate::Namespace::new("storm");
        let targets: Vec<SocketAddr> =
            [loopback(&[7000, 7001]), vec!["[::1]:7000".parse().unwrap()]].concat();
        let stop = AtomicBool::new(false);
        let (ready, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (targets, stop, place) = (&targets, &stop, &place);
            let tell = move || ready.send(()).unwrap();
            let server = scope.spawn(move || place.enter(|| answer(targets, tell, stop)));
            wait.recv().unwrap();
            let caller =
                Caller { targets: targets.clone(), at_once: 50, patience: Duration::from_secs(20) };
            let calls = place.enter(|| caller.run(|calls| calls.ended() < 3000));
            stop.store(true, Ordering::Release);
            let accepted = server.join().unwrap();
            assert!(calls.failed.is_empty() && calls.silent == 0, "{calls:?}");
            assert!(calls.answered >= 3000 && calls.answered <= 3050, "{calls:?}");
            assert_eq!(accepted.values().sum::<u64>(), calls.answered);
            assert_eq!(accepted.len(), 2, "{accepted:?}");
        });
    }

    #[test]
    fn refusals_and_silence_are_told_apart() {
        crate::requires_root!();
        let place = crate::Namespace::new("storm");
        let mut caller =
            Caller { targets: loopback(&[7000]), at_once: 2, patience: Duration::from_millis(10) };
        let refused = place.enter(|| caller.run(|calls| calls.ended() < 4));
        assert!(refused.failed.keys().all(|why| why.contains("refused")), "{refused:?}");
        assert_eq!((refused.answered, refused.silent), (0, 0));
        // A listener that never answers.
        caller.patience = Duration::from_millis(1);
        let silent = place.enter(|| {
            let _listener = listen(&caller.targets[0]);
            caller.run(|calls| calls.ended() < 4)
        });
        assert!(silent.silent >= 4 && silent.failed.is_empty(), "{silent:?}");
    }
}
