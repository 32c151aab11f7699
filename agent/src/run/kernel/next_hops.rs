//! Resolves the next hops towards other nodes and the world.
//!
//! A thread queries the kernel, which resolves neighbours and expires those that only the switch
//! uses. Each destination has a timer of its own, so one that cannot be resolved causes no queries
//! for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dataplane::wire::Mac;

use super::HostNetwork;
use crate::run::error::StartError;
use crate::run::thread::Thread;

/// A destination of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Destination {
    /// The endpoint of another node.
    Peer(IpAddr),
    /// The world: whatever the default route is for.
    World,
}

/// The next hop towards a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(in crate::run) link: u32,
    pub(in crate::run) neighbour: IpAddr,
    pub(in crate::run) mac: Option<Mac>,
    /// Bytes of the longest packet on the route; 0 if the interface alone decides.
    pub(in crate::run) mtu: u16,
}

/// Interval of queries for a resolved next hop: entries that only the switch uses become stale in
/// the kernel.
const REFRESH: Duration = Duration::from_secs(15);
/// Pause before the next query for an unresolved next hop; it doubles up to [`REFRESH`].
const SOON: Duration = Duration::from_secs(1);
/// Addresses of the world (RFC 5737, RFC 3849), which the default route covers.
const WORLD: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

/// The querying thread.
pub(in crate::run) struct NextHops {
    requests: Sender<Request>,
    _thread: Thread,
}

enum Request {
    /// Resolve these peers and the world, and no others.
    Peers(BTreeSet<IpAddr>),
    /// Routes changed: every next hop may have changed.
    All,
    /// The kernel has forgotten this neighbour of this interface.
    Lost(u32, IpAddr),
}

impl NextHops {
    /// Starts the thread; `report` receives new and changed next hops.
    ///
    /// # Errors
    /// If there is no thread.
    pub(in crate::run) fn start(
        network: Box<dyn HostNetwork>,
        report: impl Fn(Vec<(Destination, Hop)>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let (requests, received) = channel();
        let run = move || run(network, &received, report);
        Ok(Self { requests, _thread: Thread::start("next-hops", run)? })
    }

    /// Sets the peers to resolve.
    pub(in crate::run) fn set_peers(&self, peers: BTreeSet<IpAddr>) {
        self.send(Request::Peers(peers));
    }

    /// Queries all next hops again after a change of routes.
    pub(in crate::run) fn refresh(&self) {
        self.send(Request::All);
    }

    /// Queries the next hops again that are this neighbour.
    pub(in crate::run) fn lost(&self, link: u32, neighbour: IpAddr) {
        self.send(Request::Lost(link, neighbour));
    }

    fn send(&self, request: Request) {
        // The thread ends after this is dropped.
        let _ = self.requests.send(request);
    }
}

fn run(
    mut network: Box<dyn HostNetwork>,
    requests: &Receiver<Request>,
    report: impl Fn(Vec<(Destination, Hop)>),
) {
    let mut schedule = Schedule::new(Instant::now());
    loop {
        let wait = schedule.next().saturating_duration_since(Instant::now());
        match requests.recv_timeout(wait) {
            Ok(request) => {
                let now = Instant::now();
                schedule.take(request, now);
                // Takes all pending commands together.
                requests.try_iter().for_each(|request| schedule.take(request, now));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let mut changed = Vec::new();
        for destination in schedule.due(now) {
            let hop = ask(&mut *network, destination);
            changed.extend(schedule.answered(destination, hop, now).map(|hop| (destination, hop)));
        }
        if !changed.is_empty() {
            report(changed);
        }
    }
}

fn ask(network: &mut dyn HostNetwork, destination: Destination) -> Option<Hop> {
    let mut ask = |address| match network.next_hop(address) {
        Ok(linux_net::NextHop { link, neighbour, mac, mtu, .. }) => {
            let mtu = mtu.map_or(0, |mtu| mtu.try_into().unwrap_or(u16::MAX));
            Some(Hop { link, neighbour, mac: mac.map(|mac| mac.0), mtu })
        }
        Err(error) => {
            tracing::debug!("next hop: {error}");
            None
        }
    };
    match destination {
        Destination::Peer(address) => ask(address),
        Destination::World => WORLD.iter().find_map(|text| ask(text.parse().ok()?)),
    }
}

/// The timers of the destinations.
struct Schedule(BTreeMap<Destination, Entry>);

struct Entry {
    hop: Option<Hop>,
    due: Instant,
    pause: Duration,
}

impl Entry {
    fn new(now: Instant) -> Self {
        Self { hop: None, due: now, pause: SOON }
    }
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self(BTreeMap::from([(Destination::World, Entry::new(now))]))
    }

    fn take(&mut self, request: Request, now: Instant) {
        match request {
            Request::Peers(peers) => {
                self.0.retain(|destination, _| match destination {
                    Destination::Peer(address) => peers.contains(address),
                    Destination::World => true,
                });
                for address in peers {
                    let new = || Entry::new(now);
                    self.0.entry(Destination::Peer(address)).or_insert_with(new);
                }
            }
            Request::All => self.0.values_mut().for_each(|entry| entry.due = now),
            Request::Lost(link, neighbour) => {
                let is_it = |hop: &Hop| (hop.link, hop.neighbour) == (link, neighbour);
                let known =
                    self.0.values_mut().filter(|entry| entry.hop.as_ref().is_some_and(is_it));
                // The kernel reports an address that it cannot resolve as lost again and again.
                known.filter(|entry| entry.pause == SOON).for_each(|entry| entry.due = now);
            }
        }
    }

    /// The next moment at which something is due.
    fn next(&self) -> Instant {
        let due = self.0.values().map(|entry| entry.due).min();
        due.unwrap_or_else(|| Instant::now() + REFRESH)
    }

    fn due(&self, now: Instant) -> Vec<Destination> {
        let due = self.0.iter().filter(|(_, entry)| entry.due <= now);
        due.map(|(destination, _)| *destination).collect()
    }

    /// Records an answer; returns the next hop if it changed.
    fn answered(&mut self, of: Destination, hop: Option<Hop>, now: Instant) -> Option<Hop> {
        let entry = self.0.get_mut(&of)?;
        let is_resolved = hop.is_some_and(|hop| hop.mac.is_some());
        entry.pause = if is_resolved { SOON } else { entry.pause };
        entry.due = now + if is_resolved { REFRESH } else { entry.pause };
        if !is_resolved {
            entry.pause = (entry.pause * 2).min(REFRESH);
        }
        let mut hop = hop?;
        // A MAC address that the kernel has expired may still be right.
        let same = entry.hop.filter(|it| (it.link, it.neighbour) == (hop.link, hop.neighbour));
        hop.mac = hop.mac.or(same.and_then(|known| known.mac));
        (entry.hop.replace(hop) != Some(hop)).then_some(hop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> Destination {
        Destination::Peer(IpAddr::from([192, 0, 2, n]))
    }

    fn hop(n: u8, mac: Option<u8>) -> Hop {
        Hop {
            link: 1,
            neighbour: IpAddr::from([192, 0, 2, n]),
            mac: mac.map(|last| [last; 6]),
            mtu: 0,
        }
    }

    fn schedule(now: Instant) -> Schedule {
        let mut schedule = Schedule::new(now);
        let peers = [2, 3].map(|n| IpAddr::from([192, 0, 2, n]));
        schedule.take(Request::Peers(peers.into()), now);
        assert_eq!(schedule.due(now), [peer(2), peer(3), Destination::World]);
        schedule.answered(Destination::World, Some(hop(1, Some(1))), now);
        assert_eq!(schedule.answered(peer(2), Some(hop(2, Some(2))), now), Some(hop(2, Some(2))));
        schedule.answered(peer(3), Some(hop(3, None)), now);
        schedule
    }

    #[test]
    fn an_unresolved_neighbour_is_asked_for_alone_and_ever_less_often() {
        let start = Instant::now();
        let mut schedule = schedule(start);
        let mut asked = Vec::new();
        for second in 1..=60 {
            let now = start + Duration::from_secs(second);
            // The kernel reports each failed resolution.
            schedule.take(Request::Lost(1, IpAddr::from([192, 0, 2, 3])), now);
            for due in schedule.due(now) {
                asked.push((second, due));
                let answer = if due == peer(3) { hop(3, None) } else { hop(2, Some(2)) };
                schedule.answered(due, Some(answer), now);
            }
        }
        let of = |it| asked.iter().filter(|(_, due)| *due == it).map(|(at, _)| *at).collect();
        let (resolved, missing): (Vec<u64>, Vec<u64>) = (of(peer(2)), of(peer(3)));
        assert_eq!(resolved, [15, 30, 45, 60]);
        assert_eq!(missing, [1, 3, 7, 15, 30, 45, 60]);
    }

    #[test]
    fn a_neighbour_that_goes_and_routes_that_change_are_asked_for_at_once() {
        let start = Instant::now();
        let mut schedule = schedule(start);
        let now = start + Duration::from_millis(1);
        schedule.take(Request::Lost(1, IpAddr::from([192, 0, 2, 2])), now);
        assert_eq!(schedule.due(now), [peer(2)]);
        // Its last known address stays in use.
        assert_eq!(schedule.answered(peer(2), Some(hop(2, None)), now), None);
        assert_eq!(schedule.answered(peer(2), Some(hop(2, Some(9))), now), Some(hop(2, Some(9))));
        schedule.take(Request::All, now);
        assert_eq!(schedule.due(now).len(), 3);
        schedule.take(Request::Peers(BTreeSet::new()), now);
        assert_eq!(schedule.due(now), [Destination::World]);
    }
}
