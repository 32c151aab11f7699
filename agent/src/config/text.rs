//! Values of options that have a text form of their own.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cli_runtime::{Networks, Span};
use control::model::DeniedReply;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// The value of an option as it is written.
pub(super) trait Text {
    fn text(&self) -> String;
}

macro_rules! text_by_display {
    ($($type:ty),* $(,)?) => {
        $(impl Text for $type {
            fn text(&self) -> String {
                self.to_string()
            }
        })*
    };
}

text_by_display![
    Bytes,
    Cores,
    DeniedReply,
    HubbleAddress,
    IpAddr,
    IpNet,
    Networks,
    OnOff,
    PortSpan,
    SocketAddr,
    Span,
    String,
    u16,
    u32,
    usize,
];

impl Text for PathBuf {
    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// A switch: `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOff {
    /// `on`
    On,
    /// `off`
    Off,
}

/// A number of bytes: `256MB`, `1GiB` or `1048576`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Ports from the first to the last: `61000-65535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpan(pub u16, pub u16);

/// Address of the Hubble Observer API: `ADDRESS:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubbleAddress {
    /// An address, over TLS.
    Tls(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// Processor cores by number, in order: `2,3` or `4-7` or a mixture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cores(pub Vec<usize>);

/// No machine has more cores; keeps `0-4000000000` from filling the memory.
const MOST_CORES: usize = 4096;

/// Units of sizes: decimal ones, and those of IEC 80000-13.
const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_unit = |(unit, bytes): (&str, u64)| Some((text.strip_suffix(unit)?, bytes));
        let (number, unit) = UNITS.into_iter().find_map(of_unit).unwrap_or((text, 1));
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        bytes.filter(|bytes| *bytes > 0).map(Self).ok_or_else(|| {
            format!(
                "'{}' is not a size; write a number and KB, MB, GB, KiB, MiB or GiB",
                text.escape_debug()
            )
        })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0.is_multiple_of(*unit);
        match UNITS.iter().filter(fits).max_by_key(|(_, unit)| *unit) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => self.0.fmt(f),
        }
    }
}

impl FromStr for PortSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("'{}' are not ports; write FIRST-LAST", text.escape_debug());
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

impl FromStr for HubbleAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            let text = text.escape_debug();
            format!("'{text}' is neither ADDRESS:PORT nor unix:PATH with an absolute path")
        };
        match text.strip_prefix("unix:") {
            // Clients write unix:///PATH.
            Some(path) => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                let is_file = path.is_absolute() && path.file_name().is_some();
                if is_file { Ok(Self::Unix(path.to_owned())) } else { Err(refused()) }
            }
            None => text.parse().map(Self::Tls).map_err(|_| refused()),
        }
    }
}

impl fmt::Display for HubbleAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
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

impl From<bool> for OnOff {
    fn from(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
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
                    "'{}' is not a list of cores; write numbers and ranges such as 2,4-6",
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

read_as_text!(OnOff Bytes Cores HubbleAddress PortSpan);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [("256MB", 256_000_000), ("2GiB", 2 << 30), ("1048577", 1_048_577)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for text in ["", "0", "MB", "-1MB", "1.5GB", "1 MB", "99999999999GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
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
