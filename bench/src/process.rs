//! Processor time and memory of a process (proc(5)).

use std::io;
use std::time::Duration;

/// Processor time of a process so far, in user space and in the kernel: fields 14 and 15 of `stat`.
///
/// # Errors
/// If there is no such process.
pub fn processor_time(process: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<u64>().ok()).sum::<Option<_>>();
    let ticks: u64 = ticks.ok_or_else(|| io::Error::other("no times in stat"))?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Bytes of a line of `status` that is in kB, such as `VmRSS`.
///
/// # Errors
/// If there is no such process or line.
pub fn memory(process: u32, name: &str) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| io::Error::other(format!("no {name} in status")))? * 1024)
}
