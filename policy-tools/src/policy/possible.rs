//! What peers of policies could stand for beside pods and nodes: the addresses that DNS gives for a name, and those of
//! the API server.
//!
//! Files have neither. Without an address that stands for them, a rule about them would allow nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use control::Object;
use control::model::{Addresses, Endpoint, EndpointSlice, Key, Peer};

use super::changed::asks_api_server;
use super::matrix;
use crate::probe::DomainAddresses;

/// The end of the API server.
const API_SERVER: &str = "the API server";

/// Addresses that stand for names and for the API server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Possible {
    /// An address of each family for each name of a rule.
    pub(crate) names: DomainAddresses,
    /// The objects that give the API server addresses, where no file does.
    pub(crate) objects: Vec<Object>,
    /// The addresses, in words.
    pub(crate) words: BTreeMap<IpAddr, String>,
}

impl Possible {
    /// Those of the rules among these objects, but for names that `known` has addresses of.
    pub(crate) fn of<'a>(
        objects: impl Iterator<Item = &'a Object> + Clone,
        known: &DomainAddresses,
    ) -> Self {
        let mut found = Self::default();
        let mut free = Free::new(objects.clone());
        let mut patterns = BTreeSet::new();
        matrix::each_rule(objects.clone(), |rule| {
            patterns.extend(rule.peers.iter().flatten().filter_map(|peer| match peer {
                Peer::Name(pattern) if !known.names().any(|name| pattern.matches(name)) => {
                    Some(pattern.to_string())
                }
                _ => None,
            }));
        });
        for pattern in patterns {
            // A name of a pattern is as good as another one, unless a rule names it.
            let name = pattern.replacen('*', "any", 1);
            for address in free.both() {
                found.names.add(&name, address);
                found.words.insert(address, pattern.clone());
            }
        }
        if asks_api_server(objects.clone()) {
            found.add_api_server(objects, &mut free);
        }
        found
    }

    fn add_api_server<'a>(
        &mut self,
        objects: impl Iterator<Item = &'a Object> + Clone,
        free: &mut Free,
    ) {
        let key = Key { namespace: "default".into(), name: "kubernetes".into() };
        let owned = objects.clone().flat_map(|object| match object {
            Object::Node(node) => &node.addresses[..],
            Object::Pod(pod) => &pod.addresses,
            _ => &[],
        });
        let owned: BTreeSet<&IpAddr> = owned.collect();
        let listed: BTreeSet<IpAddr> = objects
            .flat_map(|object| match object {
                Object::EndpointSlice(slice)
                    if slice.key.namespace == key.namespace
                        && slice.service.as_ref() == Some(&key.name) =>
                {
                    slice.endpoints.iter().flat_map(|it| it.addresses.to_vec()).collect()
                }
                Object::Service(service) if service.key == key => service.cluster_ips.clone(),
                _ => Vec::new(),
            })
            .collect();
        let mut addresses: Vec<IpAddr> = listed.iter().copied().collect();
        if listed.is_empty() {
            addresses = free.both().to_vec();
            let endpoint = |address: &IpAddr| Endpoint {
                addresses: Addresses::One(*address),
                ready: true,
                serving: true,
                terminating: false,
                topology: Arc::default(),
            };
            let slice = EndpointSlice {
                service: Some(Arc::clone(&key.name)),
                key,
                endpoints: addresses.iter().map(endpoint).collect(),
                ports: Vec::new(),
            };
            self.objects.push(Object::EndpointSlice(slice.into()));
        }
        addresses.retain(|it| !owned.contains(it));
        self.words.extend(addresses.into_iter().map(|it| (it, API_SERVER.to_owned())));
    }
}

/// Addresses of networks for benchmarks (RFC 2544, RFC 5180), which nothing in a cluster has, outside of the
/// networks that policies name.
struct Free {
    nets: BTreeSet<ipnet::IpNet>,
    given: u16,
}

impl Free {
    fn new<'a>(objects: impl Iterator<Item = &'a Object>) -> Self {
        Self { nets: matrix::networks(objects), given: 0 }
    }

    /// The next address of each family.
    fn both(&mut self) -> [IpAddr; 2] {
        loop {
            self.given = self.given.saturating_add(1);
            let n = self.given;
            let v4 = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + u32::from(n)));
            let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, n));
            let is_apart = |it: IpAddr| matrix::around(&self.nets, it).is_none();
            // Where policies name all of a network, there is no better one.
            if n == u16::MAX || is_apart(v4) && is_apart(v6) {
                return [v4, v6];
            }
        }
    }
}
