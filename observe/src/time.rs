//! Formats of times, for people and scripts.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Formats a time in UTC, as RFC 3339 with milliseconds: `2026-11-21T02:25:35.123Z`.
///
/// A time outside of the years −9999 to 9999 is shown as 1970.
pub fn utc(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or_default())
}

/// Formats a time as [`utc`] does, with nanoseconds.
pub fn nanoseconds(time: SystemTime) -> String {
    format!("{:.9}", Timestamp::try_from(time).unwrap_or_default())
}

/// Parses a time of RFC 3339; `None` for any other text.
pub fn moment(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Formats a time as [`utc`] does, in whole seconds: `2026-11-21T02:25:35Z`.
pub fn utc_seconds(time: SystemTime) -> String {
    format!("{:.0}", Timestamp::try_from(time).unwrap_or_default())
}

/// A duration as the two largest units of days, hours, minutes and seconds.
pub fn uptime(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Times in JSON, written as by [`utc`]; any RFC 3339 text is read. For `#[serde(with)]`.
pub mod in_json {
    use std::borrow::Cow;
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de};

    /// Copied only if it has escapes.
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    /// Writes a time.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::utc(*time))
    }

    /// Reads a time.
    ///
    /// # Errors
    /// Fails if the text is not a time of RFC 3339.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        let refused =
            || de::Error::custom(format!("'{}' is not an RFC 3339 time", text.escape_debug()));
        super::moment(&text).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn moments() {
        let moment = UNIX_EPOCH + Duration::from_millis(1_795_227_935_123);
        assert_eq!(utc(moment), "2026-11-21T02:25:35.123Z");
        assert_eq!(utc_seconds(moment), "2026-11-21T02:25:35Z");
        assert_eq!(utc(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn lengths() {
        let cases = [(5, "5s"), (65, "1m 5s"), (3700, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(uptime(Duration::from_secs(seconds)), text);
        }
    }
}
