//! Connections that are open when staged policies change.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use acl::Rule;
use dataplane::{PortState, Snapshot};

use crate::run::shared_status::SharedStatus;
use crate::run::thread::Thread;

/// The rules of a port: those enforced, and the staged ones.
type Rules<'a> = [Option<&'a [Rule]>; 4];

/// Compares open connections of the pods whose rules `next` changes, if they have staged ones: by another
/// thread, since there may be millions of sessions. What was known of these pods is forgotten.
pub(super) fn compare(shared: &Arc<SharedStatus>, next: &Arc<Snapshot>) {
    let last = Arc::clone(&shared.state().snapshot);
    if !last.is_staged() && !next.is_staged() || last.shares_ports(next) {
        return;
    }
    let before: HashMap<&str, Rules<'_>> =
        last.ports().map(|(_, port)| (&*port.name, rules(port))).collect();
    let mut changed: Vec<Arc<str>> = Vec::new();
    let mut staged: Vec<Arc<str>> = Vec::new();
    for (_, port) in next.ports() {
        let known = before.get(&*port.name);
        if known.is_some_and(|known| is_same(known, &rules(port))) {
            continue;
        }
        changed.extend(known.map(|_| Arc::clone(&port.name)));
        staged.extend(port.staged.as_ref().map(|_| Arc::clone(&port.name)));
    }
    shared.broker.forget_staged(&changed);
    if staged.is_empty() {
        return;
    }
    let (shared, next) = (Arc::clone(shared), Arc::clone(next));
    let run = move || {
        for (_, tuples) in shared.switch.sessions().iter() {
            let flow = tuples.policy_flow();
            let is_of =
                |address| next.pod_of(address).is_some_and(|it| staged.contains(&it.1.name));
            if (is_of(flow.source) || is_of(flow.destination))
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

fn rules(port: &PortState) -> Rules<'_> {
    let staged = port.staged.as_deref();
    let bindings = [
        Some(&port.to_pod),
        Some(&port.from_pod),
        staged.map(|staged| &staged.to_pod),
        staged.map(|staged| &staged.from_pod),
    ];
    bindings.map(|binding| binding?.table().map(|table| table.rules()))
}

/// Whether both are the same lists: equal rules are one list.
fn is_same(before: &Rules<'_>, after: &Rules<'_>) -> bool {
    before.iter().zip(after).all(|(before, after)| match (before, after) {
        (Some(before), Some(after)) => ptr::eq(*before, *after),
        (before, after) => before.is_none() && after.is_none(),
    })
}
