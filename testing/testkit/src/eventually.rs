//! Waiting for what must happen.

use std::time::{Duration, Instant};

/// Limit of waits for something that must happen, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until there is a value.
///
/// # Panics
/// If there is none within [`PATIENCE`].
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        // Others compute meanwhile.
        std::thread::sleep(Duration::from_millis(1));
    }
}
