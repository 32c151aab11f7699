//! Time on the processor: others may be at work on the same core.

#![allow(unsafe_code)]

/// Nanoseconds that this thread has run for.
pub(crate) fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which outlives it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "a thread has a clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
