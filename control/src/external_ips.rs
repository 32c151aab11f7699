//! External IPs of services: addresses that a Service takes by its own word.
//!
//! Whoever may write a Service may name any address in `spec.externalIPs`, an API server's too, and
//! take what the node's processes and pods send there (CVE-2020-8554). So services take those
//! alone that the configuration permits, and never one that something in the cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::PodKey;
use crate::cache::Cache;
use crate::model::{Key, Service};

/// Which external IPs services take.
#[derive(Debug, Default)]
pub(crate) struct ExternalIps {
    permitted: Vec<IpNet>,
    /// Networks of the cluster, of which services get none.
    cluster: Vec<IpNet>,
    /// The external IPs of services that have any.
    wanted: BTreeMap<Key, Vec<IpAddr>>,
}

/// An external IP that a service does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedIp {
    /// Index in `spec.externalIPs`.
    pub index: usize,
    /// The address and why.
    pub problem: String,
}

impl ExternalIps {
    pub(crate) fn permit(&mut self, permitted: Vec<IpNet>, cluster: Vec<IpNet>) {
        (self.permitted, self.cluster) = (permitted, cluster);
    }

    /// All services that have external IPs.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Key> {
        self.wanted.keys()
    }

    /// The services of which one of these is an external IP.
    pub(crate) fn of<'a>(
        &'a self,
        addresses: &'a BTreeSet<IpAddr>,
    ) -> impl Iterator<Item = &'a Key> {
        let has = |ips: &Vec<IpAddr>| ips.iter().any(|address| addresses.contains(address));
        self.wanted.iter().filter(move |(_, ips)| has(ips)).map(|(key, _)| key)
    }

    /// Remembers what a service wants, and returns what it does not get. `owner` is the pod that
    /// has an address.
    pub(crate) fn refused<'a>(
        &mut self,
        cache: &Cache,
        owner: impl Fn(IpAddr) -> Option<&'a PodKey>,
        key: &Key,
        service: Option<&Service>,
    ) -> Vec<RefusedIp> {
        let Some(service) = service.filter(|it| !it.external_ips.is_empty()) else {
            self.wanted.remove(key);
            return Vec::new();
        };
        let refused = service.external_ips.iter().enumerate().filter_map(|(index, address)| {
            let why = self.reason(cache, owner(*address), *address)?;
            Some(RefusedIp { index, problem: format!("{address} {why}") })
        });
        let refused = refused.collect();
        self.wanted.insert(key.clone(), service.external_ips.clone());
        refused
    }

    fn reason(&self, cache: &Cache, owner: Option<&PodKey>, address: IpAddr) -> Option<String> {
        let holds = |net: &IpNet| net.contains(&address);
        if self.permitted.is_empty() {
            return Some("is not taken: --external-ips is off".to_owned());
        }
        if !self.permitted.iter().any(holds) {
            return Some("is not in --external-ips".to_owned());
        }
        if cache.api_server().hosts.contains(&address) {
            return Some("is an address of the API server".to_owned());
        }
        if let Some(pod) = owner {
            return Some(format!("is an address of Pod {pod}"));
        }
        let nodes = cache.nodes().values();
        let found = nodes.clone().find(|node| node.addresses.contains(&address));
        if let Some(node) = found {
            return Some(format!("is an address of Node {}", node.name));
        }
        if let Some(node) = nodes.clone().find(|node| node.pod_cidrs.iter().any(holds)) {
            return Some(format!("is in the pod network of Node {}", node.name));
        }
        if let Some(network) = self.cluster.iter().find(|it| holds(it)) {
            return Some(format!("is in the cluster's network {network}"));
        }
        let mut services = cache.services().values();
        let other = services.find(|it| it.cluster_ips.contains(&address))?;
        Some(format!("is a cluster address of Service {}", other.key))
    }
}
