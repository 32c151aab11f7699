//! Filters of streamed verdicts.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Verdict;

/// Values of which one must match; an empty list matches everything. A single value is written without a list, which
/// older switches read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnyOf<T>(pub Vec<T>);

impl<T> AnyOf<T> {
    /// Returns whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether there are no values, or `holds` for one.
    pub fn any(&self, holds: impl FnMut(&T) -> bool) -> bool {
        self.0.is_empty() || self.0.iter().any(holds)
    }
}

impl<T> Default for AnyOf<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<T> for AnyOf<T> {
    fn from(value: T) -> Self {
        Self(vec![value])
    }
}

impl From<&str> for AnyOf<String> {
    fn from(value: &str) -> Self {
        Self(vec![value.to_owned()])
    }
}

impl<T: Serialize> Serialize for AnyOf<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for AnyOf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error of an untagged enumeration would not name the word at fault.
        let values = match Value::deserialize(deserializer)? {
            Value::Array(all) => all,
            one => vec![one],
        };
        let values = values.into_iter().map(serde_json::from_value);
        values.collect::<Result<_, _>>().map(Self).map_err(de::Error::custom)
    }
}

/// A port, or a range of ports, both ends included: `80`, `8000-8080`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Returns whether a port is among them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl From<u16> for AnyOf<Ports> {
    fn from(port: u16) -> Self {
        Ports::from(port).into()
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!("'{}' is neither a port nor FIRST-LAST", text.escape_debug())),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// A single port is a number, which older switches read.
impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last {
            self.first.serialize(serializer)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(de::Error::custom)
    }
}

/// Filters of streamed verdicts; all that have values must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserveFilters {
    /// Only these verdicts.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub verdict: AnyOf<Verdict>,
    /// Only connections with one of these pods, `NAMESPACE/NAME`, at either end.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub pod: AnyOf<String>,
    /// Only connections opened by one of these pods, `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_pod: AnyOf<String>,
    /// Only connections opened towards one of these pods, `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_pod: AnyOf<String>,
    /// Only connections that a pod of one of these namespaces opens or receives.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub namespace: AnyOf<String>,
    /// Only packets from pods of these namespaces.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_namespace: AnyOf<String>,
    /// Only packets to pods of these namespaces.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_namespace: AnyOf<String>,
    /// Only packets from or to pods with labels that one of these selectors selects.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub label: AnyOf<String>,
    /// Only packets from pods with such labels.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_label: AnyOf<String>,
    /// Only packets to pods with such labels.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_label: AnyOf<String>,
    /// Only packets from or to pods of one of these workloads, `NAME` or `KIND/NAME`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub workload: AnyOf<String>,
    /// Only packets from pods of these workloads.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_workload: AnyOf<String>,
    /// Only packets to pods of these workloads.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_workload: AnyOf<String>,
    /// Only packets from or to one of these addresses or networks.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub ip: AnyOf<String>,
    /// Only packets from these addresses or networks.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_ip: AnyOf<String>,
    /// Only packets to these addresses or networks.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_ip: AnyOf<String>,
    /// Only packets from or to an address with one of these domain names; `*` stands for any text.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub fqdn: AnyOf<String>,
    /// Only packets from an address with one of these domain names.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_fqdn: AnyOf<String>,
    /// Only packets to an address with one of these domain names.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_fqdn: AnyOf<String>,
    /// Only packets from or to an address of one of these services, `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub service: AnyOf<String>,
    /// Only packets from an address of these services.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_service: AnyOf<String>,
    /// Only packets to an address of these services.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_service: AnyOf<String>,
    /// Only these protocols, by name or number.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub protocol: AnyOf<String>,
    /// Only connections with one of these ports at either end.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub port: AnyOf<Ports>,
    /// Only packets from these ports.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub from_port: AnyOf<Ports>,
    /// Only packets to these ports.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub to_port: AnyOf<Ports>,
    /// Only TCP packets with all flags of one of these lists, such as `SYN,ACK`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub tcp_flags: AnyOf<String>,
    /// Only connections in these directions, as their policies have them: `ingress`, `egress`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub direction: AnyOf<String>,
    /// Only verdicts with these reasons.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub reason: AnyOf<String>,
    /// Only verdicts by policies of these names, `NAME` or `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub policy: AnyOf<String>,
    /// Only verdicts of these nodes.
    #[serde(default, skip_serializing_if = "AnyOf::is_empty")]
    pub node: AnyOf<String>,
    /// A pod name without a namespace is one of any namespace, not of `default`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all_namespaces: bool,
    /// Only verdicts at this moment or later, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only verdicts before this moment, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only connections that staged policies would decide differently; otherwise these events are left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub staged: bool,
    /// Inverts the filters above; the time span stays as it is.
    #[serde(default, skip_serializing_if = "is_false")]
    pub not: bool,
    /// No verdicts that match these filters; their time span and numbers do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub except: Option<Box<ObserveFilters>>,
    /// The number of past verdicts to send, the oldest that match; takes the place of `last`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u32>,
    /// Number of past verdicts to send first.
    #[serde(default)]
    pub last: u32,
    /// Also send new ones; otherwise the stream ends after the past ones.
    #[serde(default)]
    pub follow: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_stands_alone_and_several_are_a_list() {
        let wire = |filters: &ObserveFilters| serde_json::to_string(filters).unwrap();
        let one =
            ObserveFilters { to_pod: "shop/db".into(), port: 53.into(), ..Default::default() };
        let text = r#"{"to_pod":"shop/db","port":53,"last":0,"follow":false}"#;
        assert_eq!(wire(&one), text);
        let ports = vec![53.into(), "8000-8080".parse().unwrap()];
        let many = ObserveFilters { port: AnyOf(ports), ..Default::default() };
        assert_eq!(wire(&many), r#"{"port":[53,"8000-8080"],"last":0,"follow":false}"#);
        for wrong in ["", "x", "80-", "90-80", "65536"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
        for filters in [one, many] {
            assert_eq!(serde_json::from_str::<ObserveFilters>(&wire(&filters)).unwrap(), filters);
        }
    }
}
