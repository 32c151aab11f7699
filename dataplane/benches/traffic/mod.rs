//! Traffic of benchmarks and instruction counts: numbered connections between pods, and the
//! snapshot they meet.
//!
//! Half of the pods are clients, the other half servers; the `n`th client opens connections to the
//! `n`th server. Every pod has a MAC address, an MTU of 1500 and a port of its own; uplink and host
//! port follow. Each server is behind the same ACL.

use std::net::IpAddr;
use std::sync::Arc;

use acl::{Action, Address, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{Mac, checksum, protocol};
use dataplane::{
    AclBinding, Frame, Memory, Packet, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot,
    StagedAcls, Underlay,
};
use ipnet::IpNet;

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UDP over IPv4, from pod to pod.
    Udp,
    /// TCP, data segments of a connection that is there already.
    Tcp,
    /// UDP over IPv6.
    Ipv6,
    /// UDP to a ClusterIP, translated to a server's address.
    ClusterIp,
    /// UDP to a pod of another node, into a VXLAN tunnel.
    TunnelOut,
    /// UDP from a pod of another node, out of a VXLAN tunnel.
    TunnelIn,
    /// UDP from a pod of another node, as it is.
    Uplink,
}

/// Rules about connections to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// A rule for each of its ports.
    Ports(u16),
    /// A rule for each pair of a peer set and one of ten ports; packets come by the uplink.
    Peers(u16),
}

/// Ports that the rules of a peer set are about, and addresses in a set.
const PORTS: u16 = 10;
const PEERS: u16 = 8;

const CLIENT_PORTS: u32 = 60_000;
const CLUSTER_IP: u32 = 0x0a60_0001;
const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: false };
/// Bytes in front of the packet in a tunnel.
const FRONT: usize = Vxlan::front(true);

/// Connections and the snapshot they meet.
pub(crate) struct Traffic {
    kind: Kind,
    rules: Rules,
    /// Clients, and as many servers.
    pairs: u32,
    frame: Vec<u8>,
}

impl Traffic {
    /// Traffic between this number of pods.
    pub(crate) fn new(kind: Kind, rules: Rules, pods: u32) -> Self {
        let udp = |from: &str, to: &str| testkit::packet::udp(from, to).payload(&[0; 22]).build();
        let frame = match kind {
            Kind::Tcp => {
                testkit::packet::tcp("10.1.0.2:1", "10.1.0.3:1").data(&[0; 10]).ack().build()
            }
            Kind::Ipv6 => udp("[fd01::2]:1", "[fd01::3]:1"),
            Kind::TunnelIn => {
                let inner = udp("10.2.0.2:1", "10.1.0.3:1");
                let header = [&[8, 0, 0, 0][..], &(OVERLAY.network << 8).to_be_bytes()].concat();
                testkit::packet::udp("192.0.2.2:49999", &format!("192.0.2.1:{}", OVERLAY.port))
                    .ttl(255)
                    .payload(&[&header[..], &inner].concat())
                    .build()
            }
            _ => udp("10.1.0.2:1", "10.1.0.3:1"),
        };
        Self { kind, rules, pairs: (pods / 2).max(1), frame }
    }

    /// Whether packets are TCP segments.
    #[allow(dead_code, reason = "of no interest to some programs with this module")]
    pub(crate) fn is_tcp(&self) -> bool {
        self.kind == Kind::Tcp
    }

    /// The port that packets of the `n`th connection come in by.
    fn in_port(&self, n: u32) -> PortId {
        match (self.kind, self.rules) {
            (Kind::TunnelIn | Kind::Uplink, _) | (_, Rules::Peers(_)) => self.uplink(),
            _ => PortId((n % self.pairs) as u16),
        }
    }

    /// Ports of the snapshot: pods, uplink, host.
    pub(crate) fn ports(&self) -> u16 {
        2 * self.pairs as u16 + 2
    }

    fn uplink(&self) -> PortId {
        PortId(2 * self.pairs as u16)
    }

    /// A packet of the `n`th connection in this frame; `opens` for its first one.
    pub(crate) fn packet(&self, memory: &Memory, mut frame: Frame, n: u32, opens: bool) -> Packet {
        self.write(memory, &mut frame, n, opens);
        Packet::new(frame, self.in_port(n))
    }

    /// Writes a packet of the `n`th connection.
    pub(crate) fn write(&self, memory: &Memory, frame: &mut Frame, n: u32, opens: bool) {
        assert!(memory.fill(frame, &self.frame), "frames are long enough");
        let bytes = memory.bytes_mut(frame);
        let (client, m) = (n % self.pairs, n / self.pairs);
        let client_port = 1 + m % CLIENT_PORTS;
        let (source, server_port) = match self.rules {
            Rules::Ports(ports) => {
                let is_remote = matches!(self.kind, Kind::TunnelIn | Kind::Uplink);
                let source = if is_remote { remote(client) } else { local(client) };
                (source, 1 + m / CLIENT_PORTS % u32::from(ports))
            }
            Rules::Peers(rules) => {
                let source = remote(n % u32::from(rules / PORTS * PEERS));
                (source, 1 + (n >> 16) % u32::from(PORTS))
            }
        };
        let destination = match self.kind {
            Kind::ClusterIp => CLUSTER_IP,
            Kind::TunnelOut => remote(client),
            _ => local(self.pairs + client),
        };
        let start = if self.kind == Kind::TunnelIn { FRONT } else { 0 };
        let bytes = &mut bytes[start..];
        bytes[6..12].copy_from_slice(&mac(client));
        let l4 = if self.kind == Kind::Ipv6 {
            bytes[34..38].copy_from_slice(&source.to_be_bytes());
            bytes[50..54].copy_from_slice(&destination.to_be_bytes());
            54
        } else {
            bytes[24..26].fill(0);
            bytes[26..30].copy_from_slice(&source.to_be_bytes());
            bytes[30..34].copy_from_slice(&destination.to_be_bytes());
            let sum = !checksum::fold(checksum::sum(&bytes[14..34]));
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            34
        };
        bytes[l4..l4 + 2].copy_from_slice(&(client_port as u16).to_be_bytes());
        bytes[l4 + 2..l4 + 4].copy_from_slice(&(server_port as u16).to_be_bytes());
        if opens && self.kind == Kind::Tcp {
            bytes[l4 + 13] = dataplane::wire::tcp_flags::SYN;
        }
    }

    /// The snapshot whose rules do this with every connection; with staged ones that do the same if
    /// `is_staged`.
    pub(crate) fn snapshot(&self, action: Action, is_staged: bool) -> Snapshot {
        let mut sets = AddressMapBuilder::default();
        let list: Arc<[Rule]> = self.rules(action, &mut sets).into();
        let map = Arc::new(sets.build());
        let compile = || AclBinding::Table(Arc::new(Table::compile(Arc::clone(&list), &map)));
        let table = compile();
        let staged = is_staged
            .then(|| Arc::new(StagedAcls { to_pod: compile(), from_pod: AclBinding::Open }));
        let pod = |n: u32| {
            let is_server = n >= self.pairs;
            Some(PortState {
                addresses: vec![Address::from_v4_bits(local(n)), v6(local(n))],
                to_pod: if is_server { table.clone() } else { AclBinding::Open },
                from_pod: AclBinding::Open,
                staged: staged.clone().filter(|_| is_server),
                mac: Some(mac(n)),
                mtu: 1500,
                ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
            })
        };
        let other = |kind: PortKind, n| {
            let name = kind.name();
            Some(PortState { mac: Some(mac(n)), mtu: 1500, ..PortState::new(name, kind) })
        };
        let mut ports: Vec<_> = (0..2 * self.pairs).map(pod).collect();
        ports.push(other(PortKind::Uplink, 1 << 20));
        ports.push(other(PortKind::Host, 1 << 21));
        let peer = Peer {
            name: "node2".to_owned(),
            addresses: vec![ip("192.0.2.2").into()],
            networks: vec!["10.2.0.0/16".parse().expect("a network")],
            endpoint: ip("192.0.2.2").into(),
            next_hop: Some([2, 0, 0, 0, 2, 2]),
            ..Peer::default()
        };
        let is_tunnel = matches!(self.kind, Kind::TunnelIn | Kind::TunnelOut);
        Snapshot::new(Parts {
            generation: 1,
            ports,
            addresses: map,
            node_addresses: vec![ip("192.0.2.1")],
            local_networks: vec![
                "10.1.0.0/16".parse().expect("a network"),
                "fd01::/64".parse().expect("a network"),
            ],
            services: Arc::new(self.services()),
            routes: Arc::new(Routes::new(vec![peer])),
            underlay: if is_tunnel { Underlay::Overlay(OVERLAY) } else { Underlay::Routed },
            ..Parts::default()
        })
    }

    /// The rules of each server; the peer sets they name are added to `sets`.
    pub(crate) fn rules(&self, action: Action, sets: &mut AddressMapBuilder) -> Vec<Rule> {
        let rule = |port: u16, source: End| {
            let protocol = if self.kind == Kind::Tcp { protocol::TCP } else { protocol::UDP };
            Rule::new(action, format!("port {port}"))
                .source(source)
                .protocol(protocol)
                .destination_ports(PortRange::one(port))
        };
        let mut add = |set| {
            let nets = self.members(set).into_iter();
            sets.add(set, nets.map(|net| Block { net, except: vec![] }));
        };
        let mut list: Vec<Rule> = match self.rules {
            Rules::Ports(count) => {
                add(PeerSetId(0));
                (1..=count).map(|port| rule(port, End::Set(PeerSetId(0)))).collect()
            }
            Rules::Peers(count) => (0..count)
                .map(|n| {
                    let set = PeerSetId(u32::from(n / PORTS));
                    if n % PORTS == 0 {
                        add(set);
                    }
                    rule(1 + n % PORTS, End::Set(set))
                })
                .collect(),
        };
        list.push(Rule::new(Action::Deny, "the rest"));
        list
    }

    /// The networks in a peer set: all clients, or some addresses.
    pub(crate) fn members(&self, set: PeerSetId) -> Vec<IpNet> {
        if let Rules::Ports(_) = self.rules {
            let clients = if self.kind == Kind::Ipv6 { "fd01::/64" } else { "10.0.0.0/8" };
            return vec![clients.parse().expect("a network")];
        }
        let first = set.0 * u32::from(PEERS);
        let address = |n| Address::from_v4_bits(remote(n)).to_ip();
        (first..first + u32::from(PEERS)).map(|n| address(n).into()).collect()
    }

    /// Addresses of the servers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (Address, Mac)> + use<> {
        (self.pairs..2 * self.pairs).map(|n| (Address::from_v4_bits(local(n)), mac(n)))
    }

    /// A service of each port, with every server behind it.
    fn services(&self) -> Services {
        let mut services = Services::default();
        let (Kind::ClusterIp, Rules::Ports(ports)) = (self.kind, self.rules) else {
            return services;
        };
        let address = Address::from_v4_bits(CLUSTER_IP);
        services.claim(address);
        for port in 1..=ports {
            let backend = |(address, _)| Backend { address, port };
            let backends = Backends::new(self.servers().map(backend).collect());
            let port_of_all = Arc::new(ServicePort {
                name: "default/server:udp".into(),
                internal: backends.clone(),
                any: backends.clone(),
                external: backends,
                affinity_s: None,
            });
            let entry = Entry { port: port_of_all, scope: Scope::Cluster };
            services.add(address, protocol::UDP, port, entry);
        }
        services
    }
}

/// A queue of a port that has packets at any time, and takes whatever leaves.
pub(crate) struct Queue<G> {
    /// Packets that it has at a time, at most.
    pub(crate) burst: usize,
    /// Writes packets into frames, and returns how many.
    pub(crate) generate: G,
}

impl<G: FnMut(&Memory, &mut [Frame]) -> usize + Send> Port for Queue<G> {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let from = frames.len();
        buffers.free.take_many(most.min(self.burst), frames);
        let made = (self.generate)(buffers.memory, &mut frames[from..]);
        frames.drain(from + made..).for_each(|frame| buffers.free.put(frame));
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        buffers.free.put_all(frames);
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

/// The address of a pod here; behind `fd01::` for IPv6.
fn local(n: u32) -> u32 {
    0x0a01_0002 + n
}

/// The address of a pod on another node.
fn remote(n: u32) -> u32 {
    0x0a02_0002 + n
}

fn v6(bits: u32) -> Address {
    Address::from_bits(0xfd01 << 112 | u128::from(bits))
}

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    [2, 1, a, b, c, d]
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
