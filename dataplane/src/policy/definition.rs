//! Decisions by the definition of the rules: tried one after the other, without what tables are compiled to.

use acl::{Action, AddressMap, linear};

use super::{exempt, further_forms, key};
use crate::wire::Flow;
use crate::{AclBinding, Outcome, Snapshot};

/// The outcome for a connection with this original tuple. It is that of [`evaluate`](super::evaluate), or a table is
/// wrong.
pub(crate) fn outcome(snapshot: &Snapshot, flow: &Flow) -> Outcome {
    let pods = [flow.source, flow.destination].map(|address| snapshot.pod_of(address));
    let [initiator, responder] = pods.map(|pod| pod.map(|(id, _)| id));
    if let Some(outcome) = exempt(snapshot, flow, initiator, responder) {
        return outcome;
    }
    let bindings = [pods[0].map(|(_, pod)| &pod.from_pod), pods[1].map(|(_, pod)| &pod.to_pod)];
    let decide = |flow: &Flow, is_asked: fn(Denial) -> bool| {
        let mut denials = bindings.into_iter().flatten().filter_map(|binding| {
            deny(snapshot.address_map(), binding, flow).filter(|it| is_asked(*it))
        });
        denials.next().map(|it| it.outcome)
    };
    let denied = decide(flow, |_| true).or_else(|| {
        further_forms(snapshot, flow, initiator.is_some(), responder.is_some())
            .find_map(|form| decide(&form, |it| it.is_stated))
    });
    denied.unwrap_or(Outcome::PolicyAllowed)
}

/// A denial at one end.
#[derive(Clone, Copy)]
struct Denial {
    outcome: Outcome,
    /// Whether a policy states it, as opposed to one that leaves it open.
    is_stated: bool,
}

fn deny(map: &AddressMap, binding: &AclBinding, flow: &Flow) -> Option<Denial> {
    let table = match binding {
        AclBinding::Closed => return Some(Denial { outcome: Outcome::Closed, is_stated: false }),
        AclBinding::Open => return None,
        AclBinding::Table(table) => table,
    };
    let mut key = key(flow);
    key.source_identity = map.lookup(flow.source);
    key.destination_identity = map.lookup(flow.destination);
    let rule = linear::lookup(table.rules(), map, &key).map(|rule| &table.rules()[rule]);
    match rule {
        Some(rule) if rule.action == Action::Permit => None,
        rule => {
            let is_stated = rule.is_some_and(|it| !it.is_default);
            Some(Denial { outcome: Outcome::PolicyDenied, is_stated })
        }
    }
}
