//! The node's services: destinations that the node translates before a connection arrives.
//!
//! A rule about a pod names the pod's own address. A connection to a service reaches that pod by another
//! address, so rules are evaluated for the endpoints of a service, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ahash::RandomState;
use ipnet::IpNet;

use crate::Transport;

/// A service at one destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The namespace whose objects it comes from; empty where that does not matter.
    pub owner: Arc<str>,
    /// Clients that the destination admits; `None` admits all.
    pub sources: Option<Vec<IpNet>>,
    /// Whether a client keeps its endpoint.
    pub affinity: bool,
    /// Where connections go; without any they are refused.
    pub endpoints: Vec<SocketAddr>,
}

/// Services by destination. The unspecified address of a family stands for all addresses of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services(HashMap<(SocketAddr, Transport), Service, RandomState>);

impl Services {
    /// Sets the service of a destination; `None` removes it.
    pub fn set(&mut self, at: SocketAddr, transport: Transport, service: Option<Service>) {
        match service {
            Some(service) => drop(self.0.insert((at, transport), service)),
            None => drop(self.0.remove(&(at, transport))),
        }
    }

    /// The service at a destination, as it is named or as the port of an address of the node.
    pub fn find(
        &self,
        to: SocketAddr,
        transport: Transport,
        is_of_node: impl FnOnce() -> bool,
    ) -> Option<&Service> {
        let at = |address| self.0.get(&(SocketAddr::new(address, to.port()), transport));
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        at(to.ip()).or_else(|| at(any).filter(|_| is_of_node()))
    }

    /// All services with their destinations.
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, Transport, &Service)> {
        self.0.iter().map(|((at, transport), service)| (*at, *transport, service))
    }
}

impl Service {
    /// Whether the destination admits a client.
    pub fn admits(&self, client: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|nets| nets.iter().any(|net| net.contains(&client)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_the_node_is_one_of_its_addresses_alone() {
        let mut services = Services::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let service = |port| Service { endpoints: vec![at(port)], ..Service::default() };
        services.set(at("10.96.0.1:80"), Transport::Tcp, Some(service("10.1.0.2:8080")));
        services.set(at("0.0.0.0:30080"), Transport::Tcp, Some(service("10.1.0.3:8080")));
        let find = |services: &Services, to, is_of_node| {
            let found = services.find(at(to), Transport::Tcp, || is_of_node);
            found.map(|it| it.endpoints[0].to_string()).unwrap_or_default()
        };
        assert_eq!(find(&services, "10.96.0.1:80", false), "10.1.0.2:8080");
        assert_eq!(find(&services, "10.96.0.1:81", false), "");
        assert_eq!(find(&services, "192.0.2.1:30080", true), "10.1.0.3:8080");
        assert_eq!(find(&services, "192.0.2.2:30080", false), "");
        assert_eq!(find(&services, "[2001:db8::1]:30080", true), "");
        assert!(services.find(at("10.96.0.1:80"), Transport::Udp, || true).is_none());
        services.set(at("10.96.0.1:80"), Transport::Tcp, None);
        assert_eq!(find(&services, "10.96.0.1:80", false), "");
    }

    #[test]
    fn a_destination_admits_the_listed_clients() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let of = |sources| Service { sources, ..Service::default() };
        assert!(of(None).admits(client));
        assert!(of(Some(vec!["192.0.2.0/24".parse().unwrap()])).admits(client));
        assert!(!of(Some(Vec::new())).admits(client));
    }
}
