//! The ends of a connection and its port, as users write them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use control::PodKey;
use control::model::{Key, ServicePort};
use serde_json::Value;

use super::names;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A pod by name.
    Pod(PodKey),
    /// The object that has this address, or a host outside.
    Address(IpAddr),
    /// A node by name.
    Node(Arc<str>),
    /// A service by name.
    Service(Key),
    /// A domain name, in lower case.
    Name(Arc<str>),
}

impl Endpoint {
    /// The address, if the end is named by one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// Its kind in words, if no connection can come from such an end.
    pub(crate) fn only_a_target(&self) -> Option<&'static str> {
        match self {
            Self::Service(_) => Some("a service"),
            Self::Name(_) => Some("a domain name"),
            Self::Pod(_) | Self::Address(_) | Self::Node(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => key.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Service(key) => write!(f, "service/{key}"),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// The port a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// By number, from 1.
    Number(u16),
    /// By the name that the target's container port, or the service's port, has.
    Name(Arc<str>),
}

impl Port {
    /// Returns whether it means this port of a service.
    pub(crate) fn is(&self, port: &ServicePort) -> bool {
        match self {
            Self::Number(number) => port.port == *number,
            Self::Name(name) => port.name == *name,
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Reads a pod, address, node, service or domain name.
///
/// # Errors
/// A fault of the text.
pub fn endpoint(text: &str) -> Result<Endpoint, String> {
    if let Ok(address) = text.parse() {
        return Ok(Endpoint::Address(address));
    }
    if let Ok(name) = names::name(text) {
        return Ok(Endpoint::Name(name));
    }
    let parts: Vec<&str> = text.split('/').collect();
    if parts.iter().all(|part| !part.is_empty()) {
        match parts[..] {
            ["node", name] => return Ok(Endpoint::Node(name.into())),
            ["service", namespace, name] => {
                return Ok(Endpoint::Service(Key {
                    namespace: namespace.into(),
                    name: name.into(),
                }));
            }
            ["pod", namespace, name] | [namespace, name] => {
                return Ok(Endpoint::Pod(PodKey {
                    namespace: namespace.into(),
                    name: name.into(),
                }));
            }
            _ => {}
        }
    }
    Err(format!(
        "{text:?} is neither NS/POD, an IP address, node/NAME, service/NS/NAME nor a domain name"
    ))
}

/// Reads a port of a case.
pub(crate) fn port(value: &Value) -> Result<Port, String> {
    if let Some(name) = value.as_str() {
        return named_port(name);
    }
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    match number {
        Some(number) if number > 0 => Ok(Port::Number(number)),
        _ if value.is_number() => Err(format!("{value} is not a port number (1 to 65535)")),
        _ => Err(format!("{value} is neither a port number nor a name")),
    }
}

/// Names of container ports (RFC 6335, section 5.1) and of a service's ports (RFC 1123) are labels; those here have a
/// letter at least, so that neither a number in quotes nor a range is one.
fn named_port(name: &str) -> Result<Port, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() {
        Err("is empty".into())
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        Err(format!("{name:?} is text; a port number stands without quotes"))
    } else if name.len() > 63
        || !name.bytes().all(is_inner)
        || !name.bytes().any(|byte| byte.is_ascii_lowercase())
        || name.starts_with('-')
        || name.ends_with('-')
    {
        Err(format!("{name:?} is neither a port number nor a port name (a-z, 0-9 and '-' inside)"))
    } else {
        Ok(Port::Name(name.into()))
    }
}

/// Reads a port as written on a command line.
///
/// # Errors
/// A fault of the text.
pub fn port_argument(text: &str) -> Result<Port, String> {
    match text.parse::<u64>() {
        Ok(number) => port(&number.into()),
        Err(_) => named_port(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_in_every_spelling() {
        let pod = |namespace: &str, name: &str| {
            Endpoint::Pod(PodKey { namespace: namespace.into(), name: name.into() })
        };
        assert_eq!(endpoint("node/n1"), Ok(Endpoint::Node("n1".into())));
        assert_eq!(endpoint("pod/node/n1"), Ok(pod("node", "n1")));
        assert_eq!(endpoint("service/x"), Ok(pod("service", "x")));
        assert_eq!(endpoint("fd00::1"), Ok(Endpoint::Address("fd00::1".parse().unwrap())));
        assert_eq!(endpoint("Api.example.org"), Ok(Endpoint::Name("api.example.org".into())));
        for bad in [
            "",
            "x",
            "/",
            "a/",
            "/b",
            "a//b",
            "service/a/",
            "10.0.0.0/8/9",
            "a/b/c",
            "10.0.0.300",
            "*.example.org",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_on_the_command_line() {
        assert_eq!(port_argument("80"), Ok(Port::Number(80)));
        assert_eq!(port_argument("http"), Ok(Port::Name("http".into())));
        for bad in ["", "0", "65536", "99999999999999999999999"] {
            assert!(port_argument(bad).is_err(), "{bad}");
        }
    }
}
