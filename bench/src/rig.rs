//! A node and pods, joined by veth pairs as the CNI plugin joins them.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::{Buffers, Port};
use dataplane::wire::Mac;
use dataplane::{Frame, FreeList, Memory, Parts, PortId, Snapshot, Switch};
use flow_offload::{Kernel, Offload};
use linux_net::punt::{self, PuntLink};
use testkit::Namespace;

/// Long enough for whatever is going to happen at all.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Offloads of a new veth pair, as words for `ethtool -K`: no distribution changes them.
const KERNEL: &str = "tx on sg on tso on gso on gro off";
/// Features that [`Rig::described`] shows, by `ethtool`'s name, and in short.
const FEATURES: [(&str, &str); 5] = [
    ("tx-checksumming", "tx"),
    ("scatter-gather", "sg"),
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
    ("generic-receive-offload", "gro"),
];

/// Offloads and queues of the interfaces between a node and its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// A new veth pair's, at all ends: what users of the kernel's bridge and router have.
    Kernel,
    /// Podgate's CNI plugin's, for AF_XDP ports.
    CniPlugin,
    /// Podgate's CNI plugin's, for flow offload.
    FlowOffload,
    /// Pods that cut their segments and finish their checksums themselves, for forwarders that complete
    /// nothing.
    Cut,
}

/// Address of a service in front of the receiver.
pub const SERVICE: &str = "10.96.0.10";

/// A node with two pods in namespaces of their own, and others that only exist.
pub struct Rig {
    /// Where the switch's ends of all interfaces are: `pga`, `pgb`, `idle0` and on.
    pub node: Namespace,
    /// The sender, `10.88.0.2` on `eth0`.
    pub a: Namespace,
    /// The receiver, `10.88.0.3` on `eth0`.
    pub b: Namespace,
    /// The sender's MAC address.
    pub mac_a: String,
    /// The receiver's.
    pub mac_b: String,
    mtu: u32,
    /// Where the other pods' interfaces are.
    _idle: Option<Namespace>,
}

impl Rig {
    /// Two pods that talk, and `idle` others.
    pub fn new(mtu: u32, idle: usize) -> Self {
        let (node, a, b) =
            (Namespace::new("bench-node"), Namespace::new("bench-a"), Namespace::new("bench-b"));
        for (pod, interface, address) in [(&a, "pga", "10.88.0.2"), (&b, "pgb", "10.88.0.3")] {
            join(&node, interface, pod, "eth0", mtu);
            // As the CNI plugin does: a queue that holds senders back.
            pod.exec(words("tc qdisc add dev eth0 root pfifo"));
            pod.exec(words(&format!("ip addr add {address}/24 dev eth0")));
        }
        let others = (idle > 0).then(|| Namespace::new("bench-idle"));
        for n in 0..idle {
            let pods = others.as_ref().expect("made above");
            join(&node, &format!("idle{n}"), pods, &format!("eth{n}"), mtu);
        }
        let (mac_a, mac_b) = (mac_of(&a, "eth0"), mac_of(&b, "eth0"));
        a.exec(words(&format!("ip neigh add 10.88.0.3 lladdr {mac_b} dev eth0")));
        // Services are behind the switch, as everything is.
        a.exec(words(&format!("ip route add {SERVICE} via 10.88.0.3 dev eth0")));
        b.exec(words(&format!("ip neigh add 10.88.0.2 lladdr {mac_a} dev eth0")));
        Self { node, a, b, mac_a, mac_b, mtu, _idle: others }
    }

    /// Makes the kernel of the node route between the pods.
    pub fn route(&self) {
        self.node.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        for (pod, interface, mac, address, other) in [
            (&self.a, "pga", &self.mac_a, "10.88.0.2", "10.88.0.3"),
            (&self.b, "pgb", &self.mac_b, "10.88.0.3", "10.88.0.2"),
        ] {
            self.node.exec(words(&format!("ip route add {address}/32 dev {interface}")));
            self.node.exec(words(&format!("ip neigh add {address} lladdr {mac} dev {interface}")));
            let own = mac_of(&self.node, interface);
            pod.exec(words(&format!("ip neigh replace {other} lladdr {own} dev eth0")));
        }
    }

    /// Sets all ends of the interfaces as a forwarder's users have them. [`Settings::CniPlugin`] is what a
    /// new rig has.
    pub fn set(&self, settings: Settings) {
        for (namespace, interface) in self.ends() {
            let is_pod = interface == "eth0";
            let line = match settings {
                Settings::Kernel => KERNEL.to_owned(),
                Settings::CniPlugin => offloads(if is_pod { sums(self.mtu) } else { "on" }),
                Settings::FlowOffload if is_pod => KERNEL.to_owned(),
                Settings::FlowOffload => offloads("on"),
                Settings::Cut => offloads(if is_pod { "off" } else { "on" }),
            };
            namespace.try_exec(words(&format!("ethtool -K {interface} {line}")));
            if is_pod {
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
            let value = |name: &str| {
                let line = features.lines().find_map(|line| line.trim().strip_prefix(name));
                line.unwrap_or(": unknown").trim_start_matches(':').trim().to_owned()
            };
            let shown: Vec<String> =
                FEATURES.iter().map(|(name, short)| format!("{short} {}", value(name))).collect();
            let queue = namespace.exec(words(&format!("tc qdisc show dev {interface} root")));
            let queue = queue.split_whitespace().nth(1).unwrap_or("none").to_owned();
            let control = namespace.exec(words("sysctl -n net.ipv4.tcp_congestion_control"));
            let (shown, control) = (shown.join(", "), control.trim());
            format!("{interface}: {shown}; qdisc {queue}; congestion control {control}")
        };
        self.ends().into_iter().map(described).collect()
    }

    fn ends(&self) -> [(&Namespace, &'static str); 4] {
        [(&self.a, "eth0"), (&self.node, "pga"), (&self.node, "pgb"), (&self.b, "eth0")]
    }

    /// Moves reception in the pods to kernel threads of their own, which merge the segments of a connection
    /// (GRO), instead of where the sender runs; until the next [`Self::set`].
    pub fn receive_in_threads(&self) {
        for pod in [&self.a, &self.b] {
            pod.try_exec(words("ethtool -K eth0 gro on"));
            pod.try_exec(["sh", "-c", "echo 1 > /sys/class/net/eth0/threaded"]);
        }
    }

    /// Takes all XDP programs off.
    pub fn clear(&self) {
        for (namespace, interface) in self.ends() {
            namespace.exec(words(&format!("ip link set {interface} xdp off")));
        }
    }

    /// Frames that were sent to the receiver.
    pub fn arrived(&self) -> Result<u64, Box<dyn Error>> {
        let count = self.node.exec(words("cat /sys/class/net/pgb/statistics/tx_packets"));
        Ok(count.trim().parse()?)
    }
}

/// Two namespaces joined by `eth0` in both.
///
/// # Panics
/// If a command fails.
pub fn joined(mtu: u32) -> [Namespace; 2] {
    let both = [Namespace::new("bench-a"), Namespace::new("bench-b")];
    let other = both[1].name();
    both[0].exec(words(&format!(
        "ip link add eth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {other}"
    )));
    for namespace in &both {
        // No messages of the kernel's own between the measured ones.
        namespace.exec(["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"]);
        namespace.exec(words("ip link set eth0 up"));
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

/// Millions a second by which a count grows, over this time.
pub fn rate(
    measured: Duration,
    count: impl Fn() -> Result<u64, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let (before, started) = (count()?, Instant::now());
    std::thread::sleep(measured);
    let (after, spent) = (count()?, started.elapsed());
    Ok((after - before) as f64 / spent.as_secs_f64() / 1e6)
}

/// Joins two namespaces by interfaces of one queue each, with the offloads that the CNI plugin
/// leaves on.
fn join(node: &Namespace, interface: &str, pod: &Namespace, name: &str, mtu: u32) {
    node.exec(words(&format!(
        "ip link add {interface} mtu {mtu} numrxqueues 1 numtxqueues 1 type veth \
         peer name {name} mtu {mtu} numrxqueues 1 numtxqueues 1 netns {}",
        pod.name()
    )));
    for (namespace, interface) in [(node, interface), (pod, name)] {
        // No messages of the kernel's own between the measured ones.
        namespace.exec(["sysctl", "-qw", &format!("net.ipv6.conf.{interface}.disable_ipv6=1")]);
        namespace.exec(words(&format!("ip link set {interface} up")));
        let is_pod = !std::ptr::eq(namespace, node);
        let line = offloads(if is_pod { sums(mtu) } else { "on" });
        namespace.try_exec(words(&format!("ethtool -K {interface} {line}")));
    }
}

/// As the CNI plugin does: pods finish their checksums, unless packets may be long.
fn sums(mtu: u32) -> &'static str {
    if mtu > 3500 { "on" } else { "off" }
}

/// Words for `ethtool -K`: the checksum offload and the handing over in pieces `sums` ("on", "off"), no
/// segmentation.
fn offloads(sums: &str) -> String {
    format!("tx {sums} sg {sums} tso off gso off gro off")
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
pub fn mac(text: &str) -> Result<Mac, Box<dyn Error>> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes?.try_into().map_err(|_| format!("{text} is no MAC address").into())
}

/// Keeps the calling thread on one core.
pub fn pin(core: usize) -> Result<(), Box<dyn Error>> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Loads the programs of flow offload, with `trunk` as the switch's port of what they leave to it.
pub(crate) fn kernel(
    umem: &Umem,
    switch: &Switch,
    trunk: PortId,
) -> Result<(Kernel, PuntLink), Box<dyn Error>> {
    let link = punt::set_up(1, linux_net::MAX_MTU)?;
    let kernel = Kernel::load(flow_offload::Options::default().entries)?;
    let port = umem.open(punt::SWITCH_END, &filled_with(2048))?;
    switch.add_port(trunk, kernel.punt_queue(0, Box::new(port)));
    kernel.set_punt(link.kernel.index)?;
    Ok((kernel, link))
}

/// A port where so many frames wait for packets.
pub(crate) fn filled_with(fill: u32) -> PortOptions {
    PortOptions { fill, ..PortOptions::default() }
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

/// An AF_XDP port with frames of its own, driven by hand.
pub struct End {
    _umem: Umem,
    /// Where its frames stand.
    pub memory: Arc<Memory>,
    /// Those that are free.
    pub free: FreeList,
    port: Option<Box<dyn Port>>,
}

impl End {
    /// Opens a port in the namespace where the caller is; `fill` frames wait for packets.
    pub fn open(interface: &str, frames: u32, fill: u32) -> Result<Self, Box<dyn Error>> {
        let (umem, memory, frames) = Umem::create(&UmemConfig { frames, hugepages: false })?;
        let port = umem.open(interface, &filled_with(fill))?;
        let free = FreeList::new(&memory, frames);
        let mut end = Self { _umem: umem, memory, free, port: Some(Box::new(port)) };
        end.receive(&mut Vec::new())?;
        Ok(end)
    }

    /// A packet in free frames, if there are enough.
    pub fn filled(&mut self, packet: &[u8]) -> Option<Frame> {
        Buffers { memory: &self.memory, free: &mut self.free }.filled(packet)
    }

    /// Appends what has arrived.
    pub fn receive(&mut self, frames: &mut Vec<Frame>) -> Result<(), Box<dyn Error>> {
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("there until it is dropped");
        Ok(port.receive(&mut buffers, 64, frames)?)
    }

    /// Sends what there is room for; the rest stays.
    pub fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), Box<dyn Error>> {
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("there until it is dropped");
        Ok(port.send(&mut buffers, frames)?)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(port) = self.port.take() {
            port.close(&mut Buffers { memory: &self.memory, free: &mut self.free });
        }
    }
}
