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
use dataplane::port::af_xdp::{AfXdpPort, UplinkFilter};
use dataplane::switch::RxMode;
use dataplane::wire::vxlan::Vxlan;
use dataplane::{AclBinding, Parts, Peer, PortId, PortKind, PortState, Routes, Underlay};
use linux_net::{MacAddress, Netlink, punt};
use testkit::{Boringtun, Namespace, Process};

use crate::forwarder::own_path;
use crate::rig::{self, PATIENCE, filled, kernel, offload, put_in_force, run, words};
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
        let wires = [1, 2].map(|number| format!("wire mtu {MTU} address {}", mac("wire", number)));
        nodes[0].exec(words(&format!(
            "ip link add {} type veth peer name {} netns {}",
            wires[0],
            wires[1],
            nodes[1].name()
        )));
        let pod_mtu = match self {
            Self::Encrypted | Self::WireGuard => MTU - u32::from(encryption::overhead(false)),
            _ if tunnel => MTU - Vxlan::overhead(true) as u32,
            _ => MTU,
        };
        for (number, (node, pod)) in (1..).zip(nodes.iter().zip(&pods)) {
            let (gateway, own, address) =
                (mac("pga", number), mac("eth0", number), pod_address(number));
            let name = pod.name();
            let commands = format!(
                "ip addr add 192.0.2.{number}/24 dev wire
                 ip link set wire up
                 ip link add pga mtu {pod_mtu} address {gateway} type veth \
                 peer name eth0 mtu {pod_mtu} address {own} netns {name}
                 ip link set pga up"
            );
            run(node, &commands);
            let commands = format!(
                "tc qdisc add dev eth0 root pfifo
                 ip link set eth0 up
                 ip addr add {address}/32 dev eth0
                 ip neigh add 169.254.1.1 lladdr {gateway} dev eth0
                 ip route add default via 169.254.1.1 dev eth0 onlink"
            );
            run(pod, &commands);
            if self == Self::Podgate {
                pod.try_exec(words("ethtool -K eth0 tx off sg off tso off gso off gro off"));
            }
        }
        let (mut switches, mut devices) = (Vec::new(), Vec::new());
        for (number, node) in (1..).zip(&nodes) {
            if matches!(self, Self::Encrypted | Self::WireGuard) {
                devices.extend(sealed::serve(node, number));
            }
            let mode = match self {
                Self::Kernel => {
                    route(node, number, tunnel.then_some("tunnel"));
                    continue;
                }
                Self::WireGuard => {
                    let opened =
                        || sealed::open(number, MTU).map(drop).map_err(|it| it.to_string());
                    node.enter(opened)?;
                    route(node, number, Some(&sealed::name(number)));
                    continue;
                }
                Self::Encrypted => "encrypted",
                Self::Offload => "offload",
                Self::Podgate => "switch",
            };
            let underlay = if tunnel { "vxlan" } else { "routed" };
            let number = number.to_string();
            let switch = node.spawn([own_path()?.as_str(), "node", &number, mode, underlay]);
            switch.wait_for_line("in force", PATIENCE);
            switches.push(switch);
        }
        Ok(Nodes { _switches: switches, pods, _devices: devices, _nodes: nodes })
    }
}

/// The MAC address of an interface that belongs to a node, 1 or 2.
fn mac(interface: &str, number: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, interface.as_bytes()[0], number as u8])
}

/// Makes the kernel of a node route, over a device or the wire.
fn route(node: &Namespace, number: usize, device: Option<&str>) {
    let (other, own, pod) = (3 - number, pod_address(number), mac("eth0", number));
    let Vxlan { network, port, .. } = OVERLAY;
    let way = match device {
        Some("tunnel") => format!(
            "ip link add tunnel address 02:00:00:00:07:0{number} type vxlan id {network} \
             dstport {port} local 192.0.2.{number} remote 192.0.2.{other} dev wire nolearning
             ip link set tunnel up
             ip route add 10.88.{other}.0/24 via 10.88.{other}.1 dev tunnel onlink
             ip neigh add 10.88.{other}.1 lladdr 02:00:00:00:07:0{other} dev tunnel"
        ),
        Some(device) => format!("ip route add 10.88.{other}.0/24 dev {device}"),
        None => format!("ip route add 10.88.{other}.0/24 via 192.0.2.{other} dev wire"),
    };
    let commands = format!(
        "sysctl -qw net.ipv4.ip_forward=1
         ip route add {own}/32 dev pga
         ip neigh add {own} lladdr {pod} dev pga
         {way}"
    );
    run(node, &commands);
}

/// Runs if the program was started by [`Between::start`]: the switch of a node, until killed.
pub fn is_node(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, arguments @ ..] if word == "node" => Some(serve(arguments)),
        _ => None,
    }
}

fn serve(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [number, mode, underlay] = arguments else {
        return Err("a node has three arguments".into());
    };
    let number = number.parse::<usize>()?;
    let underlay = match underlay.as_str() {
        "vxlan" => Underlay::Overlay(OVERLAY),
        _ => Underlay::Routed,
    };
    let (umem, switch) = rig::switch(RxMode::Adaptive, Vec::new())?;
    let filter = UplinkFilter {
        vxlan_port: matches!(underlay, Underlay::Overlay(_)).then_some(OVERLAY.port),
        node_addresses: [node(number)?].into(),
        pod_networks: [format!("10.88.{number}.0/24").parse()?].into(),
        ..UplinkFilter::default()
    };
    let mut netlink = Netlink::open()?;
    let wire = netlink.link("wire")?;
    let open = |interface: &str| umem.open(interface, &filled());
    let (mut running, mut uplink, mut sealed) = (None, None, None);
    if mode != "switch" {
        let kernel = kernel(&umem, &switch)?;
        let uplinks = punt::set_up_uplink(1, linux_net::MAX_MTU)?;
        let port = kernel.uplink_queue(Box::new(open(punt::UPLINK_SWITCH_END)?));
        switch.add_port(UPLINK, port);
        kernel.set_uplink(wire.index, uplinks.kernel.index)?;
        kernel.set_uplink_filter(&filter)?;
        if mode == "encrypted" {
            sealed = Some(sealed::seal(number, &wire, MTU, &kernel)?);
        }
        kernel.steer_uplink()?;
        for end in [&uplinks.kernel, &uplinks.switch] {
            netlink.set_up(end.index)?;
        }
        let offload = offload(kernel, &switch, &[(POD, "pga", mac("eth0", number).0)])?;
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
    put_in_force(&switch, running.as_ref(), parts(number, underlay)?)?;
    let _kept = (running, uplink, sealed);
    loop {
        std::thread::park();
    }
}

/// The address of a node.
fn node(number: usize) -> Result<IpAddr, Box<dyn Error>> {
    Ok(format!("192.0.2.{number}").parse()?)
}

fn parts(number: usize, underlay: Underlay) -> Result<Parts, Box<dyn Error>> {
    let (other, mtu) = (3 - number, MTU as u16);
    let address: IpAddr = pod_address(number).parse()?;
    let pod = PortState {
        mac: Some(mac("eth0", number).0),
        addresses: vec![address.into()],
        to_pod: AclBinding::Open,
        from_pod: AclBinding::Open,
        mtu,
        ..PortState::new("pod", PortKind::Pod)
    };
    let own_mac = mac("wire", number).0;
    let uplink = PortState { own_mac, mtu, ..PortState::new("uplink", PortKind::Uplink) };
    let peer: Address = node(other)?.into();
    let routes = Routes::new(vec![Peer {
        name: format!("node{other}"),
        addresses: vec![peer],
        networks: vec![format!("10.88.{other}.0/24").parse()?],
        endpoint: peer,
        next_hop: Some(mac("wire", other).0),
        least_hop_limit: 255,
        ..Peer::default()
    }]);
    Ok(Parts {
        generation: 1,
        ports: vec![Some(pod), Some(uplink)],
        node_addresses: vec![node(number)?],
        local_networks: vec![format!("10.88.{number}.0/24").parse()?],
        routes: Arc::new(routes),
        underlay,
        ..Parts::default()
    })
}
