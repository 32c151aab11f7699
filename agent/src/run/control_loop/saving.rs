//! State for the next process: the objects, the pods that addresses belong to, and the journal's past objects.

use super::ports::Change;
use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::error::StartError;
use crate::run::journal::Journal;
use crate::run::owners::Owners;
use crate::run::shared_status::SharedStatus;
use crate::run::source::{Source, StateWriter};

/// Writes them to `state-dir`.
pub(super) struct Saving {
    objects: Option<StateWriter>,
    /// Writes past objects beside the journal.
    history: Option<StateWriter>,
    owners: Owners,
}

impl Saving {
    /// Starts the threads that write. Returns whether the last process left a list of owners, too.
    pub(super) fn start(
        shared: &SharedStatus,
        source: &Source,
    ) -> Result<(Self, bool), StartError> {
        let config = &shared.config;
        let objects = match source {
            Source::Nothing => None,
            _ => Some(StateWriter::start(&config.state_dir)?),
        };
        let history = Journal::of(config)
            .map(|it| StateWriter::start_history(&it.folder, it.history_bytes()))
            .transpose()?;
        let (owners, has_owners) = Owners::open(&config.state_dir);
        Ok((Self { objects, history, owners }, has_owners))
    }

    /// Starts due writes, and records the result of the last ones.
    fn write(&mut self, effects: &mut Effects) {
        if let Some(history) = &mut self.history {
            history.begin_if_due(&effects.control);
            if let Some(Err(error)) = history.take_result() {
                tracing::error!("journal: {error}");
            }
        }
        let Some(objects) = &mut self.objects else { return };
        objects.begin_if_due(&effects.control);
        let Some(result) = objects.take_result() else { return };
        let info = &mut effects.input.info;
        match result {
            Ok(at) => (info.saved_at, info.save_error) = (Some(at), None),
            Err(error) => {
                tracing::error!("state-dir: {error}");
                info.save_error = Some(error);
            }
        }
        effects.ports.changed(Change::Objects);
    }
}

impl Reconciler for Saving {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Changed { has_policies } => {
                let writers = self.objects.iter_mut().chain(&mut self.history);
                writers.for_each(|it| it.changed(*has_policies));
            }
            // Objects of a saved state may be older than the records.
            Signal::Commit if effects.input.is_listed() => self.owners.follow(&mut effects.control),
            Signal::Due(_) => {
                self.write(effects);
                let sessions = effects.shared.switch.sessions();
                self.owners.settle(&effects.control, || sessions.any_departed());
            }
            Signal::End => {
                for writer in self.objects.take().into_iter().chain(self.history.take()) {
                    writer.finish(&effects.control);
                }
            }
            _ => {}
        }
    }
}
