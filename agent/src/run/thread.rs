//! Threads of the switch.

use std::thread::{Builder, JoinHandle};

use super::error::StartError;

/// A thread. Dropping it waits for its end, which its owner brings about before.
pub(super) struct Thread(Option<JoinHandle<()>>);

impl Thread {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system has none.
    pub(super) fn start(
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        let failed = |error| StartError::Failed(format!("start a thread: {error}"));
        thread.map(|thread| Self(Some(thread))).map_err(failed)
    }

    /// Leaves the thread to itself.
    pub(super) fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
