//! Privileges of the calling process, as the kernel reports them in `/proc/self/status`.

use std::fs;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

/// Privileges of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Confinement {
    /// Effective capabilities, by name.
    pub capabilities: Vec<String>,
    /// True if programs that it runs can gain any.
    pub no_new_privileges: bool,
    /// True if a seccomp filter is in force.
    pub seccomp: bool,
    /// True if files change in a few folders alone.
    #[serde(default)]
    pub files: bool,
}

/// Names by number (linux/capability.h).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

impl Confinement {
    /// Names of capabilities.
    pub fn names(set: CapabilitySet) -> Vec<&'static str> {
        held(set.bits()).collect()
    }

    /// As of now; empty where `/proc` is not there.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // The kernel does not report it.
        Self { files: crate::files::are_confined(), ..parse(&text) }
    }
}

fn held(bits: u64) -> impl Iterator<Item = &'static str> {
    NAMES.iter().enumerate().filter(move |(bit, _)| bits >> bit & 1 == 1).map(|(_, name)| *name)
}

fn parse(text: &str) -> Confinement {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim()
    };
    let effective = u64::from_str_radix(field("CapEff"), 16).unwrap_or(0);
    Confinement {
        capabilities: held(effective).map(str::to_owned).collect(),
        no_new_privileges: field("NoNewPrivs") == "1",
        seccomp: field("Seccomp") == "2",
        files: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let text = "Name:\tpodgate\nCapEff:\t0000008000007000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        let state = parse(text);
        assert_eq!(state.capabilities, ["NET_ADMIN", "NET_RAW", "IPC_LOCK", "BPF"]);
        assert!(state.no_new_privileges && state.seccomp);
        assert_eq!(parse(""), Confinement::default());
    }
}
