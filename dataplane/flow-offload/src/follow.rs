//! Connections whose packets a reader wants to see, all of them: a trace, a capture.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::engine::Engine;

/// Keeps connections out of the kernel's hands until it is dropped.
pub struct Followed {
    engine: Weak<Engine>,
    number: u64,
}

impl Followed {
    pub(crate) fn new(engine: &Arc<Engine>, number: u64) -> Self {
        Self { engine: Arc::downgrade(engine), number }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.connections.lock().unfollow(self.number);
            engine.followers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
