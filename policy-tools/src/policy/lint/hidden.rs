//! Finds rules of cluster-wide policies that decide about no pod that could exist.
//!
//! The tables are those of every class of pods and of every part of their addresses; a rule that no lookup finds never
//! decides. A rule counts as hidden if all rules that decide in its place are of the same tier: policies of another
//! tier may change independently.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use acl::{AddressMap, End, Identity, Key, Origin, Table};
use control::Object;
use control::model::{ClusterRule, Peer, RuleAction, Tier};

use super::Findings;
use crate::input::Manifests;
use crate::policy::matrix;
use crate::policy::representatives::{self, Kinds, Selectors};
use crate::probe::Protocol;
use crate::probe::complete::complete;

/// Maximum number of lookups; with more the check is skipped.
const MOST_LOOKUPS: usize = 50_000_000;

/// A rule of a cluster-wide policy.
struct Expected {
    order: (u8, Tier),
    verdict: RuleAction,
}

impl Findings<'_> {
    /// Reports rules of cluster-wide policies that others of their tier hide.
    pub(super) fn hidden(&mut self, mut manifests: Manifests) {
        let expected = expected(&manifests.objects);
        if expected.is_empty() {
            return;
        }
        let selectors = Selectors::of(&manifests.objects);
        // With too many classes of pods the check is skipped.
        manifests.families = manifests.families.widened();
        let kinds = Kinds::of(&mut manifests.objects, Vec::new(), &[], &[true, false]);
        let added =
            kinds.and_then(|mut it| representatives::add(&mut manifests, &selectors, &mut it));
        if added.is_err() || complete(&mut manifests, []).is_err() {
            return;
        }
        let view = manifests.control().view();
        let tables = matrix::tables_of_pods(&view);
        let identities = view.addresses.identities().count();
        let lookups = tables.iter().map(|it| it.rules().len() * identities).sum::<usize>();
        if lookups > MOST_LOOKUPS {
            return;
        }
        let mut deciding: HashSet<Origin> = HashSet::new();
        let mut instead: BTreeMap<Origin, BTreeSet<Origin>> = BTreeMap::new();
        for table in tables.iter() {
            for (key, found) in lookups_of(table, &view.addresses) {
                let Some(rule) = table.rules().get(found) else { continue };
                deciding.insert(rule.origin.clone());
                let later = table.rules()[found + 1..].iter();
                let later = later.filter(|it| expected.contains_key(&it.origin));
                for other in later.filter(|it| it.origin != rule.origin) {
                    if other.matches(&key, &view.addresses) {
                        let before = instead.entry(other.origin.clone()).or_default();
                        before.insert(rule.origin.clone());
                    }
                }
            }
        }
        for (origin, by) in instead.iter().filter(|(origin, _)| !deciding.contains(*origin)) {
            let Some(own) = expected.get(origin) else { continue };
            let others = by.iter().map(|it| expected.get(it).filter(|it| it.order == own.order));
            let Some(others) = others.collect::<Option<Vec<&Expected>>>() else { continue };
            let (code, what) = match others.iter().all(|it| it.verdict == own.verdict) {
                true => ("redundant-rule", "the same"),
                false => ("shadowed-rule", "otherwise"),
            };
            let by: Vec<String> = by.iter().map(Origin::to_string).collect();
            let (come, say) = if by.len() == 1 { ("comes", "says") } else { ("come", "say") };
            let message = format!(
                "never decides about any pod that could exist: {} {come} first and {say} {what}; move \
                 it before, or remove it",
                by.join(" and ")
            );
            let (Some(object), Some(field)) = (origin.policies().first(), origin.field()) else {
                continue;
            };
            self.add_unless_known(&object.to_string(), &format!("spec.{field}"), code, message);
        }
    }

    /// Adds a finding unless one of the same kind is there.
    fn add_unless_known(&mut self, object: &str, path: &str, code: &'static str, message: String) {
        let Some(source) = self.sources.iter().rev().find(|it| it.object == object) else { return };
        let at = source.tree.nearest(path);
        let is_known = self.found.iter().any(|it| {
            (it.line, it.column) == (at.line, at.column)
                && it.object == object
                && ["shadowed-rule", "redundant-rule"].contains(&it.code)
        });
        if !is_known {
            self.add_to(object, path, code, message);
        }
    }
}

/// Returns the rules that are expected to decide, by origin.
fn expected(objects: &[Object]) -> HashMap<Origin, Expected> {
    let mut found = HashMap::new();
    let mut add = |rules: &[ClusterRule], order: (u8, Tier)| {
        // Files do not say which nodes and addresses of names exist; a rule that passes does not decide.
        let is_known = |it: &&ClusterRule| {
            let peers = it.rule.peers.iter().flatten();
            it.verdict != RuleAction::Pass
                && !peers.clone().any(|it| !matches!(it, Peer::Pods { .. } | Peer::Block(..)))
        };
        for rule in rules.iter().filter(is_known) {
            let expected = Expected { order, verdict: rule.verdict };
            found.insert(rule.rule.origin.clone(), expected);
        }
    };
    for object in objects {
        match object {
            Object::ClusterNetworkPolicy(it) => {
                add(&it.ingress, (1, it.tier));
                add(&it.egress, (1, it.tier));
            }
            Object::ClusterEgressFirewall(it) => add(&it.egress, (0, Tier::Admin)),
            _ => {}
        }
    }
    found
}

/// A lookup for each identity of a peer and each range of ports that rules treat alike.
fn lookups_of(table: &Arc<Table>, addresses: &AddressMap) -> Vec<(Key, usize)> {
    let mut found = Vec::new();
    let with_v6 = [(Protocol::Icmp, true)];
    let protocols = Protocol::ALL.map(|it| (it, false)).into_iter().chain(with_v6);
    let mut ports = Vec::new();
    for (protocol, v6) in protocols {
        // An echo request is of type 8 or 128.
        let source_port = match (protocol, v6) {
            (Protocol::Icmp, false) => 8,
            (Protocol::Icmp, true) => 128,
            _ => 0,
        };
        let firsts = match protocol {
            Protocol::Icmp => BTreeSet::from([0]),
            _ => matrix::port_ranges([table], protocol),
        };
        ports.extend(firsts.into_iter().map(|first| (protocol.number(v6), source_port, first)));
    }
    // Identities that no rule tells apart are one.
    let mut seen = HashSet::new();
    for identity in addresses.identities().filter(|it| seen.insert(ends_of(table, addresses, *it)))
    {
        for (protocol, source_port, destination_port) in &ports {
            let key = Key {
                source_identity: identity,
                destination_identity: identity,
                protocol: *protocol,
                source_port: *source_port,
                destination_port: *destination_port,
                ..Key::default()
            };
            found.extend(table.lookup(&key).map(|rule| (key, rule)));
        }
    }
    found
}

/// The rules whose ends an identity is in.
fn ends_of(table: &Table, addresses: &AddressMap, identity: Identity) -> Vec<bool> {
    let is_in = |end: End| match end {
        End::Any => true,
        End::Set(set) => addresses.is_member(identity, set),
    };
    table.rules().iter().map(|rule| is_in(rule.source) && is_in(rule.destination)).collect()
}
