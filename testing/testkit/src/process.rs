//! Programs that end with the test.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A running program. It is killed and waited for when this value is dropped,
/// and only it: by its own process number, never by name.
///
/// Its standard output and standard error are collected, line by line, in the order of arrival.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    output: Arc<Output>,
}

#[derive(Debug, Default)]
struct Output {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<String>,
    /// Streams that have ended, of two.
    ended: usize,
}

impl Process {
    /// Starts `command`, without an input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let output = Arc::new(Output::default());
        collect(child.stdout.take(), &output);
        collect(child.stderr.take(), &output);
        Self { child, name, output }
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The lines it has written so far.
    pub fn output(&self) -> Vec<String> {
        self.output.lock().lines.clone()
    }

    /// Waits for a line that contains `text` and returns it; a line written
    /// earlier counts.
    ///
    /// # Panics
    /// If there is none within `deadline`, or the program has closed its output
    /// without it; the message shows its output.
    pub fn wait_for_line(&self, text: &str, deadline: Duration) -> String {
        let end = Instant::now() + deadline;
        let mut state = self.output.lock();
        loop {
            if let Some(line) = state.lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended == 2 {
                let why = if state.ended == 2 { "it ended" } else { "time ran out" };
                let written = state.lines.join("\n");
                drop(state);
                panic!("{} wrote no line with '{text}' before {why}:\n{written}", self.name);
            }
            state = self
                .output
                .changed
                .wait_timeout(state, left)
                .expect("no reader of output panics")
                .0;
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it still runs after `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let end = Instant::now() + deadline;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                other => panic!("{}: {other:?}\n{}", self.name, self.output().join("\n")),
            }
        }
    }

    /// Kills it (SIGKILL) and waits for its end. It may have ended already.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self) -> ExitStatus {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("end {} (process {}): {error}", self.name, self.child.id());
        }
        if std::thread::panicking() {
            eprintln!("output of {}:\n{}", self.name, self.output().join("\n"));
        }
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no reader of output panics")
    }
}

fn collect(stream: Option<impl Read + Send + 'static>, output: &Arc<Output>) {
    let output = Arc::clone(output);
    let stream = stream.expect("the stream was asked for");
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            output.lock().lines.push(String::from_utf8_lossy(&line).into_owned());
            output.changed.notify_all();
        }
        output.lock().ended += 1;
        output.changed.notify_all();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Process {
        Process::spawn(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn lines_of_both_streams_are_kept() {
        let mut process = shell("echo one; echo two >&2");
        assert_eq!(process.wait_for_line("tw", LONG), "two");
        assert_eq!(process.wait_for_line("one", LONG), "one");
        assert!(process.wait(LONG).success());
    }

    #[test]
    fn a_line_that_never_comes_fails_at_the_programs_end() {
        let process = shell("echo one");
        let waiting = || process.wait_for_line("two", LONG);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(waiting)).is_err());
    }

    #[test]
    fn it_ends_with_its_guard() {
        let process = shell("exec sleep 1000");
        let own = std::path::PathBuf::from(format!("/proc/{}", process.id()));
        assert!(own.exists());
        drop(process);
        assert!(!own.exists());
    }
}
