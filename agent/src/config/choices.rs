//! Options whose values are a few words.

use clap::ValueEnum;
use cli_runtime::Underlay;
use serde::Deserialize;

use super::text::{OnOff, Text};

/// Where the pods of other nodes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Aggregate {
    /// From a watch of all pods
    Off,
    /// From the objects that one of the switches writes
    Endpoints,
}

/// The enforcer of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcer {
    /// By the switch, on AF_XDP ports
    #[value(name = "afxdp")]
    AfXdp,
    /// By the kernel's nftables
    Nftables,
}

/// Format of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Time, level and message
    Text,
    /// One JSON object a line
    Json,
}

/// Source address of pods' packets to the world outside the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Masquerade {
    /// As themselves, through the node's kernel
    Off,
    /// As the node, through its kernel
    Kernel,
    /// As the node, by the uplink
    Direct,
}

/// Receive mode of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RxMode {
    /// busy-polls: lowest latency, one whole core for each worker
    Polling,
    /// busy-polls under load, else sleeps until an interrupt
    Adaptive,
    /// sleeps until an interrupt
    Interrupt,
}

/// Enforcement at `connect()` and `sendmsg()` by programs at pods' cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketPolicies {
    /// No
    Off,
    /// Yes; before a pod's rules are known its sockets are open
    On,
    /// Yes; before a pod's rules are known its sockets are closed
    Closed,
}

/// The error of a `connect()` or `sendmsg()` that a program denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketError {
    /// Operation not permitted
    Eperm,
    /// Connection refused
    Econnrefused,
}

/// Encryption between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// None
    #[default]
    Off,
    /// Traffic between pods of different nodes goes through a WireGuard device
    #[value(name = "wireguard")]
    WireGuard,
}

/// Use of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HugePages {
    /// if enough are free
    Auto,
    /// always; the switch does not start without them
    On,
    /// never
    Off,
}

/// Level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// errors
    Error,
    /// errors and warnings
    Warn,
    /// errors, warnings and events
    Info,
    /// errors, warnings, events and details
    Debug,
    /// everything
    Trace,
}

macro_rules! text_by_name {
    ($($type:ty),*) => {
        $(impl Text for $type {
            fn text(&self) -> String {
                self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
            }
        })*
    };
}

text_by_name![
    Aggregate,
    Encryption,
    Enforcer,
    HugePages,
    LogFormat,
    LogLevel,
    Masquerade,
    RxMode,
    SocketError,
    SocketPolicies,
    Underlay
];

/// A file may say off, which YAML reads as false.
impl<'de> Deserialize<'de> for Aggregate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "off" | "false" => Ok(Self::Off),
            "endpoints" => Ok(Self::Endpoints),
            other => {
                let other = other.escape_debug();
                Err(serde::de::Error::custom(format!("'{other}' is none of off and endpoints")))
            }
        }
    }
}

impl<'de> Deserialize<'de> for SocketPolicies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (on, off) = (Self::On, Self::Off);
        switch_or(deserializer, [on, off], ("closed", Self::Closed), "off, on and closed")
    }
}

impl<'de> Deserialize<'de> for HugePages {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (on, off) = (Self::On, Self::Off);
        switch_or(deserializer, [on, off], ("auto", Self::Auto), "auto, on and off")
    }
}

impl<'de> Deserialize<'de> for Encryption {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match (text.as_str(), text.parse()) {
            ("wireguard", _) => Ok(Self::WireGuard),
            (_, Ok(OnOff::Off)) => Ok(Self::Off),
            _ => {
                let text = text.escape_debug();
                Err(serde::de::Error::custom(format!("'{text}' is none of off and wireguard")))
            }
        }
    }
}

/// Reads on, off or a third word; `all` names the three. A file may say true and mean on.
fn switch_or<'de, D: serde::Deserializer<'de>, T>(
    deserializer: D,
    [on, off]: [T; 2],
    (word, third): (&str, T),
    all: &str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    match (text == word, text.parse()) {
        (true, _) => Ok(third),
        (false, Ok(OnOff::On)) => Ok(on),
        (false, Ok(OnOff::Off)) => Ok(off),
        (false, Err(_)) => {
            Err(serde::de::Error::custom(format!("'{}' is none of {all}", text.escape_debug())))
        }
    }
}
