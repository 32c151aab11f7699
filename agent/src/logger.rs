//! The log: one line a message to stderr, with time and level.

use std::io::Write;
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};

use observe::time::utc;

struct Stderr;

static STDERR: Stderr = Stderr;

/// Logs messages of `level` and above to stderr from now on. A second call only sets the level.
pub(crate) fn start(level: LevelFilter) {
    // It fails only if a logger is set already, which is then this one.
    let _ = log::set_logger(&STDERR);
    log::set_max_level(level);
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let time = utc(SystemTime::now());
            // One write, so that lines of several threads do not mix. Nobody is left to be
            // told if stderr is gone.
            let line = format!("{time} {:5} {}\n", record.level(), record.args());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}
