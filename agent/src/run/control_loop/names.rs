//! Domain names in the control loop.

use std::sync::mpsc::Sender;

use control::model::{ClusterRule, Peer};
use control::{Fault, FieldFault, Object, PodKey, View};
use domain_names::Change;

use super::ControlLoop;
use crate::config::Enforcer;
use crate::run::names::PendingAnswer;

/// Answers of DNS that wait for the snapshot with their addresses.
pub(super) struct Answers {
    waiting: Vec<PendingAnswer>,
    published: Sender<(u64, PendingAnswer)>,
}

impl Answers {
    /// Answers go to `published`, with the generation that has their addresses.
    pub(super) fn new(published: Sender<(u64, PendingAnswer)>) -> Self {
        Self { waiting: Vec::new(), published }
    }

    /// Passes answers on with the generation of the last snapshot, which has all changes.
    pub(super) fn pass_on(&mut self, generation: u64) {
        for answer in self.waiting.drain(..) {
            // The receiver may have ended.
            let _ = self.published.send((generation, answer));
        }
    }
}

impl ControlLoop {
    /// Restores what an earlier process knew. The kernel's rules do not see DNS: there names mean
    /// nothing.
    pub(super) fn restore_names(&mut self) {
        if self.shared.config.enforcer == Enforcer::AfXdp {
            self.shared.names.restore(&mut self.control);
        }
    }

    /// Applies what changed about names. An answer waits for the snapshot that has it.
    pub(super) fn names_event(
        &mut self,
        changes: &[Change<PodKey>],
        answer: Option<PendingAnswer>,
    ) {
        let ignored = self.control.set_names(changes);
        self.shared.names.note_ignored(ignored);
        self.answers.waiting.extend(answer);
    }

    /// Follows the names of the pods with open ports, before workers see their packets by the next
    /// snapshot.
    pub(super) fn follow_names(&self, view: &View) {
        let pods = self.attachments.pods.counting().filter_map(|attached| {
            let pod = view.pods.get(&attached.key)?;
            Some((attached.port.open()?.id, &attached.key, pod))
        });
        self.shared.names.follow(pods);
    }
}

/// Returns a fault for each rule with domain names that the enforcer cannot enforce.
pub(super) fn unenforced(enforcer: Enforcer, object: &Object) -> Vec<Fault> {
    let rules: &[ClusterRule] = match object {
        _ if enforcer == Enforcer::AfXdp => &[],
        Object::ClusterNetworkPolicy(policy) => &policy.egress,
        Object::ClusterEgressFirewall(firewall) => &firewall.egress,
        _ => &[],
    };
    let mut faults = Vec::new();
    for ClusterRule { rule, .. } in rules {
        let is_name = |peer: &Peer| matches!(peer, Peer::Name(_));
        if rule.peers.iter().flatten().any(is_name) {
            let field = format!("spec.egress[{}].domainNames", rule.index);
            let problem = "names are not enforced by nftables; they match nothing";
            faults.push(FieldFault { field, problem: problem.into() }.of(object.reference()));
        }
    }
    faults
}
