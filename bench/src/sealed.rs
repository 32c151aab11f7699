//! A WireGuard device on each of two nodes: the kernel's, or boringtun's where it has none.

use std::error::Error;

use encryption::{Node, PrivateKey, Programs, Uplink, overhead, values};
use flow_offload::Kernel;
use linux_net::{Link, Netlink, WireGuardConfig, WireGuardDevice, WireGuardPeer};
use testkit::{Boringtun, Namespace};

use crate::rig::words;

/// Private keys of the nodes, which encrypt nothing of worth.
const KEYS: [&str; 2] = [
    "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
    "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
];
const PORT: u16 = 51871;

/// The device of a node, 1 or 2.
pub(crate) fn name(number: usize) -> String {
    format!("benchwg{number}")
}

/// The program that serves the device, unless the kernel does.
pub(crate) fn serve(node: &Namespace, number: usize) -> Option<Boringtun> {
    let name = name(number);
    let made = node.try_exec(words(&format!("ip link add {name} type wireguard")));
    (!made.status.success()).then(|| Boringtun::start(node, &name))
}

/// Configures the device in this network namespace, for an uplink of this MTU.
pub(crate) fn open(number: usize, mtu: u32) -> Result<(WireGuardDevice, Link), Box<dyn Error>> {
    let key = |number: usize| PrivateKey::parse(KEYS[number - 1]).ok_or("no key");
    let (own, other) = (key(number)?, 3 - number);
    let node = node(other)?;
    let address = node.addresses[0];
    let peer = WireGuardPeer {
        public_key: key(other)?.public(),
        endpoint: (address, PORT).into(),
        networks: [address.into()].into_iter().chain(node.networks).collect(),
        keepalive: 0,
    };
    let config = WireGuardConfig {
        private_key: own.bytes(),
        public_key: own.public(),
        port: PORT,
        peers: vec![peer],
    };
    let mtu = mtu - u32::from(overhead(false));
    let (mut device, link) = WireGuardDevice::open(&mut Netlink::open()?, &name(number), mtu)?;
    device.set(&config)?;
    Ok((device, link))
}

/// Sends what the switch of this network namespace says to the other node through the device.
pub(crate) fn seal(
    number: usize,
    wire: &Link,
    mtu: u32,
    kernel: &Kernel,
) -> Result<Programs, Box<dyn Error>> {
    let (_, link) = open(number, mtu)?;
    let networks = values(&node(number)?, [&Node { has_peer: true, ..node(3 - number)? }]);
    let programs = Programs::load()?;
    programs.set_networks(&networks)?;
    programs.attach(Uplink {
        index: wire.index,
        mac: wire.mac.ok_or("the wire has no MAC address")?.0,
        device: link.index,
        vxlan_port: None,
        wireguard_port: PORT,
    })?;
    kernel.require_encryption(&networks, PORT)?;
    programs.forward_by(kernel.from_device())?;
    Ok(programs)
}

fn node(number: usize) -> Result<Node, Box<dyn Error>> {
    Ok(Node {
        addresses: vec![format!("192.0.2.{number}").parse()?],
        networks: vec![format!("10.88.{number}.0/24").parse()?],
        ..Node::default()
    })
}
