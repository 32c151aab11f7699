//! Requirements of tests, and the report of skipped ones.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

/// Ends the test here, as skipped, unless the condition holds:
/// `requires!(condition, "why it cannot run")`.
#[macro_export]
macro_rules! requires {
    ($condition:expr, $reason:expr) => {
        if !$condition {
            fn here() {}
            $crate::skipped($crate::function_name(&here), &$reason.to_string());
            return;
        }
    };
}

/// Ends the test here, as skipped, unless it runs as root.
#[macro_export]
macro_rules! requires_root {
    () => {
        $crate::requires!($crate::is_root(), "needs root")
    };
}

/// Reports the test called `name` as skipped.
///
/// # Panics
/// If the environment variable `PODGATE_REFUSE_SKIPS` is `1`, which makes a skipped test a failed
/// one.
pub fn skipped(name: &str, reason: &str) {
    let refused = std::env::var("PODGATE_REFUSE_SKIPS").is_ok_and(|value| value == "1");
    assert!(!refused, "{name} must not be skipped here: {reason}");
    // Not eprintln, which the harness captures in tests that pass. One write, so that lines of concurrent tests do not
    // mix. It begins with a line end: a harness that runs one test at a time has just written the test's name without
    // one.
    let line = format!("\nSKIPPED {name}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written");
}

/// Returns whether this process is root and may configure networks and namespaces
/// (CAP_NET_ADMIN, CAP_SYS_ADMIN): root in a container often may not.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| may_do_anything(&status))
}

/// Reads `/proc/PID/status` (proc_pid_status(5)): the second user number is the
/// effective one; capabilities are bits of a hexadecimal number, counted as in
/// linux/capability.h.
fn may_do_anything(status: &str) -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let user = field("Uid:").and_then(|users| users.split_whitespace().nth(1));
    let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let needed = NET_ADMIN | SYS_ADMIN;
    user == Some("0") && capabilities.is_some_and(|has| has & needed == needed)
}

/// Returns whether `program` is an executable file in one of the folders of `PATH`,
/// or, with a `/` in it, at that place.
pub fn has_program(program: &str) -> bool {
    let executable = |path: std::path::PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return executable(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| executable(folder.join(program)))
}

/// The path of the function that a nested function was written in.
#[doc(hidden)]
pub fn function_name<T>(_nested: &T) -> &'static str {
    let nested = std::any::type_name::<T>();
    nested.rsplit_once("::").map_or(nested, |(outer, _)| outer)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_test_without_what_it_needs() {
        let needed = std::env::var("TESTKIT_HAS_WHAT_IT_NEEDS").is_ok_and(|value| value == "yes");
        let under_test = std::env::var("TESTKIT_UNDER_TEST").is_ok_and(|value| value == "yes");
        requires!(needed || !under_test, "what it needs is away");
        assert!(needed || !under_test, "the requirement did not end the test");
    }

    /// Runs the test above in a process of its own, with `threads` tests at a time; all it
    /// wrote, as in one log.
    fn run(threads: u32, variables: &[(&str, &str)]) -> (bool, String) {
        let output = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "skip::tests::a_test_without_what_it_needs"])
            .arg(format!("--test-threads={threads}"))
            .env_remove("PODGATE_REFUSE_SKIPS")
            .env("TESTKIT_UNDER_TEST", "yes")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn a_skip_is_told_by_name_past_the_harness() {
        let line = "SKIPPED testkit::skip::tests::a_test_without_what_it_needs: \
                    what it needs is away";
        for threads in [1, 2] {
            let (passed, log) = run(threads, &[]);
            assert!(passed, "{log}");
            assert!(log.lines().any(|seen| seen == line), "{threads} at a time: {log}");
        }
    }

    #[test]
    fn a_test_with_what_it_needs_is_not_skipped() {
        let (passed, log) = run(2, &[("TESTKIT_HAS_WHAT_IT_NEEDS", "yes")]);
        assert!(passed);
        assert!(!log.contains("SKIPPED"), "{log}");
    }

    #[test]
    fn where_skips_are_refused_a_skip_fails() {
        let (passed, _) = run(2, &[("PODGATE_REFUSE_SKIPS", "1")]);
        assert!(!passed);
    }

    #[test]
    fn root_in_a_container_is_not_always_root() {
        let status = |user: &str, capabilities: &str| {
            format!("Name:\ttest\nUid:\t1000\t{user}\t0\t0\nCapEff:\t{capabilities}\n")
        };
        assert!(may_do_anything(&status("0", "000001ffffffffff")));
        assert!(!may_do_anything(&status("1000", "000001ffffffffff")));
        // Root's default capabilities under Docker.
        assert!(!may_do_anything(&status("0", "00000000a80425fb")));
        assert!(!may_do_anything(""));
    }

    #[test]
    fn programs_are_found_in_the_path_only() {
        assert!(has_program("sh"));
        assert!(has_program("/bin/sh"));
        assert!(!has_program("sh-that-nobody-has"));
        assert!(!has_program("/etc/passwd"));
    }
}
