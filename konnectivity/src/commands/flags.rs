//! Parses values of flags like the original.

use std::time::Duration;

/// Reads `1h`, `30s`, `1m30s`, `500ms`, `1.5s`, `0`. A negative time counts as none, as it does in
/// the original.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match text.strip_prefix('-') {
        Some(rest) => positive_duration(rest).map(|_| Duration::ZERO),
        None => positive_duration(text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Reads a time that is not negative.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let fault = || format!("'{text}' is not a time like 30s, 1m30s or 500ms");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|it: char| it != '.' && !it.is_ascii_digit()).ok_or_else(fault)?;
        let (number, unit) = rest.split_at(end);
        let end = unit.find(|it: char| it == '.' || it.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at(end);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(fault()),
        };
        seconds += number.parse::<f64>().map_err(|_| fault())? * factor;
        rest = after;
    }
    match text.is_empty() {
        true => Err(fault()),
        false => Duration::try_from_secs_f64(seconds).map_err(|_| fault()),
    }
}

/// Reads a boolean as Go does.
pub(super) fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("'{other}' is neither true nor false")),
    }
}

/// The given name, or a new one.
pub(super) fn name_or_new(given: &str) -> String {
    if given.is_empty() { uuid() } else { given.to_owned() }
}

/// A new name (RFC 9562, version 4).
fn uuid() -> String {
    let mut bytes = [0_u8; 16];
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    if read.is_err() {
        // Fallback where the kernel gives no random bytes.
        bytes[..4].copy_from_slice(&std::process::id().to_be_bytes());
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        bytes[4..12].copy_from_slice(&(now.as_nanos() as u64).to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_go_writes_them() {
        for (text, millis) in [
            ("1h", 3_600_000),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            ("0", 0),
            ("0s", 0),
            ("1h0m0s", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("-1h30m"), Ok(Duration::ZERO));
        assert!(positive_duration("-1s").is_err());
        for text in ["", "1", "s", "1x", "1..2s", "9e99h", "--1s", "-"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_differ() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        assert_eq!((one.len(), &one[14..15]), (36, "4"));
    }
}
