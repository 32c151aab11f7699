//! The measurements between two pods, by plain sockets of their kernels.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::Samples;
use bench::forwarder::{RESOLVER_PORT, SERVER_PORT};
use bench::process::busy_time;
use bench::rig::{PATIENCE, RECEIVER, echo, rate, words};
use testkit::{Namespace, TempDir};

use super::{Result, WARM_UP};

/// Payload of a 64-byte frame (with its checksum of four).
const PAYLOAD: [u8; 18] = [0; 18];
const MEASURED: Duration = Duration::from_secs(2);
/// Timeout of an answer.
const LOST: Duration = Duration::from_millis(200);
/// Connections at a time.
const CLIENTS: usize = 8;

/// Gigabits of payload a second, and processor seconds of all cores for a gigabyte, by iperf3 with these options, both
/// of its ends behind the command `on`.
pub(super) fn stream_between(
    from: &Namespace,
    to: &Namespace,
    address: &str,
    on: &str,
    options: &str,
) -> Result<[f64; 2]> {
    let server = to.spawn(words(&format!("{on} iperf3 -s -1 --forceflush")));
    server.wait_for_line("Server listening", PATIENCE);
    let before = busy_time()?;
    let output = from.try_exec(words(&format!("{on} iperf3 -J -c {address} {options}")));
    let spent = (busy_time()? - before).as_secs_f64();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let received = |name: &str| report["end"]["sum_received"][name].as_f64();
    let (Some(bytes), Some(seconds)) = (received("bytes"), received("seconds")) else {
        return Err(format!("iperf3: {}", report["error"]).into());
    };
    Ok([bytes * 8e-9 / seconds, spent * 1e9 / bytes])
}

/// Sockets of both pods; each has had a datagram from the other one.
fn joined_sockets(a: &Namespace, b: &Namespace) -> Result<[UdpSocket; 2]> {
    let server = b.enter(|| UdpSocket::bind(("0.0.0.0", SERVER_PORT)))?;
    let client = a.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
    client.connect((RECEIVER, SERVER_PORT))?;
    client.set_read_timeout(Some(LOST))?;
    server.set_read_timeout(Some(LOST))?;
    for _ in 0..50 {
        let _ = client.send(&PAYLOAD);
        if let Ok((_, from)) = server.recv_from(&mut [0; 64]) {
            server.send_to(&PAYLOAD, from)?;
            if client.recv(&mut [0; 64]).is_ok() {
                return Ok([client, server]);
            }
        }
    }
    Err("no answer".into())
}

/// Million datagrams a second that reach the receiving pod's kernel from one socket. The other one reads none: what
/// comes is dropped at the full socket.
pub(super) fn small_datagrams(a: &Namespace, b: &Namespace) -> Result<f64> {
    let [client, _server] = joined_sockets(a, b)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // What there is no room for is not sent.
                let _ = client.send(&PAYLOAD);
            }
        });
        thread::sleep(WARM_UP);
        let rate = rate(b, "eth0/statistics/rx_packets", MEASURED);
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Microseconds of round trips between sockets of two pods.
pub(super) fn round_trips(a: &Namespace, b: &Namespace) -> Result<Samples> {
    let [client, server] = joined_sockets(a, b)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| echo(&server, &stop));
        let (mut times, started) = (Samples::new(), Instant::now());
        while started.elapsed() < WARM_UP + MEASURED {
            let sent = Instant::now();
            let _ = client.send(&PAYLOAD);
            if client.recv(&mut [0; 64]).is_ok() && started.elapsed() > WARM_UP {
                times.add(sent.elapsed().as_secs_f64() * 1e6);
            }
        }
        stop.store(true, Ordering::Relaxed);
        Ok(times)
    })
}

/// Requests to a server: the number answered each second; microseconds that all cores together spent on one;
/// microseconds from the first call to the end of the answer, which 99 in 100 need at most; and the number of all.
pub(super) type Requests = [f64; 4];

/// Requests to an nginx of one worker, each over a connection of its own.
pub(super) fn requests_between(
    from: &Namespace,
    to: &Namespace,
    address: &str,
) -> Result<Requests> {
    let folder = TempDir::new("bench-nginx");
    let at = folder.path().display();
    let config = folder.path().join("nginx.conf");
    std::fs::write(
        &config,
        format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_timeout 0; client_body_temp_path {at}/a; \
             proxy_temp_path {at}/b; fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; \
             scgi_temp_path {at}/e; server {{ listen {SERVER_PORT} backlog=4096; \
             return 200 'hello'; }} }}\n"
        ),
    )?;
    let _nginx = to.spawn(["nginx", "-c", &config.display().to_string()]);
    let to = SocketAddr::new(address.parse()?, SERVER_PORT);
    measured(from, || request(to))
}

/// Questions to a resolver, each from a port of its own.
pub(super) fn questions_between(
    from: &Namespace,
    to: &Namespace,
    address: &str,
) -> Result<Requests> {
    let server = to.enter(|| UdpSocket::bind(("0.0.0.0", RESOLVER_PORT)))?;
    let (to, stop) = (SocketAddr::new(address.parse()?, RESOLVER_PORT), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| echo(&server, &stop));
        let measured = measured(from, || question(to));
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// Runs clients in `from`; each asks as soon as it has its last answer.
fn measured(from: &Namespace, ask: impl Fn() -> std::io::Result<()> + Sync) -> Result<Requests> {
    from.exec(["sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65000"]);
    let before = busy_time()?;
    let [rate, all, p99] = from.enter(|| requests(&ask))?;
    let spent = (busy_time()? - before).as_secs_f64();
    Ok([rate, spent * 1e6 / all, p99, all])
}

/// The rate of requests, their number, and the p99 of their times.
fn requests(request: &(impl Fn() -> std::io::Result<()> + Sync)) -> std::io::Result<[f64; 3]> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Err(error) = request() {
        if Instant::now() > deadline {
            return Err(error);
        }
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let warm = Instant::now() + WARM_UP;
    let ask = || {
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let connecting = Instant::now();
            if request().is_ok() {
                done.fetch_add(1, Ordering::Relaxed);
                if connecting >= warm {
                    times.push(connecting.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        times
    };
    let (rate, times) = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        thread::sleep(WARM_UP);
        let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
        thread::sleep(MEASURED);
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / started.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let times = clients.into_iter().filter_map(|client| client.join().ok());
        (rate, times.flatten().collect::<Samples>())
    });
    Ok([rate, done.into_inner() as f64, times.quantile(0.99)])
}

fn question(to: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    socket.send(&PAYLOAD)?;
    socket.recv(&mut [0; 64]).map(drop)
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
