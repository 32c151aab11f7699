//! Two nodes and an attacker on one link; the frames of the link are captured.
//!
//! ```text
//!   node 1: 192.0.2.1, 2001:db8::1 ─┐
//!   node 2: 192.0.2.2, 2001:db8::2 ─┼─ bridge
//!   node 3: 192.0.2.3, 2001:db8::3 ─┘
//! ```
//!
//! Each node's kernel has the address 1 of each pod network, and one of a VXLAN device.

use dataplane::port::af_xdp::UplinkFilter;
use encryption::{Node, PrivateKey, Programs, Uplink};
use flow_offload::Kernel;
use ipnet::IpNet;
use linux_net::{Netlink, WireGuardConfig, WireGuardDevice, WireGuardPeer};
use testkit::{Boringtun, Namespace, RawReceiver};

pub(crate) const OVERLAY: u16 = 4789;
pub(crate) const PORT: u16 = 51871;

pub(crate) struct Lan {
    pub(crate) hosts: [Host; 3],
    _bridge: Namespace,
    /// Frames that the nodes sent.
    captures: [RawReceiver; 3],
}

pub(crate) struct Host {
    number: usize,
    pub(crate) namespace: Namespace,
    key: PrivateKey,
}

/// Encryption on one node.
pub(crate) struct Encrypting {
    pub(crate) programs: Programs,
    pub(crate) kernel: Kernel,
    pub(crate) device: WireGuardDevice,
    pub(crate) boringtun: Boringtun,
}

pub(crate) fn ip(namespace: &Namespace, words: &str) {
    namespace.exec(std::iter::once("ip").chain(words.split(' ')));
}

impl Lan {
    pub(crate) fn new() -> Self {
        let bridge = Namespace::new("wire");
        ip(&bridge, "link add br0 type bridge");
        ip(&bridge, "link set br0 up");
        let hosts = [1, 2, 3].map(|number| Host::new(number, &bridge));
        for host in &hosts {
            host.connect();
        }
        let open = |n| bridge.enter(|| RawReceiver::open(&format!("port{n}")).unwrap());
        let captures = [1, 2, 3].map(open);
        Self { hosts, _bridge: bridge, captures }
    }

    /// Whether bytes were on the wire since the last call.
    pub(crate) fn saw(&self, bytes: &[u8]) -> bool {
        let mut found = false;
        for capture in &self.captures {
            while let Some(frame) = capture.receive().unwrap() {
                found |= frame.windows(bytes.len()).any(|it| it == bytes);
            }
        }
        found
    }
}

impl Host {
    fn new(number: usize, bridge: &Namespace) -> Self {
        let namespace = Namespace::new("node");
        let name = namespace.name();
        ip(bridge, &format!("link add port{number} type veth peer name eth0 netns {name}"));
        ip(bridge, &format!("link set port{number} master br0 up"));
        ip(&namespace, "link set eth0 up");
        ip(&namespace, &format!("address add 192.0.2.{number}/24 dev eth0"));
        ip(&namespace, &format!("address add 2001:db8::{number}/64 dev eth0 nodad"));
        let key = PrivateKey::generate().unwrap();
        Self { number, namespace, key }
    }

    /// Pod addresses, routes, and VXLAN devices to the others.
    fn connect(&self) {
        let (number, at) = (self.number, &self.namespace);
        ip(at, &format!("address add 10.{number}.0.1/32 dev lo"));
        ip(at, &format!("address add fd0{number}::1/128 dev lo nodad"));
        // The MTU that is left beside both kinds of encapsulation.
        ip(
            at,
            &format!(
                "link add vx0 mtu 1370 type vxlan id 7 local 192.0.2.{number} dstport {OVERLAY}"
            ),
        );
        ip(at, &format!("link set vx0 address 02:00:00:00:00:0{number} up"));
        ip(at, &format!("address add 172.16.0.{number}/24 dev vx0"));
        for other in (1..=3).filter(|other| *other != number) {
            ip(
                at,
                &format!(
                    "route add 10.{other}.0.0/24 via 192.0.2.{other} src 10.{number}.0.1 mtu 1420"
                ),
            );
            ip(
                at,
                &format!(
                    "route add fd0{other}::/64 via 2001:db8::{other} src fd0{number}::1 mtu 1400"
                ),
            );
            ip(
                at,
                &format!(
                    "neigh add 172.16.0.{other} lladdr 02:00:00:00:00:0{other} dev vx0 nud permanent"
                ),
            );
            let words = format!("fdb add 02:00:00:00:00:0{other} dev vx0 dst 192.0.2.{other}");
            at.exec(std::iter::once("bridge").chain(words.split(' ')));
        }
    }

    fn networks(&self) -> Vec<IpNet> {
        let number = self.number;
        [format!("10.{number}.0.0/24"), format!("fd0{number}::/64")]
            .map(|it| it.parse().unwrap())
            .into()
    }

    pub(crate) fn node(&self, has_peer: bool) -> Node {
        let number = self.number;
        let addresses = [format!("192.0.2.{number}"), format!("2001:db8::{number}")];
        let addresses = addresses.map(|it| it.parse().unwrap()).into();
        Node { addresses, networks: self.networks(), has_peer, ..Node::default() }
    }

    pub(crate) fn peer(&self) -> WireGuardPeer {
        let Node { addresses, networks, .. } = self.node(true);
        let networks = addresses.iter().map(|it| IpNet::from(*it)).chain(networks).collect();
        let endpoint = (addresses[0], PORT).into();
        WireGuardPeer { public_key: self.key.public(), endpoint, networks, keepalive: 0 }
    }

    fn device(&self) -> String {
        format!(
            "pgt{}-{}",
            std::process::id() % 100_000,
            self.namespace.name().rsplit('-').next().unwrap()
        )
    }

    pub(crate) fn config(&self, peers: &[&Host]) -> WireGuardConfig {
        WireGuardConfig {
            private_key: self.key.bytes(),
            public_key: self.key.public(),
            port: PORT,
            peers: peers.iter().map(|peer| peer.peer()).collect(),
        }
    }

    /// Encrypts what goes to `peers`, and nothing goes to the `others`.
    pub(crate) fn encrypt(&self, peers: &[&Host], others: &[&Host]) -> Encrypting {
        let boringtun = Boringtun::start(&self.namespace, &self.device());
        let (programs, kernel, device) = self.namespace.enter(|| self.start(peers, others));
        Encrypting { programs, kernel, device, boringtun }
    }

    fn start(&self, peers: &[&Host], others: &[&Host]) -> (Programs, Kernel, WireGuardDevice) {
        let mut netlink = Netlink::open().unwrap();
        let (mut device, link) = WireGuardDevice::open(&mut netlink, &self.device(), 1420).unwrap();
        device.set(&self.config(peers)).unwrap();
        let programs = Programs::load().unwrap();
        let nodes: Vec<Node> = peers
            .iter()
            .map(|it| it.node(true))
            .chain(others.iter().map(|it| it.node(false)))
            .collect();
        let values = encryption::values(&self.node(false), &nodes);
        programs.set_networks(&values).unwrap();
        let uplink = netlink.link("eth0").unwrap();
        let mac = uplink.mac.unwrap().0;
        let (index, vxlan_port) = (uplink.index, Some(OVERLAY));
        let (device_index, wireguard_port) = (link.index, PORT);
        programs
            .attach(Uplink { index, mac, device: device_index, vxlan_port, wireguard_port })
            .unwrap();
        assert!(programs.are_attached());
        let kernel = Kernel::load(16).unwrap();
        kernel.set_uplink(index, netlink.link("lo").unwrap().index).unwrap();
        // The kernel of the node takes all packets, in the place of a switch.
        let filter = UplinkFilter { vxlan_port, ..UplinkFilter::default() };
        kernel.set_uplink_filter(&filter).unwrap();
        kernel.require_encryption(&values, PORT).unwrap();
        programs.forward_by(kernel.from_device()).unwrap();
        kernel.steer_uplink().unwrap();
        (programs, kernel, device)
    }
}
