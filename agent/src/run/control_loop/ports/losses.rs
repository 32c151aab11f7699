//! Ports lost lately, for `status`.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use crate::run::shared_status::{LostPort, PortInfo};

/// Losses kept.
const MOST: usize = 16;
/// Time that a loss is kept unless its port is served again.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// The losses, newest last.
#[derive(Default)]
pub(super) struct Losses(VecDeque<LostPort>);

impl Losses {
    /// Adds a loss; the oldest makes room for it.
    pub(super) fn note(&mut self, name: &str, interface: String, why: &str) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        let (name, why, when) = (name.to_owned(), why.to_owned(), SystemTime::now());
        self.0.push_back(LostPort { name, interface, when, why });
    }

    /// All of them, newest last.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LostPort> {
        self.0.iter()
    }

    /// Removes old losses, and those of ports that are served again; returns whether there were any.
    pub(super) fn forget(&mut self, ports: &[PortInfo]) -> bool {
        let is_served =
            |lost: &LostPort| ports.iter().any(|port| port.name == lost.name && port.id.is_some());
        let is_recent = |lost: &LostPort| lost.when.elapsed().is_ok_and(|it| it < KEPT_FOR);
        let before = self.0.len();
        self.0.retain(|lost| is_recent(lost) && !is_served(lost));
        self.0.len() != before
    }
}
