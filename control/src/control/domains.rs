//! Addresses of domain names: those that DNS gave to pods, less the cluster's own.
//!
//! A name must not open what other rules decide about. An answer that names a pod, a node, a
//! service or an address of no use outside of a host opens nothing.

use std::collections::HashSet;
use std::net::IpAddr;

use ahash::RandomState;
use domain_names::Change;
use ipnet::IpNet;

use super::Control;
use crate::PodKey;
use crate::addresses::is_special;
use crate::cache::Cache;

/// The cluster's own addresses, but for its pods'.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    hosts: HashSet<IpAddr, RandomState>,
    /// Those of this node that are in no object, such as its kernel's.
    node: Vec<IpAddr>,
    networks: Vec<IpNet>,
    is_stale: bool,
    /// Collected anew since names were refreshed last.
    is_new: bool,
}

impl Default for OwnAddresses {
    fn default() -> Self {
        let (hosts, node) = (HashSet::default(), Vec::new());
        Self { hosts, node, networks: Vec::new(), is_stale: true, is_new: false }
    }
}

impl OwnAddresses {
    /// A node or a service changed.
    pub(super) fn changed(&mut self) {
        self.is_stale = true;
    }

    /// Collects them anew if they may differ.
    fn collect(&mut self, cache: &Cache) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.is_new = true;
        self.hosts.clear();
        self.hosts.extend(&self.node);
        self.networks.clear();
        for node in cache.nodes().values() {
            self.hosts.extend(&node.addresses);
            self.hosts.extend(cache.published(&node.name));
            self.networks.extend(&node.pod_cidrs);
        }
        for service in cache.services().values() {
            self.hosts.extend(&service.cluster_ips);
            self.hosts.extend(&service.external_ips);
            self.hosts.extend(&service.load_balancer_ips);
        }
        self.hosts.extend(cache.api_server().endpoints.iter());
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.hosts.contains(&address) || self.networks.iter().any(|net| net.contains(&address))
    }
}

impl Control {
    /// Sets the addresses of this node beyond those of its object: no name opens them.
    pub fn set_node_addresses(&mut self, addresses: Vec<IpAddr>) {
        if self.domains.node != addresses {
            self.domains.node = addresses;
            self.domains.changed();
        }
    }

    /// Sets the addresses of names, as the DNS of pods gave them. Returns those that are the
    /// cluster's own and count for nothing.
    pub fn set_names(&mut self, changes: &[Change<PodKey>]) -> Vec<IpAddr> {
        let mut ignored = Vec::new();
        for change in changes {
            let addresses = change.open.iter().chain(&change.lingering);
            let touched = self.membership.set_name(change);
            ignored.extend(addresses.filter(|it| self.is_own_address(**it)));
            self.refresh_addresses(touched);
        }
        ignored
    }

    /// Refreshes the names' addresses that a pod had or has now.
    pub(super) fn refresh_domains(&mut self, before: &[IpAddr], now: &[IpAddr]) {
        if self.membership.has_domains() {
            let touched: Vec<IpAddr> = before.iter().chain(now).copied().collect();
            self.refresh_addresses(touched);
        }
    }

    /// Refreshes all addresses of names if the cluster's own have changed, and those of sets that
    /// came or went.
    pub(super) fn follow_own_addresses(&mut self) {
        if self.membership.has_domains() {
            self.domains.collect(&self.cache);
            if std::mem::take(&mut self.domains.is_new) {
                let all = self.membership.domain_addresses();
                self.refresh_addresses(all);
            }
        }
        let stale = self.membership.take_stale_domains();
        self.refresh_addresses(stale);
    }

    fn refresh_addresses(&mut self, addresses: Vec<IpAddr>) {
        for address in addresses {
            let is_own = self.is_own_address(address);
            self.membership.refresh_domain(address, is_own);
        }
    }

    fn is_own_address(&mut self, address: IpAddr) -> bool {
        self.domains.collect(&self.cache);
        is_special(address)
            || self.membership.owner(address).is_some()
            || self.domains.contains(address)
    }
}
