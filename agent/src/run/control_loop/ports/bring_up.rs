//! Interfaces to switch on once a snapshot with their ports is in force.

/// The interfaces that wait.
#[derive(Default)]
pub(super) struct BringUp {
    /// Each with the generation that has to be in force before.
    waiting: Vec<(u64, String)>,
    /// Those for the next generation.
    added: Vec<String>,
}

impl BringUp {
    /// Adds an interface, for the next generation.
    pub(super) fn add(&mut self, interface: String) {
        self.added.push(interface);
    }

    /// Notes the generation that contains the ports of those added so far.
    pub(super) fn published(&mut self, generation: u64) {
        self.waiting.extend(self.added.drain(..).map(|interface| (generation, interface)));
    }

    /// Returns whether an interface waits for a generation to be in force.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the interfaces whose generation is in force.
    pub(super) fn take_due(&mut self, in_force: u64) -> Vec<String> {
        let due = self.waiting.extract_if(.., |(wanted, _)| *wanted <= in_force);
        due.map(|(_, interface)| interface).collect()
    }
}
