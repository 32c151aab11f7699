//! Domain names in the control loop: answers of DNS stand on both sides of a publication.

use std::sync::mpsc::Sender;

use control::{PodKey, View};
use domain_names::{Change, Limits, Turns};
use snapshot::{NodePort, PortRole};

use super::ports;
use super::reconciler::Effects;
use crate::run::names::{PendingAnswer, boot_time};

/// Addresses after which the turns of a round are over.
const ADDRESSES_A_ROUND: usize = 128;

/// Answers of DNS that wait for the turn of their pod, and then for the snapshot with their addresses.
pub(super) struct Answers {
    turns: Turns<PodKey, PendingAnswer>,
    waiting: Vec<PendingAnswer>,
    published: Sender<(u64, PendingAnswer)>,
}

impl Answers {
    /// Answers go to `published`, with the generation that has their addresses.
    pub(super) fn new(published: Sender<(u64, PendingAnswer)>) -> Self {
        let turns = Turns::new(Limits::default());
        Self { turns, waiting: Vec::new(), published }
    }

    /// Returns whether addresses wait for a turn.
    pub(super) fn have_turns(&self) -> bool {
        self.turns.is_waiting()
    }

    /// Passes answers on with the generation of the last snapshot, which has all changes.
    pub(super) fn pass_on(&mut self, generation: u64) {
        for answer in self.waiting.drain(..) {
            // The receiver may have ended.
            let _ = self.published.send((generation, answer));
        }
    }

    /// Handles what changed about names. What an answer opens waits for its pod's turn; what expires or
    /// goes does not.
    pub(super) fn names_event(
        &mut self,
        changes: Vec<Change<PodKey>>,
        answer: Option<PendingAnswer>,
        effects: &mut Effects,
    ) {
        match answer {
            Some(answer) => {
                let pod = answer.pod.clone();
                let at_once = self.turns.add(&pod, changes, answer);
                self.waiting.extend(at_once);
            }
            None => {
                changes.iter().for_each(|change| self.turns.supersede(change));
                set_names(&changes, effects);
            }
        }
    }

    /// Takes the turns that are due, a few a round: each round publishes one snapshot, and what policies
    /// changed meanwhile is in it.
    pub(super) fn take_turns(&mut self, effects: &mut Effects) {
        let now = boot_time();
        let mut addresses = 0;
        while addresses < ADDRESSES_A_ROUND {
            let Some(turn) = self.turns.next(now) else { return };
            addresses += turn.addresses().max(1);
            let changes: Vec<_> = turn.changes.into_values().collect();
            set_names(&changes, effects);
            self.waiting.extend(turn.answers);
        }
    }
}

fn set_names(changes: &[Change<PodKey>], effects: &mut Effects) {
    let ignored = effects.control.set_names(changes);
    effects.shared.names.note_ignored(&ignored);
    effects.ports.changed(ports::Change::Objects);
}

/// Follows the names of the pods behind ports, before workers see their packets by the next snapshot.
pub(super) fn follow_names(view: &View, ports: &[NodePort], effects: &Effects) {
    let has_names = view.pods.values().any(|pod| !pod.names.is_empty());
    let pods = ports.iter().filter(|_| has_names).filter_map(|port| match &port.role {
        PortRole::Pod(key, _) => Some((port.id, key, view.pods.get(key)?)),
        PortRole::Host | PortRole::Uplink => None,
    });
    effects.shared.names.follow(pods);
}
