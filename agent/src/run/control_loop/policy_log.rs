//! The log of policy objects: a line at info for each one added, changed or removed, and one when
//! that is in force on this node. [`Policies`] has their state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use control::model::Stage;
use control::{Object, ObjectRef, PolicyChange, PolicyEvent};

use crate::run::policies::Policies;

/// Upper bound on single lines a round, for a start of a large cluster; more are counted in one.
const LINES: usize = 200;

/// Events that are logged and not in force yet.
#[derive(Debug)]
pub(super) struct PolicyLog {
    /// Oldest first.
    rounds: VecDeque<Round>,
    /// Generations of objects that no round has yet.
    generations: Vec<(ObjectRef, i64)>,
    policies: Arc<Policies>,
}

/// Events of one round of the control loop.
#[derive(Debug)]
struct Round {
    /// The snapshot that has them.
    generation: u64,
    /// When the first event of the round was taken.
    since: Instant,
    changes: Vec<PolicyChange>,
    generations: Vec<(ObjectRef, i64)>,
}

impl PolicyLog {
    /// A log that keeps `policies` up to date.
    pub(super) fn new(policies: Arc<Policies>) -> Self {
        Self { rounds: VecDeque::new(), generations: Vec::new(), policies }
    }

    /// Notes the generation of a policy that is received, whether it changes anything or not.
    pub(super) fn note(&mut self, object: &Object) {
        if let Some(generation) = object.report().and_then(|it| it.generation) {
            self.generations.push((object.reference(), generation));
        }
    }

    /// Logs the `changes` of a round, whose effects the snapshot of `generation` has; also those of all
    /// objects noted, once every kind is listed.
    pub(super) fn received(
        &mut self,
        changes: Vec<PolicyChange>,
        generation: u64,
        since: Instant,
        is_listed: bool,
    ) {
        let noted = if is_listed { &mut self.generations } else { &mut Vec::new() };
        let generations = std::mem::take(noted);
        if changes.is_empty() && generations.is_empty() {
            return;
        }
        self.policies.received(&changes);
        let count = changes.len();
        if count > LINES {
            tracing::info!(count, "policies added, changed or removed");
        } else {
            changes.iter().for_each(log_received);
        }
        self.rounds.push_back(Round { generation, since, changes, generations });
    }

    /// Logs the events whose snapshot is in force: those up to `generation`. Returns the policies that they are
    /// about.
    pub(super) fn in_force(&mut self, generation: u64) -> Vec<String> {
        let mut changed = Vec::new();
        while let Some(round) = self.rounds.pop_front_if(|round| round.generation <= generation) {
            self.policies.in_force(&round.changes, round.generations, SystemTime::now());
            changed.extend(round.changes.iter().map(|change| change.object.to_string()));
            let milliseconds = round.since.elapsed().as_millis() as u64;
            let (generation, count) = (round.generation, round.changes.len());
            if count > LINES {
                tracing::info!(count, generation, milliseconds, "policies in force");
                continue;
            }
            for PolicyChange { object, event, stage, .. } in &round.changes {
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
        changed
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
