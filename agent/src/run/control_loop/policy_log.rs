//! The log of policy objects: a line at info for each one added, changed or removed, and one when
//! that is in force on this node.

use std::collections::VecDeque;
use std::time::Instant;

use control::model::Stage;
use control::{PolicyChange, PolicyEvent};

/// Upper bound on single lines a round, for a start of a large cluster; more are counted in one.
const LINES: usize = 200;

/// Events that are logged and not in force yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct PolicyLog(VecDeque<Round>);

/// Events of one round of the control loop.
#[derive(Debug)]
struct Round {
    /// The snapshot that has them.
    generation: u64,
    /// When the first event of the round was taken.
    since: Instant,
    changes: Vec<PolicyChange>,
}

impl PolicyLog {
    /// Logs the `changes` of a round, whose effects the snapshot of `generation` has.
    pub(super) fn received(&mut self, changes: Vec<PolicyChange>, generation: u64, since: Instant) {
        if changes.is_empty() {
            return;
        }
        let count = changes.len();
        if count > LINES {
            tracing::info!(count, "policies added, changed or removed");
        } else {
            changes.iter().for_each(log_received);
        }
        self.0.push_back(Round { generation, since, changes });
    }

    /// Logs the events whose snapshot is in force: those up to `generation`.
    pub(super) fn in_force(&mut self, generation: u64) {
        while let Some(round) = self.0.pop_front_if(|round| round.generation <= generation) {
            let milliseconds = round.since.elapsed().as_millis() as u64;
            let (generation, count) = (round.generation, round.changes.len());
            if count > LINES {
                tracing::info!(count, generation, milliseconds, "policies in force");
                continue;
            }
            for PolicyChange { object, event, stage } in &round.changes {
                let message = match (event, stage) {
                    (PolicyEvent::Removed, _) => "policy out of force",
                    (_, Stage::Enforced) => "policy in force",
                    (_, Stage::Staged) => "policy staged, not enforced",
                };
                tracing::info!(
                    kind = object.kind.name(),
                    namespace = object.namespace.as_deref(),
                    policy = &*object.name,
                    generation,
                    milliseconds,
                    "{message}"
                );
            }
        }
    }
}

fn log_received(PolicyChange { object, event, .. }: &PolicyChange) {
    let message = match event {
        PolicyEvent::Added => "policy added",
        PolicyEvent::Changed => "policy changed",
        PolicyEvent::Removed => "policy removed",
    };
    tracing::info!(
        kind = object.kind.name(),
        namespace = object.namespace.as_deref(),
        policy = &*object.name,
        "{message}"
    );
}
