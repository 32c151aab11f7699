//! The place of an unfinished checksum is the choice of the process that sends the frame, and the
//! kernel writes there when the frame leaves: over nothing that was looked at.

use std::time::Duration;

use dataplane::PortId;
use dataplane::wire::{Flow, Mac, protocol};
use flow_offload::Kernel;
use flow_offload::layout::{FlowEntry, FlowKey, PuntedPort};
use testkit::packet::{self, Packet};
use testkit::{Namespace, RawReceiver};

const POD: Mac = [2, 0, 0, 0, 0, 1];
const NEXT_HOP: Mac = [2, 0, 0, 0, 0, 2];
const OWN: Mac = [2, 0, 0, 0, 0, 9];
const TAG: [u8; 6] = [6, 1, 0, 1, 0, 1];
/// Time in which a frame arrives; a busy machine takes longer.
const TRANSIT: Duration = Duration::from_millis(50);

/// Sends frames that are given in lines of hexadecimal digits, each behind the place where its checksum
/// begins and the offset there where the sum goes (`struct virtio_net_hdr`).
const SENDER: &str = r"
import socket, struct, sys
PACKET, VNET_HEADER, NEEDS_CHECKSUM = 263, 15, 1
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.setsockopt(PACKET, VNET_HEADER, 1)
raw.bind(('eth0', 0))
for line in sys.argv[1:]:
    start, offset, frame = line.split()
    header = struct.pack('=BBHHHH', NEEDS_CHECKSUM, 0, 0, 0, int(start), int(offset))
    raw.send(header + bytes.fromhex(frame))
";

/// A node's interfaces of a pod, of the punt link and of the wire; the ends of the latter two
/// are here.
struct Rig {
    node: Namespace,
    pod: Namespace,
    punted: RawReceiver,
    wire: RawReceiver,
    kernel: Kernel,
}

impl Rig {
    fn new() -> Self {
        let (node, pod) = (Namespace::new("node"), Namespace::new("pod"));
        let script = format!(
            "set -e; ip link add pod type veth peer name eth0 netns {} address 02:00:00:00:00:01; \
             ip link add punt type veth peer name punted; ip link add wire type veth peer name far; \
             for it in pod punt punted wire far; do \
               sysctl -qw net.ipv6.conf.$it.disable_ipv6=1; ip link set $it up; done; \
             ethtool -K punt tx off >/dev/null; ethtool -K wire tx off >/dev/null",
            pod.name()
        );
        node.exec(["sh", "-c", &script]);
        pod.exec(["sh", "-c", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set eth0 up"]);
        let (punted, wire, kernel) = node.enter(|| {
            let open = |interface| RawReceiver::open(interface).unwrap();
            (open("punted"), open("far"), Kernel::load(16).unwrap())
        });
        let rig = Self { node, pod, punted, wire, kernel };
        rig.node.enter(|| rig.kernel.set_punt(rig.index("punt")).unwrap());
        let port = PuntedPort { ifindex: rig.index("pod"), tag: TAG, mac: POD, queue: 0 };
        rig.node.enter(|| rig.kernel.add_port(PortId(1), &port).unwrap());
        rig.kernel.beat(Duration::from_secs(1 << 32)).unwrap();
        rig
    }

    fn index(&self, interface: &str) -> u32 {
        let path = format!("/sys/class/net/{interface}/ifindex");
        self.node.exec(["cat", &path]).trim().parse().unwrap()
    }

    /// Makes the kernel forward the connection of a packet onto the wire.
    fn offload(&self, from: &str, to: &str, protocol: u8) {
        let end = |text: &str| -> std::net::SocketAddr { text.parse().unwrap() };
        let (from, to) = (end(from), end(to));
        let flow = Flow {
            source: from.ip().into(),
            destination: to.ip().into(),
            source_port: from.port(),
            destination_port: to.port(),
            protocol,
        };
        let entry = FlowEntry {
            egress: self.index("wire"),
            mtu: 1500,
            on_wire: 1,
            ingress_mac: POD,
            destination_mac: NEXT_HOP,
            source_mac: OWN,
            ..FlowEntry::default()
        };
        let key = FlowKey::new(self.index("pod"), &flow);
        assert_eq!(self.kernel.put_flows(&[key], &[entry]), 1);
    }

    /// The frames that arrive behind the punt link, and on the wire, of those with unfinished checksums.
    fn send(&self, frames: &[(Vec<u8>, usize, usize)]) -> [Vec<Vec<u8>>; 2] {
        let lines = frames.iter().map(|(frame, start, offset)| {
            let frame: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{start} {offset} {frame}")
        });
        self.pod.exec(["python3", "-c", SENDER].map(str::to_owned).into_iter().chain(lines));
        testkit::transit(TRANSIT);
        [&self.punted, &self.wire]
            .map(|receiver| std::iter::from_fn(|| receiver.receive().unwrap()).collect())
    }
}

#[test]
fn an_unfinished_checksum_is_written_over_no_header() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("python3"), "python3 is not installed");
    testkit::requires!(testkit::has_program("ethtool"), "ethtool is not installed");
    let rig = Rig::new();
    let built = |packet: Packet| packet.from_mac(POD).build();
    let datagram = |from, to| packet::udp(from, to).payload(&[7; 64]);
    for (from, to, kind) in [
        ("10.1.0.2:1000", "192.0.2.9:53", protocol::UDP),
        ("10.1.0.2:1000", "192.0.2.9:80", protocol::TCP),
        ("[fd00:1::2]:1000", "[2001:db8::9]:53", protocol::UDP),
        ("[fd00:1::2]:1000", "[2001:db8::9]:80", protocol::TCP),
    ] {
        let is_tcp = kind == protocol::TCP;
        let packet = || {
            built(if is_tcp { packet::tcp(from, to).data(&[7; 64]) } else { datagram(from, to) })
        };
        let l4 = if from.starts_with('[') { 54 } else { 34 };
        let field = if is_tcp { 16 } else { 6 };
        // Over the destination's address, a port, and TCP's flags.
        let forged = || {
            let flags = is_tcp.then_some((l4, 12));
            [(20, l4 - 4 - 20), (l4, 0), (l4, 2)].into_iter().chain(flags)
        };
        let all: Vec<_> = forged().map(|(start, offset)| (packet(), start, offset)).collect();
        // Without an entry, the switch sees what it decides about: as it is after the kernel wrote.
        let [punted, wire] = rig.send(&[(packet(), l4, field)]);
        assert_eq!((punted.len(), wire.len()), (1, 0), "{to}");
        assert_eq!(punted[0][..6], TAG);
        rig.offload(from, to, kind);
        let [punted, wire] = rig.send(&[(packet(), l4, field)]);
        assert_eq!((punted.len(), wire.len()), (0, 1), "{to}");
        assert_eq!(wire[0][l4..l4 + 4], packet()[l4..l4 + 4], "{to}: ports");
        let [punted, wire] = rig.send(&all);
        assert_eq!((punted.len(), wire.len()), (0, 0), "{to}: {punted:02x?} {wire:02x?}");
    }
    // Of what goes to the switch, over the IP header.
    let packet = || built(datagram("10.1.0.2:1001", "192.0.2.9:53"));
    let all: Vec<_> = [0, 6, 10].map(|offset| (packet(), 20, offset)).into();
    let [punted, wire] = rig.send(&all);
    assert_eq!((punted.len(), wire.len()), (0, 0), "{punted:02x?}");
}

#[test]
fn loaded_programs_pass_their_test_and_begin_with_empty_counters() {
    testkit::requires_root!();
    let kernel = Kernel::load(16).unwrap();
    let before = kernel.counters();
    kernel.self_test().unwrap();
    assert_eq!(kernel.counters(), before);
    let mut entries = 0;
    kernel.for_each_flow(|_, _| entries += 1).unwrap();
    assert_eq!(entries, 0);
}
