//! The audit log: one line for each connection with client, target, bytes, duration and outcome.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Serialize, Serializer};

/// The log's destination.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    format: Format,
    target: Target,
}

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Words.
    #[default]
    Text,
    /// An object.
    Json,
}

#[derive(Clone, Debug, Default)]
enum Target {
    /// The log, at level info.
    #[default]
    Log,
    Stdout,
    File(Arc<Mutex<File>>),
}

/// The content of a line.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Record<'a> {
    pub(crate) role: &'a str,
    pub(crate) who: &'a str,
    pub(crate) target: &'a str,
    pub(crate) agent: &'a str,
    /// 0 if it was never established.
    pub(crate) connection: i64,
    #[serde(rename = "bytes_to_target")]
    pub(crate) to_target: u64,
    #[serde(rename = "bytes_from_target")]
    pub(crate) from_target: u64,
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub(crate) duration: Duration,
    pub(crate) outcome: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl Audit {
    /// Writes lines in this format to a file, to stdout (`-`), or by default to the log.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn new(file: Option<&Path>, format: Format) -> io::Result<Self> {
        let target = match file {
            None => Target::Log,
            Some(path) if path == Path::new("-") => Target::Stdout,
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let named = |error: io::Error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                };
                Target::File(Arc::new(Mutex::new(file.map_err(named)?)))
            }
        };
        Ok(Self { format, target })
    }

    pub(crate) fn write(&self, record: &Record<'_>) {
        if matches!(self.target, Target::Log) && !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let line = self.line(record);
        let written = match &self.target {
            Target::Log => {
                tracing::info!("{line}");
                Ok(())
            }
            Target::Stdout => writeln!(io::stdout(), "{line}"),
            // One write a line, so that lines of two processes do not mix.
            Target::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all(format!("{line}\n").as_bytes())
            }
        };
        if let Err(error) = written {
            tracing::error!("audit: {error}");
        }
    }

    fn line(&self, record: &Record<'_>) -> String {
        match self.format {
            Format::Text => format!(
                "{} -> {} through {} connection {}: {} B out, {} B in, {:.3} s: {}",
                name(record.who),
                name(record.target),
                name(record.agent),
                record.connection,
                record.to_target,
                record.from_target,
                record.duration.as_secs_f64(),
                record.outcome.escape_debug(),
            ),
            Format::Json => {
                let line = Line { time: crate::clock::now(), record };
                serde_json::to_string(&line).unwrap_or_else(|error| error.to_string())
            }
        }
    }
}

/// Escapes a name from outside, so that it stays on one line.
fn name(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats() {
        let record = Record {
            role: "server",
            who: "CN=kube-apiserver",
            target: "evil\nhost:1",
            agent: "a",
            connection: 1,
            to_target: 2,
            from_target: 3,
            duration: Duration::from_millis(1500),
            outcome: "closed by client",
        };
        let text = Audit::default().line(&record);
        assert_eq!(
            text,
            "CN=kube-apiserver -> evil\\nhost:1 through a connection 1: 2 B out, 3 B in, 1.500 s: \
             closed by client"
        );
        let json = Audit::new(None, Format::Json).unwrap().line(&record);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["target"], "evil\nhost:1");
        assert_eq!(value["bytes_from_target"], 3);
        assert_eq!(value["duration_seconds"], 1.5);
    }
}
