//! Waiting for what must happen.

use std::time::{Duration, Instant};

/// Limit of waits for something that must happen, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time that [`transit`] waits for others' frames.
const LONGEST_TRANSIT: Duration = Duration::from_secs(5);

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

/// Waits until frames that were sent have arrived: for some time, and on a busy machine until no processor has any
/// left to receive. (Those of interfaces with XDP programs wait elsewhere.)
///
/// # Panics
/// If the kernel does not report its backlog.
pub fn transit(at_least: Duration) {
    std::thread::sleep(at_least);
    // Others may send all the time.
    let deadline = Instant::now() + LONGEST_TRANSIT;
    while frames_wait() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether a processor's backlog has frames (`softnet_seq_show` of net/core/net-procfs.c).
fn frames_wait() -> bool {
    const BACKLOG: usize = 11;
    let text = std::fs::read_to_string("/proc/net/softnet_stat").expect("softnet_stat");
    let waiting = |line: &str| line.split(' ').nth(BACKLOG).is_some_and(|it| it != "00000000");
    text.lines().any(waiting)
}
