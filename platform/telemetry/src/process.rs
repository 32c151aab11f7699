//! The process's own metrics, under the names every Prometheus client library gives them.

use prometheus::{Counter, Gauge, Registry};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::metrics::Text;

/// `process_…`: processor time, memory, open files and the start, as text. Empty where `/proc`
/// cannot be read.
pub fn process_metrics() -> String {
    read().unwrap_or_default()
}

fn read() -> Option<String> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name in parentheses, which may hold anything (proc_pid_stat(5)).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = clock_ticks_per_second() as f64;
    let booted = std::fs::read_to_string("/proc/stat").ok()?;
    let booted = booted.lines().find_map(|line| line.strip_prefix("btime "))?;
    let booted: f64 = booted.trim().parse().ok()?;
    // The folder's own descriptor is open while it is read.
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    let limit = |of| getrlimit(of).current.map_or(-1.0, |it| it as f64);

    let registry = Registry::new();
    let seconds = Counter::new(
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
    );
    let seconds = seconds.ok()?;
    seconds.inc_by((field(14)? + field(15)?) / ticks);
    registry.register(Box::new(seconds)).ok()?;
    for (name, help, value) in [
        ("process_max_fds", "Maximum number of open file descriptors.", limit(Resource::Nofile)),
        ("process_open_fds", "Number of open file descriptors.", open as f64),
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            field(24)? * page_size() as f64,
        ),
        (
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            booted + field(22)? / ticks,
        ),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", field(23)?),
        (
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes.",
            limit(Resource::As),
        ),
    ] {
        let gauge = Gauge::new(name, help).ok()?;
        gauge.set(value);
        registry.register(Box::new(gauge)).ok()?;
    }
    Some(registry.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_this_process_s() {
        let text = process_metrics();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 500_000.0);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        let before = value("process_open_fds");
        assert!(before >= 3.0 && before < value("process_max_fds"));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "started {age} s ago");
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"));
    }
}
