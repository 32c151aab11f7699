//! Pod → switch → pod over veth and AF_XDP, beside DPDK's testpmd on the same interfaces.
//!
//! ```text
//! cargo run --release -p bench --bin forwarding     (as root; Debian: dpdk iperf3 ethtool)
//! ```
//!
//! The switch runs with sessions and a policy of 100 rules on core 0; the generator (an AF_XDP
//! socket inside the sending pod) or iperf3 on core 1. Frames that reached the receiving pod
//! are counted by its interface. Each figure is a median over rounds that take turns.

use std::error::Error;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::{Action, PortRange, Rule, Table};
use bench::{Samples, print_table};
use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::{Lent, Port};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::{Mac, protocol};
use dataplane::{FreeList, Gate, Parts, PortId, PortKind, PortState, Snapshot, Switch};
use testkit::{Namespace, Process, has_program, is_root};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_secs(20);
const RULES: u16 = 100;
const SERVER_PORT: u16 = 5201;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => compare(),
        ["switch", mac_a, mac_b] => serve(mac(mac_a)?, mac(mac_b)?),
        ["generate", size, mac_a, mac_b] => generate(size.parse()?, mac(mac_a)?, mac(mac_b)?),
        ["sink"] => sink(),
        _ => Err("forwarding takes no arguments".into()),
    }
}

/// What forwards between the two pods.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Podgate,
    Testpmd,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Podgate => "podgate",
            Self::Testpmd => "testpmd io",
        }
    }
}

fn compare() -> Result<()> {
    if !is_root() {
        return Err("needs root, for network namespaces and AF_XDP".into());
    }
    let mut peers = vec![Peer::Podgate];
    if has_program("dpdk-testpmd") {
        peers.push(Peer::Testpmd);
    } else {
        eprintln!("dpdk-testpmd is not installed (Debian: dpdk); measuring podgate alone");
    }
    let rig = Rig::new()?;
    let mut rows = Vec::new();
    for size in [64, 1500] {
        let mut rates = vec![Samples::default(); peers.len()];
        for round in 1..=ROUNDS {
            for (peer, rates) in peers.iter().zip(&mut rates) {
                eprintln!("{size} bytes, round {round} of {ROUNDS}: {}", peer.name());
                rates.add(rig.packets(*peer, size)?);
            }
        }
        rows.push(row(format!("UDP, {size}-byte frames (Mpps)"), &rates));
    }
    if has_program("iperf3") {
        let mut rates = vec![Samples::default(); peers.len()];
        for round in 1..=ROUNDS {
            for (peer, rates) in peers.iter().zip(&mut rates) {
                eprintln!("iperf3, round {round} of {ROUNDS}: {}", peer.name());
                rates.add(rig.stream(*peer)?);
            }
        }
        rows.push(row("TCP, iperf3, MTU 1500 (Gb/s)".to_owned(), &rates));
    }
    println!();
    let mut head = vec!["pod → switch → pod"];
    head.extend(peers.iter().map(|peer| peer.name()));
    head.push("ratio");
    print_table(&head, &rows);
    Ok(())
}

fn row(name: String, rates: &[Samples]) -> Vec<String> {
    let ratio = match rates {
        [ours, theirs] => format!("{:.2}", ours.median() / theirs.median()),
        _ => "–".to_owned(),
    };
    let rates = rates.iter().map(Samples::to_string);
    std::iter::once(name).chain(rates).chain([ratio]).collect()
}

/// A cluster node with two pods, each a namespace.
struct Rig {
    node: Namespace,
    a: Namespace,
    b: Namespace,
    mac_a: String,
    mac_b: String,
}

impl Rig {
    fn new() -> Result<Self> {
        let (node, a, b) =
            (Namespace::new("bench-node"), Namespace::new("bench-a"), Namespace::new("bench-b"));
        for (pod, interface, address) in [(&a, "pga", "10.88.0.2"), (&b, "pgb", "10.88.0.3")] {
            node.exec(words(&format!(
                "ip link add {interface} numrxqueues 1 numtxqueues 1 type veth peer name eth0 \
                 numrxqueues 1 numtxqueues 1 netns {}",
                pod.name()
            )));
            node.exec(words(&format!("ip link set {interface} up")));
            // As the CNI plugin does: a queue that holds senders back.
            pod.exec(words("tc qdisc add dev eth0 root pfifo"));
            pod.exec(words("ip link set eth0 up"));
            pod.exec(words(&format!("ip addr add {address}/24 dev eth0")));
            let off = "tx off rx off tso off gso off gro off sg off";
            node.try_exec(words(&format!("ethtool -K {interface} {off}")));
            pod.try_exec(words(&format!("ethtool -K eth0 {off}")));
        }
        let mac_of = |pod: &Namespace| -> String {
            pod.exec(words("cat /sys/class/net/eth0/address")).trim().to_owned()
        };
        let (mac_a, mac_b) = (mac_of(&a), mac_of(&b));
        a.exec(words(&format!("ip neigh add 10.88.0.3 lladdr {mac_b} dev eth0")));
        b.exec(words(&format!("ip neigh add 10.88.0.2 lladdr {mac_a} dev eth0")));
        Ok(Self { node, a, b, mac_a, mac_b })
    }

    fn start(&self, peer: Peer) -> Result<Process> {
        let own = own_path()?;
        for interface in ["pga", "pgb"] {
            self.node.exec(words(&format!("ip link set {interface} xdp off")));
        }
        Ok(match peer {
            Peer::Podgate => {
                let switch = self.node.spawn([own.as_str(), "switch", &self.mac_a, &self.mac_b]);
                switch.wait_for_line("in force", PATIENCE);
                switch
            }
            Peer::Testpmd => {
                let testpmd = self.node.spawn(words(
                    "dpdk-testpmd -l 0,1 --main-lcore 1 --no-pci --no-huge -m 512 --no-shconf \
                     --vdev net_af_xdp0,iface=pga --vdev net_af_xdp1,iface=pgb -- \
                     --forward-mode=io --auto-start --stats-period 1 --total-num-mbufs=32768",
                ));
                testpmd.wait_for_line("Port statistics", PATIENCE);
                testpmd
            }
        })
    }

    /// Million frames a second that reach the receiving pod.
    fn packets(&self, peer: Peer, size: usize) -> Result<f64> {
        let mut switch = self.start(peer)?;
        let own = own_path()?;
        let mut sink = self.b.spawn([own.as_str(), "sink"]);
        sink.wait_for_line("closed", PATIENCE);
        let mut generator =
            self.a.spawn([own.as_str(), "generate", &size.to_string(), &self.mac_a, &self.mac_b]);
        generator.wait_for_line("sending", PATIENCE);
        std::thread::sleep(WARM_UP);
        let (before, started) = (self.sent()?, Instant::now());
        std::thread::sleep(MEASURED);
        let (after, spent) = (self.sent()?, started.elapsed());
        generator.kill();
        sink.kill();
        switch.kill();
        self.a.exec(words("ip link set eth0 xdp off"));
        self.b.exec(words("ip link set eth0 xdp off"));
        Ok((after - before) as f64 / spent.as_secs_f64() / 1e6)
    }

    /// Gigabits of payload a second from pod to pod.
    fn stream(&self, peer: Peer) -> Result<f64> {
        let mut switch = self.start(peer)?;
        let server = self.b.spawn(words("taskset -c 1 iperf3 -s -1 --forceflush"));
        server.wait_for_line("Server listening", PATIENCE);
        let report = self.a.exec(words("taskset -c 1 iperf3 -c 10.88.0.3 -t 4 -f m"));
        switch.kill();
        let line = report.lines().find(|line| line.contains("receiver"));
        let fields: Vec<&str> = line.ok_or("iperf3 reported nothing")?.split_whitespace().collect();
        let unit = fields.iter().position(|field| field.starts_with("Mbits"));
        let rate: f64 = fields[unit.ok_or("iperf3 reported no rate")? - 1].parse()?;
        Ok(rate / 1e3)
    }

    fn sent(&self) -> Result<u64> {
        let count = self.node.exec(words("cat /sys/class/net/pgb/statistics/tx_packets"));
        Ok(count.trim().parse()?)
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn own_path() -> Result<String> {
    Ok(fs::read_link("/proc/self/exe")?.to_string_lossy().into_owned())
}

fn mac(text: &str) -> Result<Mac> {
    let bytes: std::result::Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes?.try_into().map_err(|_| format!("{text} is no MAC address").into())
}

/// The switch between the two pods; runs until it is killed.
fn serve(mac_a: Mac, mac_b: Mac) -> Result<()> {
    let (umem, memory, frames) = Umem::create(&UmemConfig { frames: 16384, hugepages: false })?;
    let config = Config { rx_mode: RxMode::Polling, cores: vec![0], ..Config::default() };
    let switch = Switch::start(&config, &memory, frames, |_| None)?;
    let map = Arc::default();
    let mut rules: Vec<Rule> = (0..RULES)
        .flat_map(|n| [protocol::UDP, protocol::TCP].map(|protocol| (n, protocol)))
        .map(|(n, protocol)| {
            Rule::new(Action::Permit, "bench")
                .protocol(protocol)
                .destination_ports(PortRange::one(SERVER_PORT + RULES / 2 - n))
        })
        .collect();
    rules.push(Rule::new(Action::Deny, "the rest"));
    let table = Gate::Table(Arc::new(Table::compile(rules.into(), &map)));
    let pod = |name: &str, mac, address: u32, to_pod| {
        let addresses = vec![acl::Address::from_v4_bits(address)];
        let (mac, from_pod) = (Some(mac), Gate::Open);
        Some(PortState { mac, addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let ports = vec![pod("a", mac_a, 0x0a58_0002, Gate::Open), pod("b", mac_b, 0x0a58_0003, table)];
    for (n, interface) in ["pga", "pgb"].into_iter().enumerate() {
        let port = umem.open(interface, &PortOptions { fill: 2048, ..PortOptions::default() })?;
        println!("{interface}: {}", port.mode());
        switch.add_port(PortId(n as u16), Box::new(port));
    }
    switch.publish(&Arc::new(Snapshot::new(Parts {
        generation: 1,
        ports,
        addresses: map,
        ..Parts::default()
    })));
    if !switch.wait_in_force(1, PATIENCE) {
        return Err("the workers do not answer".into());
    }
    println!("in force");
    loop {
        std::thread::park();
    }
}

/// Sends UDP frames as fast as they go; runs until it is killed.
fn generate(size: usize, mac_a: Mac, mac_b: Mac) -> Result<()> {
    pin(1)?;
    // A frame's size on the wire counts the 4 bytes of its check sequence, as testers do; the
    // interface sends the rest.
    let payload = if size > 64 { 1514 - 42 } else { 60 - 42 };
    let (umem, memory, mut frames) = Umem::create(&UmemConfig { frames: 4096, hugepages: false })?;
    let mut length = 0;
    for (n, frame) in frames.iter_mut().enumerate() {
        let (from, to) =
            (format!("10.88.0.2:{}", 1024 + n % 64), format!("10.88.0.3:{SERVER_PORT}"));
        let packet = testkit::packet::udp(&from, &to)
            .from_mac(mac_a)
            .to_mac(mac_b)
            .payload(&vec![0; payload])
            .build();
        length = packet.len();
        memory.fill(frame, &packet);
    }
    let mut free = FreeList::new(&memory, frames);
    let mut port = umem.open("eth0", &PortOptions { fill: 64, ..PortOptions::default() })?;
    println!("sending");
    let mut batch = Vec::new();
    loop {
        while batch.len() < 64
            && let Some(mut frame) = free.take()
        {
            // What was written above is still there.
            memory.set_length(&mut frame, length);
            batch.push(frame);
        }
        port.send(&mut Lent { memory: &memory, free: &mut free }, &mut batch)?;
    }
}

/// Drops all that reaches the pod, as cheaply as the kernel can; runs until it is killed.
fn sink() -> Result<()> {
    Umem::close("eth0")?;
    println!("closed");
    loop {
        std::thread::park();
    }
}

fn pin(core: usize) -> Result<()> {
    let id = std::process::id().to_string();
    let done = Command::new("taskset").args(["-pc", &core.to_string(), &id]).output()?;
    if done.status.success() { Ok(()) } else { Err("taskset cannot pin the generator".into()) }
}
