//! Ports of the node that lead to pods on it.

use std::net::IpAddr;
use std::sync::Arc;

use control::model::HostPort;
use control::{PodKey, View};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};

/// A pod's addresses, and the ports of the node that lead to it.
pub(crate) type HostPorts = (PodKey, Vec<IpAddr>, Vec<HostPort>);

/// The pods on a node that are reached at ports of it. A port whose `hostIP` the node
/// does not have is left out: that address is someone else's.
pub(crate) fn host_ports(view: &View, node: &str) -> Vec<HostPorts> {
    let own = view.nodes.get(node).map_or(&[][..], |node| &node.addresses);
    let is_own =
        |port: &&HostPort| port.address.is_none_or(|at| at.is_unspecified() || own.contains(&at));
    let pods = view.pods.iter().filter(|(_, it)| !it.host_ports.is_empty() && *it.node == *node);
    let of = |(key, pod): (&PodKey, &Arc<control::PodView>)| {
        let ports = pod.host_ports.iter().filter(is_own).cloned().collect();
        (key.clone(), pod.addresses.clone(), ports)
    };
    pods.map(of).collect()
}

/// Maps ports of the node to a pod on it; a service's node port comes first.
pub(crate) fn add_host_ports(services: &mut Services, (key, addresses, ports): &HostPorts) {
    for port in ports {
        for address in addresses {
            let backends =
                Backends::new(vec![Backend { address: (*address).into(), port: port.target }]);
            let service = Arc::new(ServicePort {
                name: format!("{key}:{}", port.number).into(),
                internal: backends.clone(),
                any: backends.clone(),
                external: backends,
                affinity_s: None,
            });
            let (v6, protocol) = (address.is_ipv6(), port.protocol.number());
            match port.address {
                Some(at) if at.is_ipv6() != v6 => {}
                Some(at) if !at.is_unspecified() => {
                    let entry = Entry { port: service, scope: Scope::External };
                    services.add(at.into(), protocol, port.number, entry);
                }
                _ => services.add_node_port(v6, protocol, port.number, service),
            }
        }
    }
}
