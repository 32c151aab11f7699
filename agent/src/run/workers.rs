//! Starts the workers, with the sessions of an earlier process.

use std::sync::Arc;

use dataplane::session::Sessions;
use dataplane::{Frame, Memory, Switch, switch};
use observe::verdicts::EventBroker;

use super::error::StartError;
use super::source;
use crate::config::Config;

/// Starts the workers on frames of `memory`. Also returns the reason why sessions are in memory only,
/// if they are.
///
/// # Errors
/// If a thread cannot be started.
pub(super) fn start_workers(
    config: &Config,
    memory: &Arc<Memory>,
    frames: Vec<Frame>,
    broker: &Arc<EventBroker>,
) -> Result<(Switch, Option<String>), StartError> {
    let file = source::sessions(&config.state_dir);
    let session_accounting = config.session_accounting;
    let config = switch::Config {
        workers: config.workers,
        cores: config.cores.clone(),
        rx_mode: config.rx_mode,
        sessions: config.sessions,
        ports: config.max_ports,
        timeouts: config.timeouts,
    };
    let sessions = Sessions::in_file(&file, config.sessions, config.ports, config.timeouts);
    let (sessions, unsaved) = match sessions {
        Ok(sessions) => (sessions, None),
        Err(error) => {
            let sessions = Sessions::new(config.sessions, config.ports, config.timeouts);
            (sessions, Some(format!("{}: {error}", file.display())))
        }
    };
    sessions.count_packets(session_accounting);
    Switch::start_over(&config, sessions, memory, frames, |worker| broker.inspector(worker))
        .map(|switch| (switch, unsaved))
        .map_err(|error| StartError::Failed(format!("start the workers: {error}")))
}
