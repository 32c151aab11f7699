//! The time of day.

/// The time of day, RFC 3339 with microseconds, as Kubernetes writes it.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.6}")
}
