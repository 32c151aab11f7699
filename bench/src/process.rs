//! Processor time and memory of a process, and processor time of the machine (proc(5)).

use std::io;
use std::time::Duration;

/// Processor time of a process so far, in user space and in the kernel: fields 14 and 15 of `stat`.
///
/// # Errors
/// If there is no such process.
pub fn processor_time(process: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    time(fields.skip(11).take(2))
}

/// Time that all cores together have worked: all but idle and waiting for disks.
///
/// # Errors
/// If the kernel does not say it.
pub fn busy_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    // user, nice, system, idle, iowait, irq, softirq.
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1).enumerate();
    time(fields.filter(|(n, _)| !matches!(n, 3 | 4) && *n < 7).map(|(_, field)| field))
}

fn time<'a>(ticks: impl Iterator<Item = &'a str>) -> io::Result<Duration> {
    let ticks = ticks.map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>();
    let ticks = ticks.ok_or_else(|| io::Error::other("no times in stat"))?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Processor time of a thread.
#[derive(Debug)]
pub struct Thread {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// In nanoseconds.
    pub nanoseconds: u64,
}

/// The threads of a process, sorted by name; of one name, by number.
///
/// # Errors
/// If there is no such process.
pub fn threads(process: u32) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        let read = |name: &str| std::fs::read_to_string(task.path().join(name));
        // A thread may end meanwhile.
        let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else { continue };
        let number = |text: Option<&str>| text.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
        let id = number(task.file_name().to_str()) as u32;
        let nanoseconds = number(times.split(' ').next());
        threads.push(Thread { id, name: name.trim().to_owned(), nanoseconds });
    }
    threads.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Ok(threads)
}

/// Bytes of a line of `status` that is in kB, such as `VmRSS`.
///
/// # Errors
/// If there is no such process or line.
pub fn memory(process: u32, name: &str) -> io::Result<u64> {
    kilobytes(&format!("/proc/{process}/status"), name).map(|kilobytes| kilobytes * 1024)
}

/// Bytes of a process in huge pages.
///
/// # Errors
/// If there is no such process.
pub fn huge_memory(process: u32) -> io::Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let [private, shared] = ["Private_Hugetlb", "Shared_Hugetlb"].map(|it| kilobytes(&path, it));
    Ok((private? + shared?) * 1024)
}

/// Megabytes that the machine uses, page cache apart.
///
/// # Errors
/// If the kernel does not say it.
pub fn used_memory() -> io::Result<f64> {
    // What was freed a moment ago is still on its way back (RCU).
    std::thread::sleep(Duration::from_millis(500));
    let [all, available] = ["MemTotal", "MemAvailable"].map(|it| kilobytes("/proc/meminfo", it));
    Ok((all? - available?) as f64 / 1024.0)
}

fn kilobytes(path: &str, name: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("no {name} in {path}")))
}
