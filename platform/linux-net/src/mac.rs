//! Ethernet addresses, as configuration and the local API write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An Ethernet address, its six bytes in the order they have on the wire.
///
/// Written and read as `02:00:5e:10:00:01` (IEEE 802, section 8.1, with colons).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

/// A text that is no Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an Ethernet address: expected six two-digit hex numbers joined by ':'")]
pub struct ParseMacError(String);

impl MacAddress {
    /// The address with these bytes; `None` unless they are six.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns whether this names one station: not a group address and not all zeros.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// A locally administered unicast address from `bits`, which never equals a manufacturer's
    /// address (IEEE 802, section 8.4).
    pub fn local(bits: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        Self([(a & !1) | 2, b, c, d, e, f])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let refused = || ParseMacError(text.chars().take(40).collect());
        let mut bytes = [0; 6];
        let mut groups = text.split(':');
        for byte in &mut bytes {
            let group = groups.next().ok_or_else(refused)?;
            if group.len() != 2 || !group.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(refused());
            }
            *byte = u8::from_str_radix(group, 16).map_err(|_| refused())?;
        }
        if groups.next().is_some() { Err(refused()) } else { Ok(Self(bytes)) }
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac: MacAddress = "02:00:5E:10:00:ff".parse().unwrap();
        assert_eq!(mac, MacAddress([2, 0, 0x5e, 0x10, 0, 0xff]));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        assert_eq!(serde_json::to_string(&mac).unwrap(), "\"02:00:5e:10:00:ff\"");
        assert_eq!(serde_json::from_str::<MacAddress>("\"02:00:5e:10:00:ff\"").unwrap(), mac);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "02", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "2:0:0:0:0:0", "02:00:5e:10:00:+f"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn local_addresses_are_unicast_and_ours() {
        for bits in [0, 1, u64::MAX, 0x0001_0203_0405_0607] {
            let mac = MacAddress::local(bits);
            assert!(mac.is_unicast());
            assert_eq!(mac.0[0] & 2, 2);
        }
        assert!(!MacAddress([0xff; 6]).is_unicast());
        assert!(!MacAddress([0; 6]).is_unicast());
    }
}
