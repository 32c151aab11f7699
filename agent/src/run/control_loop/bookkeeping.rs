//! Bookkeeping: the log of policies, metrics, and the shared status.

use std::sync::Arc;
use std::time::Instant;

use control::View;
use control::api_server::Event;
use snapshot::{NodeContext, SnapshotMaker};

use super::policy_log::PolicyLog;
use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::durations::Published;
use crate::run::shared_status::SharedStatus;

/// Keeps the log of policies, the metrics and the shared status.
pub(super) struct Bookkeeping {
    log: PolicyLog,
    /// Snapshots that are not in force yet.
    pending: Published,
    /// When the changes of this round began to be taken.
    pub(super) since: Instant,
    pub(super) status: StatusPublisher,
}

/// The last publication of the status.
pub(super) struct StatusPublisher {
    /// The view that ports and names were published for.
    pub(super) view: Arc<View>,
    pub(super) published: Instant,
    /// Whether numbers of objects and the like have changed since.
    pub(super) is_late: bool,
    /// Makes the snapshots with the rules that nftables enforces, in this context: without services or
    /// other nodes.
    pub(super) rules: SnapshotMaker,
    pub(super) context: NodeContext,
}

impl Bookkeeping {
    pub(super) fn new(shared: &SharedStatus) -> Self {
        Self {
            log: PolicyLog::new(shared.policies.clone()),
            pending: Published::default(),
            since: Instant::now(),
            status: StatusPublisher {
                view: Arc::default(),
                published: Instant::now(),
                is_late: false,
                rules: SnapshotMaker::default(),
                context: NodeContext::default(),
            },
        }
    }

    /// Returns whether a snapshot is not in force yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.pending.is_waiting()
    }

    /// Logs the changes of policies of this round, whose effects the last snapshot has.
    pub(super) fn committed(&mut self, effects: &mut Effects) {
        let changes = effects.control.take_policy_changes();
        let is_listed = effects.input.is_listed();
        self.log.received(changes, effects.generation, self.since, is_listed);
    }
}

impl Reconciler for Bookkeeping {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let durations = &effects.shared.durations;
        match signal {
            Signal::Source(Event::Responded(kind, took)) => {
                durations.api.with_label_values(&[kind.name()]).observe(took.as_secs_f64());
            }
            Signal::Source(Event::Apply(object, _)) => self.log.note(object),
            Signal::Source(Event::Resync(_, objects, _)) => {
                objects.iter().for_each(|object| self.log.note(object));
            }
            Signal::Manifests(objects) => objects.iter().for_each(|object| self.log.note(object)),
            Signal::Published(_) => self.pending.add(effects.generation, self.since),
            Signal::Due(_) => {
                let generation = effects.shared.switch.generation();
                for duration in self.pending.take(generation) {
                    let in_force = durations.in_force.with_label_values::<&str>(&[]);
                    in_force.observe(duration.as_secs_f64());
                }
                if effects.has_kernel_rules {
                    let changed = self.log.in_force(generation);
                    if !changed.is_empty() {
                        effects.shared.broker.forget_decisions(&changed);
                    }
                }
            }
            _ => {}
        }
    }
}
