//! Lengths of time on a command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A length of time, written as a number and a unit: `250ms`, `90s`, `10m`, `24h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "'{}' is not a time span; write a number and ms, s, m, h or d",
                text.escape_debug()
            )
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refused())?;
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        number.checked_mul(*factor).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(refused)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let fits = |factor: u64| ms.is_multiple_of(u128::from(factor)) && ms >= u128::from(factor);
        let (unit, factor) =
            UNITS.iter().rev().find(|(_, factor)| fits(*factor)).unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", ms / u128::from(*factor))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let cases =
            [("250ms", 250), ("90s", 90_000), ("2m", 120_000), ("24h", 86_400_000), ("0s", 0)];
        for (text, ms) in cases {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
        for (text, shown) in [("120s", "2m"), ("90s", "90s"), ("48h", "2d"), ("0s", "0ms")] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), shown);
        }
        for text in ["", "5", "s", "-1s", "1 s", "1.5h", "1w", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
