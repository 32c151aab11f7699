//! Moments as people and scripts read them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment in UTC; printed as RFC 3339 with milliseconds, `2026-11-21T02:25:35.123Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc(Duration);

impl From<SystemTime> for Utc {
    /// A clock before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl Utc {
    /// The same without the part of a second: `2026-11-21T02:25:35Z`.
    pub fn in_seconds(self) -> String {
        Self(Duration::from_secs(self.0.as_secs())).to_string().replace(".000Z", "Z")
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let ms = self.0.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Counts years from 1 March, so that the day a leap year adds is a year's last: after
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_400_YEARS: u64 = 146_097;
    let since_march_of_year_0 = days + 719_468;
    let era = since_march_of_year_0 / DAYS_PER_400_YEARS;
    let day_of_era = since_march_of_year_0 % DAYS_PER_400_YEARS;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A length of time as people read it: the two largest units of days, hours, minutes, seconds.
pub fn for_people(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_227_935_123, "2026-11-21T02:25:35.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in cases {
            assert_eq!(Utc(Duration::from_millis(ms)).to_string(), text);
        }
    }

    #[test]
    fn lengths() {
        let cases = [(5, "5s"), (65, "1m 5s"), (3700, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(for_people(Duration::from_secs(seconds)), text);
        }
    }
}
