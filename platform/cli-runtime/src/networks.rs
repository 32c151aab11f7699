//! A list of networks as text.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// Networks, an address being a network of one: `10.0.0.0/8,192.0.2.1`, or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(pub Vec<IpNet>);

impl FromStr for Networks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::default());
        }
        let network = |text: &str| {
            let address = || text.parse().map(|it: IpAddr| IpNet::from(it));
            let network: IpNet = text.parse().or_else(|_| address()).map_err(|_| {
                format!("'{}' is neither a network nor an address, nor off", text.escape_debug())
            })?;
            match network.trunc() {
                exact if exact == network => Ok(network),
                exact => Err(format!("{network} has host bits; write {exact}")),
            }
        };
        text.split(',').map(str::trim).map(network).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |network: &IpNet| match network.prefix_len() == network.max_prefix_len() {
            true => network.addr().to_string(),
            false => network.to_string(),
        };
        match self.0.iter().map(text).collect::<Vec<_>>() {
            none if none.is_empty() => f.write_str("off"),
            networks => f.write_str(&networks.join(",")),
        }
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        for text in ["off", "169.254.169.254", "169.254.0.0/16,fd00::/8,192.0.2.1"] {
            assert_eq!(text.parse::<Networks>().unwrap().to_string(), text);
        }
        for text in ["", "on", "10.0.0.1/8", "10.0.0.0/8,", "off,10.0.0.0/8", "10.0.0.0/33"] {
            assert!(text.parse::<Networks>().is_err(), "{text}");
        }
    }
}
