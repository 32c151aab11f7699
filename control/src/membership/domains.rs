//! Addresses of domain names in peer sets.
//!
//! A set of names is one pod's. An address that has expired is in no set any more for connections
//! that open now; for those that are open a second version of the address map still has it there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{AddressMap, PeerSetId};
use ahash::RandomState;
use domain_names::{Change, DomainPattern};

use super::{Membership, Sets};
use crate::PodKey;
use crate::peers::PeerSet;

/// Addresses that DNS gave to pods, and the sets that a pod is in.
#[derive(Debug, Default)]
pub(super) struct Domains {
    names: HashMap<PodKey, BTreeMap<Arc<str>, Addresses>, RandomState>,
    /// The pods that have an address for any name.
    holders: BTreeSet<(IpAddr, PodKey)>,
    /// The sets about each pod's names.
    sets: HashMap<PodKey, Vec<(PeerSetId, Arc<PeerSet>)>, RandomState>,
    /// Addresses that are in any set.
    pub(super) published: HashMap<IpAddr, Sets, RandomState>,
    /// Sets that expired addresses are in beside these.
    lingering: HashMap<IpAddr, Sets, RandomState>,
}

#[derive(Debug)]
struct Addresses {
    open: Vec<IpAddr>,
    lingering: Vec<IpAddr>,
}

/// The address map in its two versions, of one lineage.
pub(crate) struct Versions {
    /// For connections that open.
    pub(crate) addresses: AddressMap,
    /// For connections that are open, if it differs.
    pub(crate) live: Option<AddressMap>,
}

impl Domains {
    fn holders(&self, address: IpAddr) -> impl Iterator<Item = &PodKey> {
        let least = PodKey { namespace: "".into(), name: "".into() };
        let from = self.holders.range((address, least)..);
        from.take_while(move |(it, _)| *it == address).map(|(_, pod)| pod)
    }

    /// The sets that an address is in; with the expired ones if `live`.
    fn sets_of(&self, address: IpAddr, live: bool) -> Vec<PeerSetId> {
        let mut sets = Vec::new();
        for pod in self.holders(address) {
            let (Some(names), Some(known)) = (self.names.get(pod), self.sets.get(pod)) else {
                continue;
            };
            let has = |pattern: &DomainPattern| {
                let mut meant = names.iter().filter(|(name, _)| pattern.matches(name));
                meant.any(|(_, it)| {
                    it.open.contains(&address) || live && it.lingering.contains(&address)
                })
            };
            let held =
                known.iter().filter(|(_, set)| set.holds_name(address, |it| has(&it.pattern)));
            sets.extend(held.map(|(id, _)| *id));
        }
        sets.sort_unstable();
        sets.dedup();
        sets
    }
}

impl Membership {
    /// Whether any address of a name is known.
    pub(crate) fn has_domains(&self) -> bool {
        !self.domains.holders.is_empty()
    }

    /// All addresses of names.
    pub(crate) fn domain_addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.domains.holders.iter().map(|(it, _)| *it).collect();
        addresses.dedup();
        addresses
    }

    /// Sets the addresses of one name; returns those to refresh.
    pub(crate) fn set_name(&mut self, change: &Change<PodKey>) -> Vec<IpAddr> {
        let Change { pod, name, open, lingering } = change;
        let domains = &mut self.domains;
        let names = domains.names.entry(pod.clone()).or_default();
        let now = Addresses { open: open.clone(), lingering: lingering.clone() };
        let before = match open.is_empty() && lingering.is_empty() {
            true => names.remove(name),
            false => names.insert(Arc::clone(name), now),
        };
        let before = before.iter().flat_map(|it| it.open.iter().chain(&it.lingering));
        let touched: BTreeSet<IpAddr> = before.chain(open).chain(lingering).copied().collect();
        for address in &touched {
            let mut all = names.values();
            match all.any(|it| it.open.contains(address) || it.lingering.contains(address)) {
                true => domains.holders.insert((*address, pod.clone())),
                false => domains.holders.remove(&(*address, pod.clone())),
            };
        }
        if names.is_empty() {
            domains.names.remove(pod);
        }
        touched.into_iter().collect()
    }

    /// Recomputes the sets of an address; one of the cluster's own is in none.
    pub(crate) fn refresh_domain(&mut self, address: IpAddr, is_own: bool) {
        let domains = &mut self.domains;
        let (now, mut live) = match is_own {
            true => (Vec::new(), Vec::new()),
            false => (domains.sets_of(address, false), domains.sets_of(address, true)),
        };
        live.retain(|set| now.binary_search(set).is_err());
        let live: Sets = live.into();
        let known = match live.is_empty() {
            true => domains.lingering.remove(&address),
            false => domains.lingering.insert(address, live.clone()),
        };
        self.edited |= known.unwrap_or_default() != live;
        let before = match now.is_empty() {
            true => domains.published.remove(&address),
            false => domains.published.insert(address, now.clone().into()),
        };
        let before = before.unwrap_or_default();
        if *before == *now {
            return;
        }
        self.edited = true;
        self.editor.move_host(address, &before, &now);
        if let Some(content) = &mut self.content {
            content.move_host(address, &before, &now);
        }
    }

    /// A set about names comes or goes.
    pub(super) fn fill_domains(&mut self, id: PeerSetId, set: &Arc<PeerSet>, add: bool) {
        let Some(pod) = set.names().first().map(|names| names.pod.clone()) else { return };
        let sets = self.domains.sets.entry(pod.clone()).or_default();
        match add {
            true => sets.push((id, Arc::clone(set))),
            false => sets.retain(|(known, _)| *known != id),
        }
        if sets.is_empty() {
            self.domains.sets.remove(&pod);
        }
        // The addresses are refreshed by the next commit: which ones are the cluster's own is not
        // known here.
        let names = self.domains.names.get(&pod).into_iter().flat_map(BTreeMap::values);
        let addresses = names.flat_map(|it| it.open.iter().chain(&it.lingering));
        self.stale_domains.extend(addresses);
    }

    /// Takes the addresses to refresh because sets came or went.
    pub(crate) fn take_stale_domains(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.stale_domains).into_iter().collect()
    }

    /// The domain names in these sets.
    pub(crate) fn patterns<'a>(
        &'a self,
        sets: &'a [PeerSetId],
    ) -> impl Iterator<Item = &'a DomainPattern> {
        let has_names = !self.domains.sets.is_empty();
        let sets = sets.iter().filter(move |_| has_names).filter_map(|id| self.meaning(*id));
        sets.flat_map(PeerSet::names).map(|names| &names.pattern)
    }

    /// Makes both versions of the address map.
    pub(super) fn versions(&mut self) -> Versions {
        loop {
            let addresses = self.editor.version();
            if self.domains.lingering.is_empty() {
                return Versions { addresses, live: None };
            }
            for (address, sets) in &self.domains.lingering {
                self.editor.move_host(*address, &[], sets);
            }
            let live = self.editor.version();
            for (address, sets) in &self.domains.lingering {
                self.editor.move_host(*address, sets, &[]);
            }
            // Identities may be numbered anew in between, but not twice in a row.
            if live.same_lineage(&addresses) {
                return Versions { addresses, live: Some(live) };
            }
        }
    }
}
