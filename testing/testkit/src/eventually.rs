//! Waiting for what must happen.

use std::time::{Duration, Instant};

/// How long tests wait for something that must happen; how long it takes is not what they are about.
pub const PATIENCE: Duration = Duration::from_secs(20);

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
        std::thread::yield_now();
    }
}
