//! Connections that are open when staged policies change.

use std::collections::{HashMap, HashSet};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use acl::Rule;
use dataplane::session::Found;
use dataplane::wire::protocol;
use dataplane::{AclBinding, PortId, PortState, Snapshot};

use crate::run::shared_status::SharedStatus;
use crate::run::thread::Thread;

/// The rules of a port: those enforced, and the staged ones if it has any; `None` for an ACL without rules.
struct Rules<'a> {
    enforced: [Option<&'a [Rule]>; 2],
    staged: Option<[Option<&'a [Rule]>; 2]>,
}

/// Longest wait for the workers to use the snapshot with which connections are compared.
const IN_FORCE: Duration = Duration::from_secs(10);

/// Compares open connections of the pods whose rules `next` changes, if they have staged ones: by another
/// thread, since there may be millions of sessions. What was known of these pods is forgotten. The workers
/// report what opens when they use `next`.
pub(super) fn compare(shared: &Arc<SharedStatus>, next: &Arc<Snapshot>) {
    let last = Arc::clone(&shared.state().snapshot);
    if !last.is_staged() && !next.is_staged() || last.shares_ports(next) {
        return;
    }
    let before: HashMap<&str, Rules<'_>> =
        last.ports().map(|(_, port)| (&*port.name, Rules::of(port))).collect();
    let mut changed: Vec<Arc<str>> = Vec::new();
    let mut staged: HashSet<PortId> = HashSet::new();
    for (id, port) in next.ports() {
        let known = before.get(&*port.name);
        if known.is_some_and(|known| known.is_same(&Rules::of(port))) {
            continue;
        }
        changed.extend(known.map(|_| Arc::clone(&port.name)));
        staged.extend(port.staged.as_ref().map(|_| id));
    }
    shared.broker.forget_staged(&changed);
    if staged.is_empty() {
        return;
    }
    let (shared, next) = (Arc::clone(shared), Arc::clone(next));
    let published_s = shared.switch.now().seconds();
    let run = move || {
        shared.switch.wait_in_force(next.generation, IN_FORCE);
        let sessions = shared.switch.sessions();
        // An earlier process may have opened one in a generation of the same number. A worker's clock may be a
        // second behind.
        let is_reported = |found: &Found| {
            let opened = sessions.usage(found);
            opened.created_s.is_some_and(|created| created + 1 >= published_s)
                && opened.generation >= next.generation as u32 & (u32::MAX >> 1)
        };
        for (found, tuples) in sessions.iter() {
            if found.protocol() == protocol::TCP && found.state().is_over() {
                continue;
            }
            let flow = tuples.policy_flow();
            let is_of = |address| next.pod_of(address).is_some_and(|(id, _)| staged.contains(&id));
            if (is_of(flow.source) || is_of(flow.destination))
                && !is_reported(&found)
                && let Some(staged) = dataplane::staged_difference_of_session(&next, &tuples)
            {
                shared.broker.record_open(&tuples, staged, &next);
            }
        }
    };
    match Thread::start("staged", run) {
        Ok(thread) => thread.detach(),
        Err(error) => tracing::warn!("open connections are not compared: {error}"),
    }
}

impl<'a> Rules<'a> {
    fn of(port: &'a PortState) -> Self {
        let of = |bindings: [&'a AclBinding; 2]| {
            bindings.map(|binding| binding.table().map(|table| table.rules()))
        };
        let staged = port.staged.as_deref();
        Self {
            enforced: of([&port.to_pod, &port.from_pod]),
            staged: staged.map(|staged| of([&staged.to_pod, &staged.from_pod])),
        }
    }

    /// Whether both are the same lists: equal rules are one list.
    fn is_same(&self, other: &Self) -> bool {
        let is_one = |one: &[Option<&[Rule]>; 2], other: &[Option<&[Rule]>; 2]| {
            one.iter().zip(other).all(|(one, other)| match (one, other) {
                (Some(one), Some(other)) => ptr::eq(*one, *other),
                (one, other) => one.is_none() && other.is_none(),
            })
        };
        let is_staged_same = match (&self.staged, &other.staged) {
            (Some(one), Some(other)) => is_one(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_staged_same && is_one(&self.enforced, &other.enforced)
    }
}

#[cfg(test)]
mod tests {
    use acl::{Action, AddressMap, Table};
    use dataplane::{PortKind, StagedAcls};

    use super::*;

    #[test]
    fn staged_acls_that_permit_everything_are_others_than_none() {
        let rules: Arc<[Rule]> = [Rule::new(Action::Deny, "deny")].into();
        let table = || {
            let rules = Arc::clone(&rules);
            AclBinding::Table(Arc::new(Table::compile(rules, &Arc::new(AddressMap::default()))))
        };
        let port = |staged: Option<AclBinding>| PortState {
            to_pod: table(),
            staged: staged
                .map(|to_pod| Arc::new(StagedAcls { to_pod, from_pod: AclBinding::Open })),
            ..PortState::new("shop/db", PortKind::Pod)
        };
        let (none, open, closed) = (port(None), port(Some(AclBinding::Open)), port(Some(table())));
        for (n, one) in [&none, &open, &closed].into_iter().enumerate() {
            for (m, other) in [&none, &open, &closed].into_iter().enumerate() {
                assert_eq!(Rules::of(one).is_same(&Rules::of(other)), n == m, "{n} {m}");
            }
        }
        // The same rules, compiled again.
        assert!(Rules::of(&closed).is_same(&Rules::of(&port(Some(table())))));
    }
}
