//! Compares the memory of the process with its limit, so that new policies are refused before the
//! kernel ends the process.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::reconciler::{Effects, Reconciler, Signal};

/// Interval of the comparison.
const CHECK: Duration = Duration::from_millis(200);
/// Percent of the limit from which on memory is short, and below which it no longer is.
const SHORT: [u64; 2] = [90, 80];
/// Size of a page in /proc/self/statm, in bytes.
const PAGE: u64 = 4096;

/// The comparison.
pub(super) struct Memory {
    due: Instant,
    /// In bytes; `None` without one.
    limit: Option<u64>,
    is_short: bool,
}

impl Memory {
    /// With the limit that is configured, or that of the process's cgroup.
    pub(super) fn new(configured: Option<u64>) -> Self {
        let limit = configured.or_else(|| cgroup_limit(Path::new("/sys/fs/cgroup")));
        Self { due: Instant::now(), limit, is_short: false }
    }

    /// Whether memory is short; `None` if that is as before.
    fn compare(&mut self, resident: u64) -> Option<bool> {
        let limit = self.limit?;
        let [from, below] = SHORT.map(|percent| limit / 100 * percent);
        let is_short = resident >= if self.is_short { below } else { from };
        (std::mem::replace(&mut self.is_short, is_short) != is_short).then_some(is_short)
    }
}

impl Reconciler for Memory {
    fn is_due(&self, now: Instant) -> bool {
        self.limit.is_some() && self.due <= now
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let &Signal::Due(now) = signal else { return };
        self.due = now + CHECK;
        let Some(resident) = resident() else { return };
        let Some(is_short) = self.compare(resident) else { return };
        let (limit, resident) = (self.limit.unwrap_or(0) >> 20, resident >> 20);
        let memory = format!("memory-limit: {resident} MiB of {limit} MiB");
        if is_short {
            let what = "new policies of the namespace with the largest ones permit nothing";
            tracing::error!("{memory}: {what}");
        } else {
            tracing::info!("{memory}: every policy is taken");
        }
        effects.control.set_memory_short(is_short);
    }
}

/// Memory of the process, in bytes.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    text.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * PAGE)
}

/// The limit of the cgroup that the process is in, below this hierarchy of cgroup v2; `None`
/// without one.
fn cgroup_limit(root: &Path) -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    fs::read_to_string(root.join(path).join("memory.max")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_near_the_limit_until_some_is_free() {
        let mut memory = Memory { due: Instant::now(), limit: Some(1000), is_short: false };
        let seen = [899, 900, 950, 800, 799, 899].map(|resident| memory.compare(resident));
        assert_eq!(seen, [None, Some(true), None, None, Some(false), None]);
        let mut unlimited = Memory { limit: None, ..memory };
        assert_eq!(unlimited.compare(u64::MAX), None);
    }

    #[test]
    fn the_process_says_what_it_has() {
        assert!(resident().unwrap() > 1 << 20);
    }
}
