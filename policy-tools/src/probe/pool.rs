//! Addresses for what manifests leave without one.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use control::Object;
use ipnet::IpNet;

/// The purpose of an address.
#[derive(Clone, Copy)]
pub(super) enum Use {
    /// A pod.
    Pod,
    /// A node.
    Node,
    /// A service.
    Service,
}

/// Networks that invented pod addresses come from: the first of the wanted family that no
/// node's pod networks touch. The first is what many installers begin with.
const POD_NETWORKS: [&str; 5] =
    ["10.244.0.0/16", "172.30.0.0/16", "100.64.0.0/10", "fd00:10:244::/64", "fd00:10:245::/64"];

/// Networks that invented node addresses come from.
const NODE_NETWORKS: [&str; 4] =
    ["172.18.0.0/16", "192.168.0.0/16", "fc00:f853:ccd::/64", "fc00:f853:cce::/64"];

/// Networks that invented cluster addresses of services come from.
const SERVICE_NETWORKS: [&str; 4] =
    ["10.96.0.0/16", "172.31.0.0/16", "fd00:10:96::/112", "fd00:10:97::/112"];

/// Addresses that are free.
pub(super) struct Pool {
    taken: HashSet<IpAddr>,
    /// By use: the networks that are apart from all pod networks of nodes.
    networks: [Vec<IpNet>; 3],
    /// Addresses of each network that were looked at.
    tried: HashMap<IpNet, u128>,
}

impl Pool {
    pub(super) fn new(objects: &[Object], mentioned: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut taken: HashSet<IpAddr> = mentioned.into_iter().collect();
        let mut pod_networks = Vec::new();
        for object in objects {
            match object {
                Object::Pod(pod) => taken.extend(&pod.addresses),
                Object::Node(node) => {
                    taken.extend(&node.addresses);
                    pod_networks.extend(&node.pod_cidrs);
                }
                Object::Service(service) => {
                    taken.extend(&service.cluster_ips);
                    taken.extend(&service.external_ips);
                    taken.extend(&service.load_balancer_ips);
                }
                Object::EndpointSlice(slice) => {
                    taken.extend(slice.endpoints.iter().flat_map(|it| it.addresses.iter()));
                }
                _ => {}
            }
        }
        let touch = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
        let apart = |networks: &[&str]| {
            let networks = networks.iter().filter_map(|text| text.parse::<IpNet>().ok());
            networks.filter(|net| !pod_networks.iter().any(|other| touch(net, other))).collect()
        };
        let networks = [&POD_NETWORKS[..], &NODE_NETWORKS, &SERVICE_NETWORKS].map(apart);
        Self { taken, networks, tried: HashMap::new() }
    }

    /// An address of this family.
    pub(super) fn address(&mut self, of: Use, v4: bool) -> Option<IpAddr> {
        let networks = self.networks[of as usize].clone();
        networks.iter().filter(|net| net.addr().is_ipv4() == v4).find_map(|net| self.within(net))
    }

    /// An address out of this network, from its third on: the first stands for the network
    /// itself and the second is where gateways are.
    pub(super) fn within(&mut self, net: &IpNet) -> Option<IpAddr> {
        let tried = self.tried.entry(*net).or_insert(2);
        loop {
            let address = match net.network() {
                IpAddr::V4(first) => {
                    let bits = u32::from(first).checked_add(u32::try_from(*tried).ok()?)?;
                    IpAddr::V4(bits.into())
                }
                IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(*tried)?.into()),
            };
            let is_last = address.is_ipv4() && address == net.broadcast();
            if !net.contains(&address) || is_last {
                return None;
            }
            *tried += 1;
            if self.taken.insert(address) {
                return Some(address);
            }
        }
    }
}
