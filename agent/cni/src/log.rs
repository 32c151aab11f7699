//! The plugin's optional log file: one line a call.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::config::Config;
use super::environment::Environment;
use super::error::CniError;

/// Logs the result of a call. A log that cannot be written must not fail the call, so that is
/// reported on standard error only.
pub(super) fn note(config: &Config, environment: &Environment, error: Option<&CniError>) {
    let Some(path) = &config.log_file else { return };
    let outcome = match error {
        None => "ok".to_owned(),
        Some(error) => format!("error {}: {}", error.code, error.message),
    };
    let line = line(SystemTime::now(), environment, &outcome);
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        // Standard error may be closed as well.
        let _lost = writeln!(io::stderr(), "logFile {}: {error}", path.display());
    }
}

fn line(now: SystemTime, environment: &Environment, outcome: &str) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut text = format!("{} {}", utc(seconds), environment.command);
    if let Some(attachment) = &environment.attachment {
        text += &format!(" {} {}", attachment.container_id, attachment.interface);
    }
    if let Some(pod) = &environment.pod {
        text += &format!(" {pod}");
    }
    format!("{text} {}\n", outcome.escape_debug())
}

/// Converts seconds since 1970 to date and time (RFC 3339). Counts in eras of 400 years that begin in March; the
/// Gregorian calendar repeats after each.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::environment::Command;
    use local_api::Attachment;

    #[test]
    fn dates() {
        // As `date --utc --date=@N` prints them.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn a_call_is_one_line() {
        let environment = Environment {
            command: Command::Del,
            attachment: Some(Attachment { container_id: "c1".into(), interface: "eth0".into() }),
            netns: None,
            pod: None,
            path: Vec::new(),
        };
        let line = line(UNIX_EPOCH + Duration::from_secs(60), &environment, "error 5: a\nb");
        assert_eq!(line, "1970-01-01T00:01:00Z DEL c1 eth0 error 5: a\\nb\n");
    }
}
