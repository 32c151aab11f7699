//! A node and pods, joined by veth pairs as the CNI plugin joins them.

use std::error::Error;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::Mac;
use dataplane::{Parts, PortId, Snapshot, Switch};
use flow_offload::{Kernel, Offload, Options};
use linux_net::Netlink;
use linux_net::punt;
use testkit::Namespace;

/// Long enough for whatever is going to happen at all.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Offloads of a new veth pair, as words for `ethtool -K`: no distribution changes them.
const KERNEL: &str = "tx on sg on tso on gso on gro off";
/// Packets handed over in pieces, but no segments uncut; and none of all that.
const PIECES: &str = "tx on sg on tso off gso off gro off";
const CUT: &str = "tx off sg off tso off gso off gro off";
/// Features that [`Rig::described`] shows.
const FEATURES: [&str; 5] = [
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
];

/// Offloads and queues of the interfaces between a node and its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settings {
    /// A new veth pair's, at all ends: what users of the kernel's bridge and router have.
    Kernel,
    /// Podgate's CNI plugin's for AF_XDP ports: pods cut their segments and finish their checksums themselves.
    CniPlugin,
    /// Podgate's CNI plugin's, for flow offload.
    FlowOffload,
}

/// The sender's address.
pub const SENDER: &str = "10.88.0.2";
/// The receiver's address.
pub const RECEIVER: &str = "10.88.0.3";
/// Address of a service in front of the receiver.
pub const SERVICE: &str = "10.96.0.10";

/// A node with two pods in namespaces of their own.
pub struct Rig {
    /// Where the switch's ends of all interfaces are: `pga` and `pgb`.
    pub node: Namespace,
    /// The sender, on `eth0`.
    pub a: Namespace,
    /// The receiver, on `eth0`.
    pub b: Namespace,
    /// The sender's MAC address.
    pub mac_a: String,
    /// The receiver's.
    pub mac_b: String,
}

impl Rig {
    /// Two pods.
    pub(crate) fn new(settings: Settings) -> Self {
        let [node, a, b] = ["bench-node", "bench-a", "bench-b"].map(Namespace::new);
        for (pod, interface, address) in [(&a, "pga", SENDER), (&b, "pgb", RECEIVER)] {
            join(&node, interface, pod);
            pod.exec(words(&format!("ip addr add {address}/24 dev eth0")));
        }
        let (mac_a, mac_b) = (mac_of(&a, "eth0"), mac_of(&b, "eth0"));
        a.exec(words(&format!("ip neigh add {RECEIVER} lladdr {mac_b} dev eth0")));
        // Services are behind the switch, as everything is.
        a.exec(words(&format!("ip route add {SERVICE} via {RECEIVER} dev eth0")));
        b.exec(words(&format!("ip neigh add {SENDER} lladdr {mac_a} dev eth0")));
        let rig = Self { node, a, b, mac_a, mac_b };
        rig.set(settings);
        rig
    }

    /// Makes the kernel of the node route between the pods.
    pub(crate) fn route(&self) {
        self.node.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        for (pod, interface, mac, address, other) in [
            (&self.a, "pga", &self.mac_a, SENDER, RECEIVER),
            (&self.b, "pgb", &self.mac_b, RECEIVER, SENDER),
        ] {
            self.node.exec(words(&format!("ip route add {address}/32 dev {interface}")));
            self.node.exec(words(&format!("ip neigh add {address} lladdr {mac} dev {interface}")));
            let own = mac_of(&self.node, interface);
            pod.exec(words(&format!("ip neigh replace {other} lladdr {own} dev eth0")));
        }
    }

    /// Sets all ends of the interfaces as a forwarder's users have them.
    fn set(&self, settings: Settings) {
        for (namespace, interface) in self.ends() {
            let is_pod = interface == "eth0";
            let line = match settings {
                Settings::Kernel => KERNEL,
                Settings::FlowOffload if is_pod => KERNEL,
                Settings::CniPlugin if is_pod => CUT,
                _ => PIECES,
            };
            namespace.try_exec(words(&format!("ethtool -K {interface} {line}")));
            if is_pod {
                // As the CNI plugin does: a queue that holds senders back.
                let queue = if settings == Settings::Kernel { "noqueue" } else { "pfifo" };
                namespace.exec(words(&format!("tc qdisc replace dev eth0 root {queue}")));
            }
        }
    }

    /// The settings of all ends as they are now, a line for each: offloads (`ethtool -k`), the queue in
    /// front, the congestion control of the kernel there.
    pub fn described(&self) -> Vec<String> {
        let described = |(namespace, interface): (&Namespace, &str)| {
            let features = namespace.exec(words(&format!("ethtool -k {interface}")));
            let mut shown: Vec<&str> = features.lines().map(str::trim).collect();
            shown.retain(|line| FEATURES.iter().any(|name| line.starts_with(name)));
            let queue = namespace.exec(words(&format!("tc qdisc show dev {interface} root")));
            let control = namespace.exec(words("sysctl -n net.ipv4.tcp_congestion_control"));
            format!("{interface}: {}; {}; {}", shown.join(", "), queue.trim(), control.trim())
        };
        self.ends().into_iter().map(described).collect()
    }

    fn ends(&self) -> [(&Namespace, &'static str); 4] {
        [(&self.a, "eth0"), (&self.node, "pga"), (&self.node, "pgb"), (&self.b, "eth0")]
    }
}

/// Two namespaces joined by `eth0` in both, with the addresses of sender and receiver.
///
/// # Panics
/// If a command fails.
pub fn joined() -> [Namespace; 2] {
    let both = [Namespace::new("bench-a"), Namespace::new("bench-b")];
    let other = both[1].name();
    both[0].exec(words(&format!("ip link add eth0 type veth peer name eth0 netns {other}")));
    for (namespace, address) in both.iter().zip([SENDER, RECEIVER]) {
        set_up(namespace, "eth0");
        namespace.exec(words(&format!("ip addr add {address}/24 dev eth0")));
    }
    both
}

/// Fails unless this process is root's.
pub fn needs_root() -> Result<(), Box<dyn Error>> {
    match testkit::is_root() {
        true => Ok(()),
        false => Err("needs root, for network namespaces and AF_XDP".into()),
    }
}

/// Millions a second by which a counter of an interface grows, over this time.
pub fn rate(
    namespace: &Namespace,
    counter: &str,
    measured: Duration,
) -> Result<f64, Box<dyn Error>> {
    let count = || namespace.exec(words(&format!("cat /sys/class/net/{counter}")));
    let (before, started) = (count(), Instant::now());
    std::thread::sleep(measured);
    let (after, spent) = (count(), started.elapsed());
    let count = after.trim().parse::<u64>()? - before.trim().parse::<u64>()?;
    Ok(count as f64 / spent.as_secs_f64() / 1e6)
}

/// Sends each datagram back, until this is over.
pub fn echo(socket: &UdpSocket, is_over: &AtomicBool) {
    // Sockets have this option.
    let _ = socket.set_read_timeout(Some(Duration::from_millis(50)));
    let mut bytes = [0; 64];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..length], from);
        }
    }
}

/// Joins two namespaces by interfaces of one queue each.
fn join(node: &Namespace, interface: &str, pod: &Namespace) {
    node.exec(words(&format!(
        "ip link add {interface} numrxqueues 1 numtxqueues 1 type veth \
         peer name eth0 numrxqueues 1 numtxqueues 1 netns {}",
        pod.name()
    )));
    set_up(node, interface);
    set_up(pod, "eth0");
}

/// Sets an interface up, without messages of the kernel's own between the measured ones.
fn set_up(namespace: &Namespace, interface: &str) {
    namespace.exec(["sysctl", "-qw", &format!("net.ipv6.conf.{interface}.disable_ipv6=1")]);
    namespace.exec(words(&format!("ip link set {interface} up")));
}

/// Runs commands inside a namespace, one a line.
///
/// # Panics
/// If one fails.
pub fn run(namespace: &Namespace, lines: &str) {
    lines.lines().map(words).filter(|it| !it.is_empty()).for_each(|it| drop(namespace.exec(it)));
}

/// The words of a command.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The MAC address of an interface.
pub(crate) fn mac_of(namespace: &Namespace, interface: &str) -> String {
    let path = format!("cat /sys/class/net/{interface}/address");
    namespace.exec(words(&path)).trim().to_owned()
}

/// A MAC address from its text.
pub(crate) fn mac(text: &str) -> Result<Mac, Box<dyn Error>> {
    Ok(text.parse::<linux_net::MacAddress>()?.0)
}

/// A switch without ports, and the memory for them.
pub(crate) fn switch(
    rx_mode: RxMode,
    cores: Vec<usize>,
) -> Result<(Umem, Arc<Switch>), Box<dyn Error>> {
    let (umem, memory, frames) = Umem::create(&UmemConfig { frames: 16384, hugepages: false })?;
    let config = Config { rx_mode, cores, ..Config::default() };
    Ok((umem, Arc::new(Switch::start(&config, &memory, frames, |_| None)?)))
}

/// The switch's port of what flow offload leaves to it, behind all others.
const TRUNK: PortId = PortId(1023);

/// Loads the programs of flow offload.
pub(crate) fn kernel(umem: &Umem, switch: &Switch) -> Result<Kernel, Box<dyn Error>> {
    let link = punt::set_up(1, linux_net::MAX_MTU)?;
    let kernel = Kernel::load(Options::default().entries)?;
    let port = umem.open(punt::SWITCH_END, &filled())?;
    switch.add_port(TRUNK, kernel.punt_queue(0, Box::new(port)));
    kernel.set_punt(link.kernel.index)?;
    let mut netlink = Netlink::open()?;
    [&link.kernel, &link.switch].into_iter().try_for_each(|end| netlink.set_up(end.index))?;
    Ok(kernel)
}

/// Starts flow offload for pods' ports with their interfaces and MAC addresses.
pub(crate) fn offload(
    kernel: Kernel,
    switch: &Arc<Switch>,
    pods: &[(PortId, &str, Mac)],
) -> Result<Offload, Box<dyn Error>> {
    let mut netlink = Netlink::open()?;
    let offload = Offload::start(kernel, Arc::clone(switch), Options::default())?;
    for (id, interface, mac) in pods {
        let tag = switch.add_member(*id, TRUNK);
        let index = netlink.link(interface)?.index;
        offload.add_port(*id, index, tag, *mac)?;
        offload.attach_ports(&[(*id, index)]).into_iter().collect::<Result<(), _>>()?;
    }
    Ok(offload)
}

/// Ports where many frames wait for packets.
pub fn filled() -> PortOptions {
    PortOptions { fill: 2048, ..PortOptions::default() }
}

/// Publishes the only snapshot, and says so once all workers have it.
pub(crate) fn put_in_force(
    switch: &Switch,
    offload: Option<&Offload>,
    parts: Parts,
) -> Result<(), Box<dyn Error>> {
    let snapshot = Arc::new(Snapshot::new(parts));
    if let Some(offload) = offload {
        offload.prepare(&snapshot);
    }
    switch.publish(&snapshot);
    if !switch.wait_in_force(1, PATIENCE) {
        return Err("the workers do not answer".into());
    }
    println!("in force");
    Ok(())
}
