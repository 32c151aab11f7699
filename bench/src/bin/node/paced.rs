//! Processor time of a switch whose pods each open a few short TCP connections a second.
//!
//! ```text
//! cargo run --release -p bench --bin node -- paced [PODS] [RATE] [SECONDS]     (as root)
//! ```
//!
//! Each connection is one question and one answer, closed by the client; a policy allows it. The programs of flow offload run in the
//! kernel, on behalf of whoever sends: their time is not in the switch's, so that of the whole machine is printed as well.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::attach::{self, address};
use bench::process::{busy_time, processor_time};
use bench::rig::{needs_root, run};
use bench::{argument, print_table};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use testkit::{Namespace, TempDir, manifests, storm};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Before the measurement: templates are made, neighbours known.
const WARM_UP: Duration = Duration::from_secs(3);
/// Threads of clients. Each connection is waited for.
const CLIENTS: usize = 8;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 88, 200, 1), 80);
const POLICY: &str = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
    metadata: {name: clients, namespace: default}\n\
    spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}\n";
/// As the plugin gives it to pods.
const GATEWAY: &str = "169.254.1.1";

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let (pods, rate) = (argument(args, 1, 250)?, argument(args, 2, 20)?);
    let measured = Duration::from_secs(argument(args, 3, 20)?);
    let mut rows = Vec::new();
    for offload in ["on", "off"] {
        eprintln!("{pods} pods, flow offload {offload}");
        rows.push([vec![offload.to_owned()], measure(pods, rate, measured, offload)?].concat());
    }
    let asked = format!("flow offload; {} connections a second wanted", pods * rate);
    print_table(
        &[&asked, "opened a second", "failed", "switch, of a core", "machine, of a core"],
        &rows,
    );
    Ok(())
}

fn measure(pods: usize, rate: usize, measured: Duration, offload: &str) -> Result<Vec<String>> {
    let names = ["bench-node", "bench-clients", "bench-server"];
    let [node, clients, server] = names.map(Namespace::new);
    let folder = TempDir::new("bench-paced");
    let (objects, mut requests) = attach::pods(&node, pods, |_| &clients)?;
    for n in 0..pods {
        let table = format!("table {}", 1000 + n);
        route(&clients, &format!("eth{n}"), address(n), &table);
        run(&clients, &format!("ip rule add from {} {table}", address(n)));
    }
    requests.push(attach::join(&node, "pgserver".into(), &server, "eth0", "server", *SERVER.ip())?);
    route(&server, "eth0", *SERVER.ip(), "");
    let server_pod =
        manifests::pod("default/server", "", attach::NODE, &SERVER.ip().to_string(), "");
    let manifests = attach::write_manifests(folder.path(), &(objects + &server_pod + POLICY))?;
    let mut options = vec!["--node-name", attach::NODE, "--manifests", &manifests];
    let frames = (pods * 512 + 4096).max(16_384).to_string();
    options.extend(["--flow-offload", offload]);
    if offload == "off" {
        options.extend(["--umem-frames", &frames]);
    }
    let (switch, socket) = attach::start(&node, folder.path(), &options)?;
    attach::attach(&socket, &requests)?;

    let (stop, opened, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (ready, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (server, clients, stop, opened, failed) = (&server, &clients, &stop, &opened, &failed);
        let tell = move || {
            // The receiver waits.
            let _ = ready.send(());
        };
        scope.spawn(move || server.enter(|| storm::answer(&[SERVER.into()], tell, stop)));
        wait.recv()?;
        for client in 0..CLIENTS {
            let own = (client..pods).step_by(CLIENTS).map(address).collect::<Vec<_>>();
            scope.spawn(move || clients.enter(|| call(&own, rate, stop, opened, failed)));
        }
        std::thread::sleep(WARM_UP);
        let used = || std::io::Result::Ok([processor_time(switch.id())?, busy_time()?]);
        let counts = || [opened, failed].map(|it| it.load(Ordering::Relaxed));
        let (began, before, before_used) = (Instant::now(), counts(), used()?);
        std::thread::sleep(measured);
        let (after, now, elapsed) = (counts(), used()?, began.elapsed());
        stop.store(true, Ordering::Release);
        let share = |time: Duration| format!("{:.3}", time.as_secs_f64() / elapsed.as_secs_f64());
        Ok(vec![
            format!("{:.0}", (after[0] - before[0]) as f64 / elapsed.as_secs_f64()),
            (after[1] - before[1]).to_string(),
            share(now[0] - before_used[0]),
            share(now[1] - before_used[1]),
        ])
    })
}

/// Gives an interface its address, and its packets the way to the switch.
fn route(pod: &Namespace, interface: &str, address: Ipv4Addr, table: &str) {
    let commands = format!(
        "ip addr add {address}/32 dev {interface}
         ip route add default via {GATEWAY} dev {interface} onlink {table}"
    );
    run(pod, &commands);
}

/// Opens connections from these addresses in turns, so many a second from each.
fn call(from: &[Ipv4Addr], rate: usize, stop: &AtomicBool, opened: &AtomicU64, failed: &AtomicU64) {
    let pace = Duration::from_secs(1) / (from.len() * rate).max(1) as u32;
    let mut due = Instant::now();
    for address in from.iter().cycle() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let count = if ask(*address).is_ok() { opened } else { failed };
        count.fetch_add(1, Ordering::Relaxed);
        due += pace;
        match due.checked_duration_since(Instant::now()) {
            Some(rest) => std::thread::sleep(rest),
            // A machine that is too slow does not catch up.
            None => due = Instant::now(),
        }
    }
}

fn ask(from: Ipv4Addr) -> std::io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(from, 0))?;
    connect(&socket, &SocketAddr::from(SERVER))?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut number = [7; 8];
    stream.write_all(&number)?;
    stream.read_exact(&mut number)
}
