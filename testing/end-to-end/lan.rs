//! A network with nodes, two where nothing else is said, and a host outside the cluster, which is their gateway.
//!
//! ```text
//!   node1 192.0.2.1 ─┐
//!   node2 192.0.2.2 ─┼─ bridge
//!   world 192.0.2.9 ─┘   (and 198.51.100.1, 2001:db8:f::1 behind it)
//! ```

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use testkit::{Boringtun, Namespace, RawReceiver, TempDir};

use crate::cluster_node::{ClusterNode, api_server_at, kernel_in_sync};

/// The network, with the folder of manifests that its nodes share.
pub(crate) struct Lan {
    pub(crate) nodes: Vec<ClusterNode>,
    pub(crate) world: Namespace,
    bridge: Namespace,
    manifests: TempDir,
    /// WireGuard devices of the nodes.
    _devices: Vec<Boringtun>,
}

/// The world's addresses that are only reached through its gateway.
pub(crate) const FAR: &str = "198.51.100.1";
pub(crate) const FAR_V6: &str = "2001:db8:f::1";
const WORLD: u8 = 9;

/// The links to the underlay.
#[derive(Clone, Copy)]
struct Links {
    mtu: u32,
    /// Queues of each end of a veth pair, in either direction.
    queues: u8,
    /// True if the nodes' first addresses, which tunnels are between, are of IPv6.
    is_v6: bool,
}

impl Links {
    const PLAIN: Self = Self { mtu: 1500, queues: 1, is_v6: false };
}

impl Lan {
    /// Two nodes with running switches, all with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::with_queues(1, arguments)
    }

    /// The same with so many queues at the nodes' links. (A packet that came to the bridge
    /// by another queue than its first leaves it by the first; the others are spread by flow.)
    pub(crate) fn with_queues(queues: u8, arguments: &[&str]) -> Self {
        // There must be room for the headers of encapsulation.
        let arguments = [&["--uplink", "eth0"], arguments].concat();
        Self::start_as(Links { queues, ..Links::PLAIN }, 1450, &arguments)
    }

    /// The same with an API server on the host outside in place of manifests.
    pub(crate) fn with_api_server() -> Self {
        Self::make(2, Links::PLAIN, 1450, &["--uplink", "eth0"], true, false)
    }

    /// The same with three nodes, one of which watches all pods for the others.
    pub(crate) fn aggregated() -> Self {
        let arguments = ["--uplink", "eth0", "--aggregate", "endpoints"];
        Self::make(3, Links::PLAIN, 1450, &arguments, true, false)
    }

    /// The same with encryption between the nodes, and these further arguments.
    pub(crate) fn encrypted(arguments: &[&str]) -> Self {
        Self::encrypted_as(Links::PLAIN, 1390, arguments)
    }

    /// The same over IPv6.
    pub(crate) fn encrypted_over_v6(arguments: &[&str]) -> Self {
        Self::encrypted_as(Links { is_v6: true, ..Links::PLAIN }, 1350, arguments)
    }

    fn encrypted_as(links: Links, pods: u32, arguments: &[&str]) -> Self {
        let arguments = [&["--uplink", "eth0", "--encryption", "wireguard"], arguments].concat();
        Self::make(2, links, pods, &arguments, true, true)
    }

    /// The same for pods of another CNI plugin.
    pub(crate) fn with_nftables() -> Self {
        Self::start_as(Links::PLAIN, 1450, &["--enforcer", "nftables"])
    }

    /// The same with an underlay and pods of these MTUs.
    pub(crate) fn start_with_mtu(underlay: u32, pods: u32, arguments: &[&str]) -> Self {
        let arguments = [&["--uplink", "eth0"], arguments].concat();
        Self::start_as(Links { mtu: underlay, ..Links::PLAIN }, pods, &arguments)
    }

    fn start_as(links: Links, pods: u32, arguments: &[&str]) -> Self {
        Self::make(2, links, pods, arguments, false, false)
    }

    fn make(
        count: u8,
        links: Links,
        pods: u32,
        arguments: &[&str],
        has_api_server: bool,
        is_encrypted: bool,
    ) -> Self {
        let manifests = TempDir::new("manifests");
        let bridge = Namespace::new("lan");
        ip(&bridge, "link add br0 type bridge");
        ip(&bridge, "link set br0 up");
        let world = Namespace::new("world");
        join(&bridge, &world, WORLD, Links { queues: 1, ..links });
        ip(&world, &format!("address add {FAR}/32 dev lo"));
        ip(&world, &format!("address add {FAR_V6}/128 dev lo"));
        let node = |number: u8| {
            let namespace = Namespace::new("node");
            join(&bridge, &namespace, number, links);
            ip(&namespace, &format!("route add default via 192.0.2.{WORLD}"));
            ip(&namespace, &format!("-6 route add default via 2001:db8::{WORLD}"));
            ClusterNode::among(number, namespace, manifests.path(), arguments)
        };
        let mut nodes: Vec<_> = (1..=count).map(node).collect();
        let encrypted = nodes.iter_mut().filter(|_| is_encrypted);
        let devices = encrypted.flat_map(ClusterNode::make_devices).collect();
        let at = [192, 0, 2, WORLD].into();
        let server = has_api_server.then(|| api_server_at(world.path().to_owned(), at));
        if let Some(server) = &server {
            let metadata = json!({"name": "default"});
            server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        }
        for number in 1..=count {
            let network = 76 + number;
            let mut addresses = [format!("192.0.2.{number}"), format!("2001:db8::{number}")];
            if links.is_v6 {
                addresses.reverse();
            }
            let addresses = addresses.map(|it| json!({"type": "InternalIP", "address": it}));
            let object = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": format!("node{number}")},
                "spec": {"podCIDRs": [format!("10.{network}.0.0/24"), format!("fd{network}::/64")]},
                "status": {"addresses": addresses}});
            match &server {
                Some(server) => server.apply(object),
                None => write(manifests.path(), &format!("node{number}"), &object),
            }
        }
        let server = server.map(|server| Arc::new(Mutex::new(server)));
        for node in &mut nodes {
            node.api_server.clone_from(&server);
            node.mtu.store(pods, std::sync::atomic::Ordering::Relaxed);
            node.start_switch();
        }
        let lan = Self { nodes, world, bridge, manifests, _devices: devices };
        lan.wait_for_neighbours();
        lan
    }

    /// Writes a manifest and waits until every worker of every node decides by it.
    pub(crate) fn apply(&self, name: &str, object: &Value) {
        let known = |node: &ClusterNode| {
            let status = node.status();
            (status["generation"].clone(), status["objects"].clone())
        };
        let before: Vec<_> = self.nodes.iter().map(known).collect();
        write(self.manifests.path(), name, object);
        for (node, before) in self.nodes.iter().zip(before) {
            node.eventually(name, || {
                let status = node.status();
                let in_force = status["generation"] == status["generation_in_force"];
                let in_sync = kernel_in_sync(&status);
                (in_force && in_sync && known(node) != before).then_some(())
            });
        }
    }

    /// Takes a node's link away and gives it another one.
    pub(crate) fn replace_link(&self, number: u8, queues: u8) {
        ip(&self.bridge, &format!("link delete port{number}"));
        join(
            &self.bridge,
            &self.nodes[usize::from(number) - 1].namespace,
            number,
            Links { queues, ..Links::PLAIN },
        );
    }

    /// Writes a manifest, for nodes that may not run.
    pub(crate) fn write(&self, name: &str, object: &Value) {
        write(self.manifests.path(), name, object);
    }

    /// Captures what the nodes send from now on.
    pub(crate) fn capture(&self) -> [RawReceiver; 2] {
        let open = |port: &str| self.bridge.enter(|| RawReceiver::open(port).unwrap());
        ["port1", "port2"].map(open)
    }

    /// Counts UDP datagrams to a port on the underlay, from now on.
    pub(crate) fn count_datagrams(&self, port: u16) {
        let chain = "chain c { type filter hook forward priority 0; }";
        self.bridge.exec(["nft", &format!("table bridge count {{ {chain}; }}")]);
        let rule = format!("meta protocol {{ ip, ip6 }} udp dport {port} counter");
        self.bridge.exec(["nft", &format!("add rule bridge count c {rule}")]);
    }

    /// The datagrams counted.
    pub(crate) fn datagrams(&self) -> u64 {
        let list = self.bridge.exec(["nft", "list", "table", "bridge", "count"]);
        let count = list.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{list}"))
    }

    /// Next hops are resolved at the first use; packets before that are lost.
    fn wait_for_neighbours(&self) {
        for (node, other) in [(0, 2), (1, 1)] {
            let node = &self.nodes[node];
            for number in [other, WORLD] {
                for address in [format!("192.0.2.{number}"), format!("2001:db8::{number}")] {
                    node.namespace.exec(["ping", "-c", "1", "-W", "5", &address]);
                }
            }
        }
    }
}

fn write(folder: &Path, name: &str, object: &Value) {
    let hidden = folder.join(format!(".{name}"));
    std::fs::write(&hidden, object.to_string()).unwrap();
    std::fs::rename(hidden, folder.join(format!("{name}.yaml"))).unwrap();
}

pub(crate) fn ip(namespace: &Namespace, words: &str) {
    namespace.exec(std::iter::once("ip").chain(words.split(' ')));
}

/// Gives a namespace an `eth0` on the bridge.
fn join(bridge: &Namespace, namespace: &Namespace, number: u8, links: Links) {
    let Links { mtu, queues, .. } = links;
    let end = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    let namespace_name = namespace.name();
    ip(namespace, "link set lo up");
    ip(
        bridge,
        &format!(
            "link add port{number} {end} type veth peer name eth0 netns {namespace_name} {end}"
        ),
    );
    ip(bridge, &format!("link set port{number} master br0 up"));
    ip(namespace, "link set eth0 up");
    ip(namespace, &format!("address add 192.0.2.{number}/24 dev eth0"));
    ip(namespace, &format!("address add 2001:db8::{number}/64 dev eth0 nodad"));
}
