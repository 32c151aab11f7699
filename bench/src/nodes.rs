//! Two nodes with a pod each, joined by a veth pair, and what forwards between them.
//!
//! ```text
//!   pod 10.88.1.2 ── pga, node 192.0.2.1, wire ── wire, node 192.0.2.2, pga ── pod 10.88.2.2
//! ```

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Address;
use dataplane::port::Port;
use dataplane::port::af_xdp::{AfXdpPort, Umem, UmemConfig, UplinkFilter};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::Mac;
use dataplane::wire::vxlan::Vxlan;
use dataplane::{AclBinding, Parts, Peer, PortId, PortKind, PortState, Routes, Switch, Underlay};
use linux_net::{Netlink, punt};
use testkit::{Boringtun, Namespace, Process};

use crate::forwarder::own_path;
use crate::rig::{PATIENCE, filled, kernel, mac, mac_of, offload, put_in_force, words};
use crate::sealed;

/// A forwarder between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// This switch with flow offload.
    Offload,
    /// The kernel's router, with its VXLAN device where there is a tunnel.
    Kernel,
    /// This switch with AF_XDP ports.
    Podgate,
    /// As `Offload`, over WireGuard devices; routed alone.
    Encrypted,
    /// The kernel's routes into WireGuard devices; routed alone.
    WireGuard,
}

/// The parameters of the tunnel, if there is one.
const OVERLAY: Vxlan = Vxlan { network: 7, port: 4789, group: false };
/// MTU of the link between the nodes.
const MTU: u32 = 1500;
const POD: PortId = PortId(0);
const UPLINK: PortId = PortId(1);
const TRUNK: PortId = PortId(2);

/// The nodes with what runs on them, until this is dropped.
pub struct Nodes {
    /// The switches; they end before their network does.
    _switches: Vec<Process>,
    /// The pods, each on `eth0`.
    pub pods: [Namespace; 2],
    _devices: Vec<Boringtun>,
    _nodes: [Namespace; 2],
}

/// The address of the pod on a node, 1 or 2.
pub fn pod_address(node: usize) -> String {
    format!("10.88.{node}.2")
}

impl Between {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Offload => "podgate, flow offload",
            Self::Kernel => "the kernel",
            Self::Podgate => "podgate",
            Self::Encrypted => "podgate, encrypted",
            Self::WireGuard => "WireGuard alone",
        }
    }

    /// Makes the nodes, in a tunnel or routed, and starts what forwards.
    pub fn start(self, tunnel: bool) -> Result<Nodes, Box<dyn Error>> {
        let nodes = [Namespace::new("bench-node1"), Namespace::new("bench-node2")];
        let pods = [Namespace::new("bench-a"), Namespace::new("bench-b")];
        let other = nodes[1].name();
        nodes[0].exec(words(&format!(
            "ip link add wire mtu {MTU} type veth peer name wire mtu {MTU} netns {other}"
        )));
        let pod_mtu = match self {
            Self::Encrypted | Self::WireGuard => MTU - u32::from(encryption::overhead(false)),
            _ if tunnel => MTU - Vxlan::overhead(true) as u32,
            _ => MTU,
        };
        let mut devices = Vec::new();
        for (n, (node, pod)) in nodes.iter().zip(&pods).enumerate() {
            let number = n + 1;
            node.exec(words("ip link set lo up"));
            node.exec(words(&format!("ip addr add 192.0.2.{number}/24 dev wire")));
            node.exec(words("ip link set wire up"));
            node.exec(words(&format!(
                "ip link add pga mtu {pod_mtu} type veth peer name eth0 mtu {pod_mtu} netns {}",
                pod.name()
            )));
            node.exec(words("ip link set pga up"));
            pod.exec(words("tc qdisc add dev eth0 root pfifo"));
            pod.exec(words("ip link set eth0 up"));
            pod.exec(words(&format!("ip addr add {}/32 dev eth0", pod_address(number))));
            let gateway = mac_of(node, "pga");
            pod.exec(words(&format!("ip neigh add 169.254.1.1 lladdr {gateway} dev eth0")));
            pod.exec(words("ip route add default via 169.254.1.1 dev eth0 onlink"));
            if self == Self::Podgate {
                pod.try_exec(words("ethtool -K eth0 tx off sg off tso off gso off gro off"));
            }
        }
        let mut switches = Vec::new();
        for (n, node) in nodes.iter().enumerate() {
            let next_hop = mac_of(&nodes[1 - n], "wire");
            let pod = mac_of(&pods[n], "eth0");
            if matches!(self, Self::Encrypted | Self::WireGuard) {
                devices.extend(sealed::serve(node, n + 1));
            }
            if self == Self::WireGuard {
                let opened = || sealed::open(n + 1, MTU).map(drop).map_err(|it| it.to_string());
                node.enter(opened)?;
            }
            let mode = match self {
                Self::Kernel => {
                    route(node, n + 1, &pod, tunnel.then_some("tunnel"));
                    continue;
                }
                Self::WireGuard => {
                    route(node, n + 1, &pod, Some(&sealed::name(n + 1)));
                    continue;
                }
                Self::Encrypted => "encrypted",
                Self::Offload => "offload",
                Self::Podgate => "switch",
            };
            let (own, number) = (own_path()?, (n + 1).to_string());
            let underlay = if tunnel { "vxlan" } else { "routed" };
            let switch =
                node.spawn([own.as_str(), "node", &number, mode, underlay, &pod, &next_hop]);
            switch.wait_for_line("in force", PATIENCE);
            switches.push(switch);
        }
        Ok(Nodes { _switches: switches, pods, _devices: devices, _nodes: nodes })
    }
}

/// Makes the kernel of a node route, over a device or the wire.
fn route(node: &Namespace, number: usize, pod: &str, device: Option<&str>) {
    let (other, own) = (3 - number, pod_address(number));
    node.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    let mut lines = vec![
        format!("ip route add {own}/32 dev pga"),
        format!("ip neigh add {own} lladdr {pod} dev pga"),
    ];
    let Vxlan { network, port, .. } = OVERLAY;
    lines.extend(match device {
        Some("tunnel") => vec![
            format!(
                "ip link add tunnel address 02:00:00:00:07:0{number} type vxlan id {network} \
                 dstport {port} local 192.0.2.{number} remote 192.0.2.{other} dev wire nolearning"
            ),
            "ip link set tunnel up".to_owned(),
            format!("ip route add 10.88.{other}.0/24 via 10.88.{other}.1 dev tunnel onlink"),
            format!("ip neigh add 10.88.{other}.1 lladdr 02:00:00:00:07:0{other} dev tunnel"),
        ],
        Some(device) => vec![format!("ip route add 10.88.{other}.0/24 dev {device}")],
        None => vec![format!("ip route add 10.88.{other}.0/24 via 192.0.2.{other} dev wire")],
    });
    lines.iter().for_each(|line| drop(node.exec(words(line))));
}

/// Runs if the program was started by [`Between::start`]: the switch of a node, until killed.
pub fn is_node(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, arguments @ ..] if word == "node" => Some(serve(arguments)),
        _ => None,
    }
}

fn serve(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [number, mode, underlay, pod_mac, next_hop] = arguments else {
        return Err("a node has five arguments".into());
    };
    let (number, pod_mac, next_hop) = (number.parse::<usize>()?, mac(pod_mac)?, mac(next_hop)?);
    let underlay = match underlay.as_str() {
        "vxlan" => Underlay::Overlay(OVERLAY),
        _ => Underlay::Routed,
    };
    let (umem, memory, frames) = Umem::create(&UmemConfig { frames: 16384, hugepages: false })?;
    let config = Config { rx_mode: RxMode::Adaptive, ..Config::default() };
    let switch = Arc::new(Switch::start(&config, &memory, frames, |_| None)?);
    let other = 3 - number;
    let node = |number: usize| -> Result<IpAddr, Box<dyn Error>> {
        Ok(format!("192.0.2.{number}").parse()?)
    };
    let (own, peer) = (node(number)?, node(other)?);
    let filter = UplinkFilter {
        vxlan_port: matches!(underlay, Underlay::Overlay(_)).then_some(OVERLAY.port),
        node_addresses: [own].into(),
        pod_networks: [format!("10.88.{number}.0/24").parse()?].into(),
        ..UplinkFilter::default()
    };
    let mut netlink = Netlink::open()?;
    let wire = netlink.link("wire")?;
    let own_mac = wire.mac.ok_or("the wire has no MAC address")?.0;
    let open = |interface: &str| umem.open(interface, &filled());
    let (mut running, mut uplink, mut sealed) = (None, None, None);
    if mode != "switch" {
        let (kernel, link) = kernel(&umem, &switch, TRUNK)?;
        let uplinks = punt::set_up_uplink(1, linux_net::MAX_MTU)?;
        let port = kernel.uplink_queue(Box::new(open(punt::UPLINK_SWITCH_END)?));
        switch.add_port(UPLINK, port);
        kernel.set_uplink(wire.index, uplinks.kernel.index)?;
        kernel.set_uplink_filter(&filter)?;
        if mode == "encrypted" {
            sealed = Some(sealed::seal(number, &wire, MTU, &kernel)?);
        }
        kernel.steer_uplink()?;
        for end in [&link.kernel, &link.switch, &uplinks.kernel, &uplinks.switch] {
            netlink.set_up(end.index)?;
        }
        let offload = offload(kernel, &switch, TRUNK, &[(POD, "pga", pod_mac)])?;
        offload.add_wire(UPLINK, wire.index);
        running = Some(offload);
    } else {
        switch.add_port(POD, Box::new(open("pga")?));
        let (mut program, ports) = umem.open_uplink("wire", 2048)?;
        program.set(&filter)?;
        let ports = ports.into_iter().map(|port: AfXdpPort| Box::new(port) as Box<dyn Port>);
        switch.add_queues(UPLINK, ports.collect());
        uplink = Some(program);
    }
    let parts = parts(number, underlay, (own, own_mac), (peer, next_hop), pod_mac)?;
    put_in_force(&switch, running.as_ref(), parts)?;
    let _kept = (running, uplink, sealed);
    loop {
        std::thread::park();
    }
}

fn parts(
    number: usize,
    underlay: Underlay,
    (own, own_mac): (IpAddr, Mac),
    (peer, next_hop): (IpAddr, Mac),
    pod_mac: Mac,
) -> Result<Parts, Box<dyn Error>> {
    let other = 3 - number;
    let mtu = MTU as u16;
    let address: IpAddr = pod_address(number).parse()?;
    let pod = PortState {
        mac: Some(pod_mac),
        addresses: vec![address.into()],
        to_pod: AclBinding::Open,
        from_pod: AclBinding::Open,
        mtu,
        ..PortState::new("pod", PortKind::Pod)
    };
    let uplink = PortState { own_mac, mtu, ..PortState::new("uplink", PortKind::Uplink) };
    let peer: Address = peer.into();
    let routes = Routes::new(vec![Peer {
        name: format!("node{other}"),
        addresses: vec![peer],
        networks: vec![format!("10.88.{other}.0/24").parse()?],
        endpoint: peer,
        next_hop: Some(next_hop),
        least_hop_limit: 255,
        ..Peer::default()
    }]);
    Ok(Parts {
        generation: 1,
        ports: vec![Some(pod), Some(uplink)],
        node_addresses: vec![own],
        local_networks: vec![format!("10.88.{number}.0/24").parse()?],
        routes: Arc::new(routes),
        underlay,
        ..Parts::default()
    })
}
