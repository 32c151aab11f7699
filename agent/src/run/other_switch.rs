//! Another switch on the same node.

use std::fs;
use std::path::Path;

/// Names another process that is `podgate run` in this process's network namespace: its number and its
/// command line. `None` if there is none, or none is visible from this process's PID namespace.
pub fn other_switch() -> Option<String> {
    let own = (std::process::id(), fs::read_link("/proc/self/ns/net").ok()?);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(|id: u32| {
        let folder = Path::new("/proc").join(id.to_string());
        let line = fs::read(folder.join("cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let is_switch = Path::new(&*words[0]).file_name().is_some_and(|name| name == "podgate")
            && words.get(1).is_some_and(|word| word == "run");
        let is_beside = || fs::read_link(folder.join("ns/net")).is_ok_and(|net| net == own.1);
        (id != own.0 && is_switch && is_beside()).then(|| {
            format!("another podgate runs on this node (pid {id}: {})", words.join(" ").trim())
        })
    })
}
