//! Network namespaces that end with the test.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Process;
use crate::unique::unique_name;

/// A named network namespace, its loopback up, deleted when this value is
/// dropped: at the end of the test, or while it unwinds from a panic.
///
/// Its name holds the process's number, so that tests of several processes do
/// not meet, and one that was killed is found: `ip netns list` shows `pgt-…`.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    path: PathBuf,
}

impl Namespace {
    /// Makes a namespace; `label` becomes part of its name. Needs root.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(label: &str) -> Self {
        let name = unique_name(label);
        // Left over from a test that was killed, in a process with the same number.
        let _absent = Command::new("ip").args(["netns", "delete", &name]).output();
        run(Command::new("ip").args(["netns", "add", &name]));
        // From here on dropping it deletes it, even if the next step fails.
        let namespace = Self { path: Path::new("/run/netns").join(&name), name };
        namespace.exec(["ip", "link", "set", "lo", "up"]);
        namespace
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `work` on a thread of its own that is inside; sockets opened there stay inside.
    ///
    /// # Panics
    /// If the thread cannot enter, or if `work` panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        let inside = || {
            let file = std::fs::File::open(&self.path)
                .unwrap_or_else(|error| panic!("open {}: {error}", self.path.display()));
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .unwrap_or_else(|error| panic!("enter {}: {error}", self.name));
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A command that will run inside.
    ///
    /// # Panics
    /// If `command` is empty.
    pub fn command<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Command {
        let mut whole = Command::new("ip");
        whole.args(["netns", "exec", &self.name]).args(command);
        assert!(whole.get_args().len() > 3, "no command to run in {}", self.name);
        whole
    }

    /// Runs a command inside and returns its standard output.
    ///
    /// # Panics
    /// If it cannot be started or fails; the message has all it wrote.
    pub fn exec<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> String {
        let output = run(&mut self.command(command));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command inside, and lets it fail.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn try_exec<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Output {
        let mut command = self.command(command);
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Returns whether `to` answers an echo request, which is sent once, within three seconds.
    pub fn pings(&self, to: &str) -> bool {
        pings(&self.name, to)
    }

    /// Starts a program inside that ends with the guard returned.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Process {
        Process::spawn(&mut self.command(command))
    }
}

/// Returns whether `to` answers an echo request from the namespace with this name, which is sent once, within
/// three seconds.
///
/// # Panics
/// If `ping` cannot be started.
pub fn pings(namespace: &str, to: &str) -> bool {
    let ping = ["netns", "exec", namespace, "ping", "-c", "1", "-W", "3", to];
    Command::new("ip").args(ping).output().expect("ping").status.success()
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A test may have deleted it on purpose.
        if !self.path.exists() {
            return;
        }
        match Command::new("ip").args(["netns", "delete", &self.name]).output() {
            Ok(output) if output.status.success() => {}
            failed => eprintln!("delete namespace {}: {failed:?}", self.name),
        }
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_after_a_panic() {
        crate::requires_root!();
        let path = std::panic::catch_unwind(|| {
            let namespace = Namespace::new("panic");
            assert!(namespace.exec(["ip", "-brief", "link"]).contains("lo"));
            std::panic::panic_any(namespace.path().to_owned());
        })
        .unwrap_err();
        let path = path.downcast::<PathBuf>().unwrap();
        assert!(!path.exists(), "{}", path.display());
    }

    #[test]
    fn a_failing_command_is_seen() {
        crate::requires_root!();
        let namespace = Namespace::new("fail");
        assert!(!namespace.try_exec(["false"]).status.success());
        assert!(std::panic::catch_unwind(|| namespace.exec(["false"])).is_err());
    }
}
