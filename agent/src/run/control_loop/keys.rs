//! Keys of encryption between nodes.

use std::time::{Duration, Instant};

use super::reconciler::{Effects, Reconciler, Signal};

/// Interval of looking for keys that no snapshot follows from.
const CHECK: Duration = Duration::from_secs(1);

/// Follows the keys that nodes publish.
pub(super) struct Keys {
    due: Instant,
}

impl Keys {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now }
    }
}

impl Reconciler for Keys {
    fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        if let Signal::Due(now) = signal {
            self.due = *now + CHECK;
            follow(effects);
        }
    }
}

/// Encrypts what is sent to the nodes; before workers send anything to new ones.
pub(super) fn follow(effects: &Effects) {
    if let Some(encryption) = &effects.shared.encryption {
        let nodes = &effects.control.view().nodes;
        let runs_api_server = effects.control.runs_api_server(effects.node());
        encryption.follow(nodes, effects.control.wireguard(), runs_api_server);
    }
}
