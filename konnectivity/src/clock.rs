//! Time for timeouts and logs.

use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the process first asked.
pub(crate) fn millis() -> u64 {
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The time of day, RFC 3339 with microseconds, as Kubernetes writes it.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.6}")
}
