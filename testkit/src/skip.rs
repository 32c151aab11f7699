//! Tests that say what they need, and what becomes of them without it.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
/// If the environment variable `PODGATE_REFUSE_SKIPS` is `1`: then a skipped
/// test is a failed one.
pub fn skipped(name: &str, reason: &str) {
    let refused = std::env::var("PODGATE_REFUSE_SKIPS").is_ok_and(|value| value == "1");
    assert!(!refused, "{name} must not be skipped here: {reason}");
    // Not eprintln: the harness would keep that to itself, for the test passes. One write, so
    // that lines of tests that run at the same time do not mix.
    let line = format!("SKIPPED {name}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written");
}

/// Whether this process may do anything (effective user 0).
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Whether `program` is an executable file in one of the folders of `PATH`,
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

    /// Runs the test above in a process of its own.
    fn run(variables: &[(&str, &str)]) -> (bool, String) {
        let test = std::env::current_exe().unwrap();
        let output = Command::new(test)
            .args(["--exact", "skip::tests::a_test_without_what_it_needs"])
            .env_remove("PODGATE_REFUSE_SKIPS")
            .env("TESTKIT_UNDER_TEST", "yes")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    }

    #[test]
    fn a_skip_is_told_by_name_past_the_harness() {
        let (passed, errors) = run(&[]);
        assert!(passed);
        let line = "SKIPPED testkit::skip::tests::a_test_without_what_it_needs: \
                    what it needs is away";
        assert!(errors.lines().any(|seen| seen == line), "{errors}");
    }

    #[test]
    fn a_test_with_what_it_needs_is_not_skipped() {
        let (passed, errors) = run(&[("TESTKIT_HAS_WHAT_IT_NEEDS", "yes")]);
        assert!(passed);
        assert!(!errors.contains("SKIPPED"), "{errors}");
    }

    #[test]
    fn where_skips_are_refused_a_skip_fails() {
        let (passed, _) = run(&[("PODGATE_REFUSE_SKIPS", "1")]);
        assert!(!passed);
    }

    #[test]
    fn programs_are_found_in_the_path_only() {
        assert!(has_program("sh"));
        assert!(has_program("/bin/sh"));
        assert!(!has_program("sh-that-nobody-has"));
        assert!(!has_program("/etc/passwd"));
    }
}
