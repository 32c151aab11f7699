//! Programs inside the pods: plain sockets of their kernels.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::Samples;
use bench::forwarder::SERVER_PORT;

use super::Result;

/// Payload of a 64-byte frame (with its checksum of four).
const PAYLOAD: [u8; 18] = [0; 18];
const MEASURED: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(700);
/// Timeout of an answer.
const LOST: Duration = Duration::from_millis(200);
/// Connections at a time.
const CLIENTS: usize = 8;
/// Round trips that are printed: every so many-th of all, in order of their time.
const PRINTED: usize = 1000;

/// Runs one end, by its name.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match *arguments {
        ["hole"] => hole(),
        ["echo"] => echo(),
        ["send", to] => send(to),
        ["ask", to] => ask(to),
        ["requests", to] => requests(to),
        _ => Err("no such end".into()),
    }
}

fn server(to: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::new(to.parse()?, SERVER_PORT))
}

fn listening() -> Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", SERVER_PORT))?;
    println!("ready");
    Ok(socket)
}

/// Answers the first datagrams, so that both sides have spoken, then reads no more: what comes is
/// dropped at the full socket.
fn hole() -> Result<()> {
    let socket = listening()?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut bytes = [0; 64];
    loop {
        let (length, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(_) => continue,
        };
        socket.send_to(&bytes[..length], from)?;
        loop {
            std::thread::park();
        }
    }
}

fn echo() -> Result<()> {
    let socket = listening()?;
    let mut bytes = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut bytes)?;
        socket.send_to(&bytes[..length], from)?;
    }
}

/// A socket that has had an answer from there.
fn answered(to: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server(to)?)?;
    socket.set_read_timeout(Some(LOST))?;
    for _ in 0..50 {
        let _ = socket.send(&PAYLOAD);
        if socket.recv(&mut [0; 64]).is_ok() {
            println!("answered");
            return Ok(socket);
        }
    }
    Err("no answer".into())
}

fn send(to: &str) -> Result<()> {
    let socket = answered(to)?;
    loop {
        // What there is no room for is not sent.
        let _ = socket.send(&PAYLOAD);
    }
}

fn ask(to: &str) -> Result<()> {
    let socket = answered(to)?;
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < WARM_UP + MEASURED {
        let sent = Instant::now();
        socket.send(&PAYLOAD)?;
        if socket.recv(&mut [0; 64]).is_ok() && started.elapsed() > WARM_UP {
            times.push(sent.elapsed().as_secs_f64() * 1e6);
        }
    }
    let samples: Samples = times.into_iter().collect();
    let shares = (0..PRINTED).map(|n| (n as f64 + 0.5) / PRINTED as f64);
    let shown: Vec<String> = shares.map(|it| format!("{:.2}", samples.quantile(it))).collect();
    println!("trips: {}", shown.join(" "));
    Ok(())
}

fn request(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

fn requests(to: &str) -> Result<()> {
    let to = server(to)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Err(error) = request(to) {
        if Instant::now() > deadline {
            return Err(error.into());
        }
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |since: Instant| {
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let connecting = Instant::now();
            if request(to).is_ok() {
                done.fetch_add(1, Ordering::Relaxed);
                if connecting >= since {
                    times.push(connecting.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        times
    };
    let warm = Instant::now() + WARM_UP;
    let (rate, times) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| ask(warm))).collect();
        std::thread::sleep(WARM_UP);
        let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(MEASURED);
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / started.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let times = clients.into_iter().filter_map(|client| client.join().ok());
        (rate, times.flatten().collect::<Samples>())
    });
    println!("requests: {rate:.1} {} {:.1}", done.into_inner(), times.quantile(0.99));
    Ok(())
}
