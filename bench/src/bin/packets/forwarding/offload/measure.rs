//! The measurements: one forwarder, one figure, pods of their own.

use std::time::Duration;

use bench::Samples;
use bench::forwarder::{Beside, Forwarder, own_path};
use bench::nodes::{Between, pod_address};
use bench::rig::{PATIENCE, Rig, joined, rate, words};
use testkit::{Namespace, Process, TempDir};

use super::{RECEIVER, Result};

/// Length of a measurement of rates, and of the time before it.
const MEASURED: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(700);

/// The path of requests to the server.
pub(super) struct Connection {
    pub(super) to: &'static str,
    pub(super) beside: Beside,
}

impl Connection {
    pub(super) fn direct() -> Self {
        Self { to: RECEIVER, beside: Beside::default() }
    }
}

/// Options of iperf3 for a stream with a congestion control: those that distributions choose.
pub(super) const BBR: &str = "-C bbr";
pub(super) const CUBIC: &str = "-C cubic";
/// One core for the sender and one for the receiver, where the forwarder has no core of its own.
pub(super) const CORE_EACH: &str = "-A 0,1";

/// Gigabits of payload a second between the pods' kernels, and what all cores spend on a gigabyte.
pub(super) fn stream(forwarder: Forwarder, way: &Connection, options: &str) -> Result<(f64, f64)> {
    let rig = Rig::new(1500, 0);
    let running = forwarder.start_beside(&rig, way.beside)?;
    let measured = stream_between(&rig.a, &rig.b, way.to, options);
    drop(running);
    measured
}

/// The settings of all interfaces under a forwarder, and of the pods' kernels.
pub(super) fn settings(forwarder: Forwarder) -> Result<Vec<String>> {
    let rig = Rig::new(1500, 0);
    let running = forwarder.start(&rig, 0)?;
    let lines = rig.described();
    drop(running);
    Ok(lines)
}

/// As [`stream`], between pods of two nodes, in a tunnel or routed.
pub(super) fn stream_of_nodes(between: Between, tunnel: bool, options: &str) -> Result<(f64, f64)> {
    let nodes = between.start(tunnel)?;
    stream_between(&nodes.pods[0], &nodes.pods[1], &pod_address(2), options)
}

fn stream_between(
    from: &Namespace,
    to: &Namespace,
    address: &str,
    options: &str,
) -> Result<(f64, f64)> {
    let server = to.spawn(words("iperf3 -s -1 --forceflush"));
    server.wait_for_line("Server listening", PATIENCE);
    let before = busy_seconds()?;
    let report = from.exec(words(&format!("iperf3 -J -c {address} -t 3 {options}")));
    let spent = busy_seconds()? - before;
    let report: serde_json::Value = serde_json::from_str(&report)?;
    let received = &report["end"]["sum_received"];
    let bytes = received["bytes"].as_f64().ok_or("iperf3 reported nothing")?;
    let seconds = received["seconds"].as_f64().ok_or("iperf3 reported no time")?;
    Ok((bytes * 8e-9 / seconds, spent * 1e9 / bytes))
}

/// Seconds that all cores together have worked.
fn busy_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq; a hundred ticks a second.
    let busy = ticks.iter().enumerate().filter(|(n, _)| !matches!(n, 3 | 4) && *n < 7);
    Ok(busy.map(|(_, ticks)| ticks).sum::<f64>() / 100.0)
}

/// An end in a pod: this program again.
fn end(pod: &Namespace, arguments: &[&str]) -> Result<Process> {
    let own = own_path()?;
    Ok(pod.spawn([&[own.as_str(), "forwarding", "kernels-end"], arguments].concat()))
}

/// Million datagrams a second that reach the receiving pod's kernel from one socket.
pub(super) fn small_datagrams(forwarder: Forwarder) -> Result<f64> {
    let rig = Rig::new(1500, 0);
    let running = forwarder.start(&rig, 0)?;
    let hole = end(&rig.b, &["hole"])?;
    hole.wait_for_line("ready", PATIENCE);
    let mut sender = end(&rig.a, &["send", RECEIVER])?;
    sender.wait_for_line("answered", PATIENCE);
    std::thread::sleep(WARM_UP);
    let arrived = || -> Result<u64> {
        Ok(rig.b.exec(words("cat /sys/class/net/eth0/statistics/rx_packets")).trim().parse()?)
    };
    let rate = rate(MEASURED, arrived)?;
    sender.kill();
    drop(running);
    Ok(rate)
}

/// Microseconds of round trips between sockets of two pods.
pub(super) fn round_trips(forwarder: Forwarder) -> Result<Samples> {
    let rig = Rig::new(1500, 0);
    let running = forwarder.start(&rig, 0)?;
    let trips = trips_between(&rig.a, &rig.b);
    drop(running);
    trips
}

/// The same over one veth pair.
pub(super) fn direct_round_trips() -> Result<Samples> {
    let [a, b] = joined(1500);
    for (namespace, address) in [(&a, "10.88.0.2"), (&b, RECEIVER)] {
        namespace.exec(words(&format!("ip addr add {address}/24 dev eth0")));
    }
    trips_between(&a, &b)
}

fn trips_between(a: &Namespace, b: &Namespace) -> Result<Samples> {
    let echo = end(b, &["echo"])?;
    echo.wait_for_line("ready", PATIENCE);
    let mut asking = end(a, &["ask", RECEIVER])?;
    let line = asking.wait_for_line("trips: ", PATIENCE);
    asking.wait(PATIENCE);
    let times = line.split_whitespace().skip(1).map(str::parse);
    Ok(times.collect::<std::result::Result<_, _>>()?)
}

/// Requests, each over a connection of its own.
pub(super) struct Requests {
    /// Answered each second.
    pub(super) rate: f64,
    /// Microseconds that all cores together spent on one.
    pub(super) spent: f64,
    /// Microseconds from connecting to the end of the answer, which 99 in 100 need at most.
    pub(super) p99: f64,
    /// Packets of one that programs of flow offload forwarded, and those that they left to the switch.
    pub(super) packets: Option<[f64; 2]>,
}

/// Asks an nginx of one worker.
pub(super) fn requests(forwarder: Forwarder, way: &Connection) -> Result<Requests> {
    let rig = Rig::new(1500, 0);
    let running = forwarder.start_beside(&rig, way.beside)?;
    let (asked, all) = requests_between(&rig.a, &rig.b, way.to)?;
    // The last counters are of a moment later.
    std::thread::sleep(WARM_UP);
    let counted = running.counted();
    drop(running);
    Ok(Requests { packets: counted.map(|both| both.map(|packets| packets / all)), ..asked })
}

/// As [`requests`], between pods of two nodes, in a tunnel or routed.
pub(super) fn requests_of_nodes(between: Between, tunnel: bool) -> Result<Requests> {
    let nodes = between.start(tunnel)?;
    Ok(requests_between(&nodes.pods[0], &nodes.pods[1], &pod_address(2))?.0)
}

/// The measurements, and the number of all requests.
fn requests_between(from: &Namespace, to: &Namespace, address: &str) -> Result<(Requests, f64)> {
    from.exec(["sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65000"]);
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
             scgi_temp_path {at}/e; server {{ listen 5201 backlog=4096; return 200 'hello'; }} }}\n"
        ),
    )?;
    let mut nginx = to.spawn(["nginx", "-c", &config.display().to_string()]);
    let before = busy_seconds()?;
    let mut asking = end(from, &["requests", address])?;
    let line = asking.wait_for_line("requests: ", PATIENCE);
    let spent = busy_seconds()? - before;
    asking.wait(PATIENCE);
    nginx.kill();
    let mut numbers = line.split_whitespace().skip(1).map(str::parse::<f64>);
    let mut next = || numbers.next().ok_or("no rate");
    let (rate, all, p99) = (next()??, next()??, next()??);
    Ok((Requests { rate, spent: spent * 1e6 / all, p99, packets: None }, all))
}
