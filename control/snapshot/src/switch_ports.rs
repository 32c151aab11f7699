//! Ports of the switch's own addresses, each mapped to a node port or external address of a
//! service.
//!
//! Processes of the node reach services through them: a packet to one of the node's
//! addresses would not leave the kernel, and one to an external address would leave through the
//! uplink. The kernel translates it to one of these ports, the switch to an endpoint. So a service
//! needs no cluster address, and `internalTrafficPolicy` does not apply.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dataplane::services::{Entry, Scope, Services};

use linux_net::redirect::Redirects;

/// The switch's addresses on the host port: a link-local one (RFC 3927, next to the pods' gateway)
/// and a unique local one (RFC 4193). No packet with them leaves the node.
pub const SWITCH_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 1, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd70, 0x6f64, 0x6761, 0x7465, 0, 0, 0, 1)),
];

/// The ports, each allocated while its destination exists.
#[derive(Debug)]
pub(super) struct SwitchPorts {
    taken: BTreeMap<Destination, u16>,
    /// Start of the search for a free port, so that a freed port is not reused at once.
    next: u16,
    /// Number of destinations without a port.
    left_out: usize,
}

/// A destination that processes connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    /// `None` stands for all of the node's own addresses.
    address: Option<IpAddr>,
    v6: bool,
    protocol: u8,
    port: u16,
}

impl Default for SwitchPorts {
    fn default() -> Self {
        Self { taken: BTreeMap::new(), next: 1, left_out: 0 }
    }
}

impl SwitchPorts {
    /// Adds the switch's own addresses to the services; returns the redirects without the
    /// node's addresses.
    pub(super) fn add_to(&mut self, services: &mut Services) -> Redirects {
        let wanted = destinations(services);
        self.assign(&wanted);
        let mut redirects = Redirects::default();
        for (destination, entry) in wanted {
            let Destination { address, v6, protocol, port } = destination;
            let Some(own) = self.taken.get(&destination) else { continue };
            let to = SocketAddr::new(SWITCH_ADDRESSES[usize::from(v6)], *own);
            services.claim(to.ip().into());
            services.add(to.ip().into(), protocol, to.port(), entry);
            let sources =
                address.and_then(|it| services.sources(it.into(), protocol, port)).cloned();
            if let Some(sources) = sources {
                services.restrict(to.ip().into(), protocol, to.port(), sources);
            }
            match address {
                None => _ = redirects.node_ports.insert((protocol, port, to)),
                Some(address) => _ = redirects.addresses.insert((address, protocol, port), to),
            }
        }
        redirects
    }

    fn assign(&mut self, wanted: &BTreeMap<Destination, Entry>) {
        self.taken.retain(|destination, _| wanted.contains_key(destination));
        let place = |destination: &Destination, port| (destination.v6, destination.protocol, port);
        let mut used: BTreeSet<_> = self.taken.iter().map(|(it, port)| place(it, *port)).collect();
        let mut left_out = 0;
        for destination in wanted.keys() {
            if self.taken.contains_key(destination) {
                continue;
            }
            let is_free = |port: &u16| *port != 0 && !used.contains(&place(destination, *port));
            // Sessions are shown with the service's own port.
            let mut others = (0..=u16::MAX).map(|n| self.next.wrapping_add(n));
            let own = Some(destination.port).filter(is_free);
            let Some(port) = own.or_else(|| others.find(is_free)) else {
                left_out += 1;
                continue;
            };
            if port != destination.port {
                self.next = port.wrapping_add(1);
            }
            used.insert(place(destination, port));
            self.taken.insert(*destination, port);
        }
        if left_out > self.left_out {
            tracing::warn!(
                "the node's own processes do not reach {left_out} ports of external \
                 addresses: there are no more than 65535 for them"
            );
        }
        self.left_out = left_out;
    }
}

/// Node ports come first, so they are most likely to keep their numbers.
fn destinations(services: &Services) -> BTreeMap<Destination, Entry> {
    let by_address = services.iter().filter_map(|(address, protocol, port, entry)| {
        let address = address.filter(|_| entry.scope == Scope::External)?.to_ip();
        let v6 = address.is_ipv6();
        Some((Destination { address: Some(address), v6, protocol, port }, entry))
    });
    let by_node = services.node_ports().map(|(v6, protocol, port, entry)| {
        (Destination { address: None, v6, protocol, port }, entry)
    });
    by_address.chain(by_node).map(|(to, entry)| (to, entry.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Services by node port, or by external address and port; TCP.
    fn services(destinations: &[(&str, u16)]) -> Services {
        let mut services = Services::default();
        for (address, port) in destinations {
            let service = Arc::default();
            match address.parse::<IpAddr>() {
                Ok(it) => {
                    services.add(
                        it.into(),
                        6,
                        *port,
                        Entry { port: service, scope: Scope::External },
                    );
                }
                Err(_) => services.add_node_port(false, 6, *port, service),
            }
        }
        services
    }

    fn port_of(redirects: &Redirects, address: &str, port: u16) -> u16 {
        redirects.addresses[&(address.parse().unwrap(), 6, port)].port()
    }

    #[test]
    fn each_destination_keeps_a_port_of_its_own() {
        let mut ports = SwitchPorts::default();
        let first = [("node", 30080), ("203.0.113.7", 30080), ("203.0.113.8", 80)];
        let mut all = services(&first);
        let before = ports.add_to(&mut all);
        let to = SocketAddr::new(SWITCH_ADDRESSES[0], 30080);
        assert_eq!(before.node_ports, [(6, 30080, to)].into());
        assert_eq!(port_of(&before, "203.0.113.8", 80), 80);
        let other = port_of(&before, "203.0.113.7", 30080);
        assert_ne!(other, 30080);
        let found = |port| {
            all.iter().filter(|it| it.0.map(|a| a.to_ip()) == Some(to.ip()) && it.2 == port).count()
        };
        assert!([30080, 80, other].iter().all(|port| found(*port) == 1));
        // A service that comes or goes keeps the others' ports, and its port is not reused at once.
        let second = [("203.0.113.6", 30080), ("203.0.113.7", 30080), ("node", 30080)];
        let after = ports.add_to(&mut services(&second));
        assert_eq!(port_of(&after, "203.0.113.7", 30080), other);
        let third = [("203.0.113.5", 30080), ("node", 30080)];
        let last = ports.add_to(&mut services(&third));
        assert!(![30080, other, port_of(&after, "203.0.113.6", 30080)].contains(&port_of(
            &last,
            "203.0.113.5",
            30080
        )));
    }

    #[test]
    fn more_than_there_are_ports_is_left_out() {
        let mut ports = SwitchPorts::default();
        let addresses: Vec<String> =
            (0..=u16::MAX).map(|n| format!("203.1.{}.{}", n >> 8, n & 255)).collect();
        let all: Vec<(&str, u16)> = addresses.iter().map(|it| (it.as_str(), 80)).collect();
        let redirects = ports.add_to(&mut services(&all));
        assert_eq!(redirects.addresses.len(), usize::from(u16::MAX));
        assert_eq!(ports.left_out, 1);
    }

    #[test]
    fn without_services_of_the_kind_there_is_nothing_at_the_addresses() {
        let mut cluster_only = Services::default();
        let entry = Entry { port: Arc::default(), scope: Scope::Cluster };
        let address = Ipv4Addr::new(10, 96, 0, 1).into();
        cluster_only.add(address, 6, 80, entry);
        assert_eq!(SwitchPorts::default().add_to(&mut cluster_only), Redirects::default());
        let addresses = cluster_only.iter().map(|(address, ..)| address);
        assert_eq!(addresses.collect::<Vec<_>>(), [Some(address)]);
    }
}
