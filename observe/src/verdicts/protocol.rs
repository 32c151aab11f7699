//! Protocols and TCP flags: numbers within the program, names in words and in JSON.

use std::fmt;
use std::str::FromStr;

use dataplane::wire::protocol;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An IP protocol number (IANA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(pub u8);

/// TCP flags: byte 13 of the header (RFC 9293, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpFlags(pub u8);

/// Protocols with a name.
const PROTOCOLS: [(&str, u8); 5] = [
    ("TCP", protocol::TCP),
    ("UDP", protocol::UDP),
    ("SCTP", protocol::SCTP),
    ("ICMP", protocol::ICMP),
    ("ICMPv6", protocol::ICMPV6),
];

/// Flags from the lowest bit on.
const FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

/// Prints the protocol's name, or its number if it has none.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.into_iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Reads a name in any letter case, or a number.
impl FromStr for Protocol {
    /// The names.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = PROTOCOLS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let number = named.map(|(_, number)| number).or_else(|| text.parse().ok());
        number.map(Self).ok_or_else(|| PROTOCOLS.map(|(name, _)| name).join(", "))
    }
}

/// Prints the names of the flags that are set, joined by commas.
impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = FLAGS.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
    }
}

/// Reads the printed form.
impl FromStr for TcpFlags {
    /// The names.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut flags = 0;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let bit = FLAGS.iter().position(|name| *name == word);
            flags |= 1 << bit.ok_or_else(|| FLAGS.join(", "))?;
        }
        Ok(Self(flags))
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

impl Serialize for TcpFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TcpFlags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

fn read<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    let refused =
        |names| de::Error::custom(format!("'{}' is none of {names}", text.escape_debug()));
    text.parse().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        for number in 0..=u8::MAX {
            assert_eq!(Protocol(number).to_string().parse(), Ok(Protocol(number)));
            assert_eq!(TcpFlags(number).to_string().parse(), Ok(TcpFlags(number)));
        }
        assert_eq!("icmpv6".parse(), Ok(Protocol(58)));
        assert!("TCP6".parse::<Protocol>().is_err() && "NS".parse::<TcpFlags>().is_err());
    }
}
