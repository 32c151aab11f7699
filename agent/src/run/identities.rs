//! The identities of addresses, for `podgate show`: the peer sets that an address is in, and the rules that name
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{AddressMap, End, Identity, Origin, PeerSetId};
use dataplane::{AclBinding, Snapshot};
use serde_json::Value;

use super::shared_status::SharedStatus;
use super::table::Table;

/// The rules in force on this node that name each peer set.
struct Naming<'a> {
    map: &'a AddressMap,
    rules: BTreeMap<PeerSetId, BTreeSet<&'a Origin>>,
}

impl<'a> Naming<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let mut rules: BTreeMap<PeerSetId, BTreeSet<&Origin>> = BTreeMap::new();
        let bindings = snapshot.ports().flat_map(|(_, port)| [&port.to_pod, &port.from_pod]);
        for rule in bindings.filter_map(AclBinding::table).flat_map(|table| table.rules()) {
            for end in [rule.source, rule.destination] {
                if let End::Set(set) = end {
                    rules.entry(set).or_default().insert(&rule.origin);
                }
            }
        }
        Self { map: snapshot.address_map(), rules }
    }

    /// The peer sets of an identity, and the rules that name one of them.
    fn cells(&self, identity: Identity) -> [Value; 2] {
        let sets = self.map.members(identity);
        let by: BTreeSet<&Origin> =
            sets.iter().filter_map(|set| self.rules.get(set)).flatten().copied().collect();
        let by: Vec<Origin> = by.into_iter().cloned().collect();
        let sets: Vec<String> = sets.iter().map(|set| set.0.to_string()).collect();
        [sets.join(" ").into(), Origin::list(&by).into()]
    }
}

/// Identities with the known addresses that have them. One that no known address has is that of a network.
pub(super) fn identities(shared: &SharedStatus) -> Table {
    let snapshot = &shared.state().rules;
    let naming = Naming::new(snapshot);
    let mut known: BTreeMap<Identity, (u64, Arc<str>)> = BTreeMap::new();
    for (address, name) in shared.broker.directory().names() {
        let identity = naming.map.lookup(address.into());
        known.entry(identity).or_insert((0, name)).0 += 1;
    }
    let mut table = Table::new(&["identity", "addresses", "example", "peer_sets", "by"]);
    for identity in naming.map.identities() {
        let (addresses, example) = match known.get(&identity) {
            Some((addresses, example)) => (*addresses, (**example).into()),
            None => (0, Value::Null),
        };
        let [sets, by] = naming.cells(identity);
        table.add(vec![identity.0.into(), addresses.into(), example, sets, by]);
    }
    table
}

/// Peer sets that a rule in force on this node names, with the known addresses that are in them: those of one
/// address, or all.
pub(super) fn peer_sets(shared: &SharedStatus, only: Option<IpAddr>) -> Table {
    let snapshot = &shared.state().rules;
    let naming = Naming::new(snapshot);
    let mut known: BTreeMap<PeerSetId, (u64, Arc<str>)> = BTreeMap::new();
    for (address, name) in shared.broker.directory().names() {
        for set in naming.map.members(naming.map.lookup(address.into())) {
            known.entry(*set).or_insert_with(|| (0, Arc::clone(&name))).0 += 1;
        }
    }
    let of = only.map(|address| naming.map.members(naming.map.lookup(address.into())));
    let mut table = Table::new(&["peer_set", "addresses", "example", "by"]);
    for (set, by) in &naming.rules {
        if of.is_some_and(|sets| !sets.contains(set)) {
            continue;
        }
        let (addresses, example) = match known.get(set) {
            Some((addresses, example)) => (*addresses, (**example).into()),
            None => (0, Value::Null),
        };
        let by: Vec<Origin> = by.iter().copied().cloned().collect();
        table.add(vec![set.0.into(), addresses.into(), example, Origin::list(&by).into()]);
    }
    table
}

/// Addresses with their identities: one, or all that have a name.
pub(super) fn addresses(shared: &SharedStatus, only: Option<IpAddr>) -> Table {
    let snapshot = &shared.state().rules;
    let naming = Naming::new(snapshot);
    let mut names = shared.broker.directory().names();
    if let Some(only) = only {
        names.retain(|(address, _)| *address == only);
        if names.is_empty() {
            names.push((only, "".into()));
        }
    }
    let mut table = Table::new(&["address", "name", "identity", "peer_sets", "by"]);
    for (address, name) in names {
        let identity = naming.map.lookup(address.into());
        let [sets, by] = naming.cells(identity);
        table.add(vec![address.to_string().into(), (*name).into(), identity.0.into(), sets, by]);
    }
    table
}
