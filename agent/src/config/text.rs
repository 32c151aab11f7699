//! Values of options that have a text form of their own.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A length of time, written as a number and a unit: `250ms`, `90s`, `10m`, `24h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A switch: `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOff {
    /// `on`
    On,
    /// `off`
    Off,
}

/// Ports from the first to the last: `61000-65535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpan(pub u16, pub u16);

/// Processor cores by number, in order: `2,3` or `4-7` or a mixture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cores(pub Vec<usize>);

/// No machine has more cores; keeps `0-4000000000` from filling the memory.
const MOST_CORES: usize = 4096;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "'{}' is no length of time; write a number and ms, s, m, h or d",
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

impl FromStr for PortSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("'{}' are no ports; write FIRST-LAST", text.escape_debug());
        let (first, last) = text.split_once('-').ok_or_else(refused)?;
        let number = |text: &str| text.parse::<u16>().map_err(|_| refused());
        let (first, last) = (number(first)?, number(last)?);
        if first == 0 || last < first {
            return Err(refused());
        }
        Ok(Self(first, last))
    }
}

impl fmt::Display for PortSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

impl FromStr for OnOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" | "yes" => Ok(Self::On),
            "off" | "false" | "no" => Ok(Self::Off),
            other => Err(format!("'{}' is neither on nor off", other.escape_debug())),
        }
    }
}

impl fmt::Display for OnOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cores = Vec::new();
        for part in text.split(',').map(str::trim) {
            let refused = || {
                format!(
                    "'{}' is no list of cores; write numbers and ranges such as 2,4-6",
                    text.escape_debug()
                )
            };
            let number = |text: &str| {
                text.parse().ok().filter(|core| *core < MOST_CORES).ok_or_else(refused)
            };
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(refused());
            }
            for core in first..=last {
                if cores.contains(&core) {
                    return Err(format!("core {core} is named twice in '{text}'"));
                }
                cores.push(core);
            }
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

macro_rules! read_as_text {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

read_as_text!(Span OnOff Cores PortSpan);

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

    #[test]
    fn cores() {
        assert_eq!("3".parse(), Ok(Cores(vec![3])));
        assert_eq!("6, 0-2".parse(), Ok(Cores(vec![6, 0, 1, 2])));
        for text in ["", "a", "3-1", "1,1", "0-2,1", "-", "0-4000000000", "-1"] {
            assert!(text.parse::<Cores>().is_err(), "{text}");
        }
    }
}
