//! One case: a question about a connection, as users write it.
//!
//! ```json
//! {"from": "default/web", "to": "service/default/db", "protocol": "TCP", "port": 6379, "expect": "allow"}
//! ```
//!
//! | `from`, `to` | means |
//! |---|---|
//! | `NS/POD` | a pod (`pod/NS/POD` says the same, also of pods in a namespace called `node`) |
//! | an IP address | the pod, cluster node or service (`to`) that has it, else a host outside |
//! | `node/NAME` | a cluster node |
//! | `service/NS/NAME` | the ready endpoints of a service; `to` only |
//!
//! A case may have further fields; they are kept.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use control::PodKey;
use control::model::Key;
use serde_json::Value;

use super::{Protocol, Verdict};
use crate::input;

/// The fields of a case, in the order they were written.
pub type Fields = Vec<(String, Value)>;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A pod by name.
    Pod(PodKey),
    /// The object that has this address, or a host outside.
    Address(IpAddr),
    /// A cluster node by name.
    Node(Arc<str>),
    /// A service by name.
    Service(Key),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => key.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Service(key) => write!(f, "service/{key}"),
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

/// A question about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// All its fields, as given.
    pub fields: Fields,
    /// The end that opens the connection; never a service.
    pub from: Endpoint,
    /// The end that it is opened to.
    pub to: Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<Port>,
    /// The verdict that the user expects.
    pub expect: Option<Verdict>,
}

/// What is wrong with a case; displays as `case N: FIELD: what is wrong`, without the parts that
/// do not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the case, from 1.
    pub case: Option<usize>,
    /// The field; empty for the case as a whole.
    pub field: &'static str,
    /// What is wrong, with the value where that helps.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(case) = self.case {
            write!(f, "case {case}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}

impl Case {
    /// Reads the fields of case `number` (from 1).
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn read(number: usize, fields: Fields) -> Result<Self, Vec<Fault>> {
        let mut reader = Reader { number, fields: &fields, faults: Vec::new() };
        for (index, (name, _)) in fields.iter().enumerate() {
            if fields[..index].iter().any(|(before, _)| before == name) {
                reader.faults.push(Fault {
                    case: Some(number),
                    field: "",
                    problem: format!("the field {name:?} is given twice"),
                });
            }
        }
        for (name, _) in &fields {
            if let Some(known) = FIELDS.into_iter().find(|known| is_misspelt(name, known)) {
                reader.faults.push(Fault {
                    case: Some(number),
                    field: "",
                    problem: format!("the field {name:?} is unknown; {known:?} is one that counts"),
                });
            }
        }
        let from = reader.field("from", |value| sender(text(value)?));
        let to = reader.field("to", |value| endpoint(text(value)?));
        let protocol = reader.field("protocol", protocol);
        let port = match protocol {
            Some(Protocol::Icmp) => {
                reader.optional("port", any_port);
                None
            }
            Some(_) => reader.field("port", port),
            None => reader.optional("port", any_port).and(None),
        };
        let expect = reader.optional("expect", verdict);
        match (from, to, protocol) {
            (Some(from), Some(to), Some(protocol)) if reader.faults.is_empty() => {
                Ok(Self { from, to, protocol, port, expect, fields })
            }
            _ => Err(reader.faults),
        }
    }
}

/// The fields of a case that mean something.
const FIELDS: [&str; 5] = ["from", "to", "protocol", "port", "expect"];

/// Whether a field is most likely meant to be a known one: it has other case, one letter more,
/// less or changed, two exchanged, or an ending.
fn is_misspelt(field: &str, known: &str) -> bool {
    if field == known {
        return false;
    }
    let lower = field.to_lowercase();
    let has_ending = known.len() > 3
        && ["s", "ed", "s-to", "_", "ation", "ing"]
            .iter()
            .any(|end| lower.strip_prefix(known).is_some_and(|rest| rest == *end));
    lower == known || has_ending || known.len() > 3 && input::distance(&lower, known) == 1
}

struct Reader<'a> {
    number: usize,
    fields: &'a Fields,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    /// A field that may be absent or null.
    fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        let found = self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value);
        match read(found.filter(|value| !value.is_null())?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.fault(name, problem);
                None
            }
        }
    }

    /// A field that must be there.
    fn field<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        let faults = self.faults.len();
        let value = self.optional(name, read);
        if value.is_none() && self.faults.len() == faults {
            self.fault(name, "is missing".into());
        }
        value
    }

    fn fault(&mut self, field: &'static str, problem: String) {
        self.faults.push(Fault { case: Some(self.number), field, problem });
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is no text"))
}

/// Reads a pod, address, cluster node or service.
///
/// # Errors
/// What is wrong with the text.
pub fn endpoint(text: &str) -> Result<Endpoint, String> {
    if let Ok(address) = text.parse() {
        return Ok(Endpoint::Address(address));
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
    Err(format!("{text:?} is neither NS/POD, an IP address, node/NAME nor service/NS/NAME"))
}

fn sender(text: &str) -> Result<Endpoint, String> {
    match endpoint(text)? {
        Endpoint::Service(_) => Err(format!("{text:?} is a service, which opens no connection")),
        other => Ok(other),
    }
}

fn protocol(value: &Value) -> Result<Protocol, String> {
    Protocol::from_name(text(value)?)
        .ok_or_else(|| format!("{value} is none of TCP, UDP, SCTP, ICMP"))
}

fn verdict(value: &Value) -> Result<Verdict, String> {
    match text(value)? {
        "allow" => Ok(Verdict::Allow),
        "deny" => Ok(Verdict::Deny),
        _ => Err(format!("{value} is neither \"allow\" nor \"deny\"")),
    }
}

fn port(value: &Value) -> Result<Port, String> {
    if let Some(name) = value.as_str() {
        return named_port(name);
    }
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    match number {
        Some(number) if number > 0 => Ok(Port::Number(number)),
        _ if value.is_number() => Err(format!("{value} is no port number (1 to 65535)")),
        _ => Err(format!("{value} is neither a port number nor a name")),
    }
}

/// Port names have at least one letter (RFC 6335, section 5.1), so a number that was put
/// between quotes cannot be one.
fn named_port(name: &str) -> Result<Port, String> {
    if name.is_empty() {
        Err("is empty".into())
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        Err(format!("{name:?} is text; a port number stands without quotes"))
    } else {
        Ok(Port::Name(name.into()))
    }
}

/// A port where none counts: port 0 is as good as none.
fn any_port(value: &Value) -> Result<(), String> {
    match value.as_u64() {
        Some(0) => Ok(()),
        _ => port(value).map(drop),
    }
}

/// Reads a port as written on a command line.
///
/// # Errors
/// What is wrong with the text.
pub fn port_argument(text: &str) -> Result<Port, String> {
    match text.parse::<u64>() {
        Ok(number) => port(&number.into()),
        Err(_) => named_port(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        let value: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap();
        value.into_iter().collect()
    }

    fn faults(text: &str) -> Vec<String> {
        let faults = Case::read(3, fields(text)).unwrap_err();
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_case() {
        let text = r#"{"from":"a/b","to":"service/x/y","protocol":"UDP","port":"dns",
                       "expect":"deny","note":[1]}"#;
        let case = Case::read(1, fields(text)).unwrap();
        assert_eq!(case.from, Endpoint::Pod(PodKey { namespace: "a".into(), name: "b".into() }));
        assert_eq!(case.to, Endpoint::Service(Key { namespace: "x".into(), name: "y".into() }));
        assert_eq!(case.protocol, Protocol::Udp);
        assert_eq!(case.port, Some(Port::Name("dns".into())));
        assert_eq!(case.expect, Some(Verdict::Deny));
        assert_eq!(case.fields.len(), 6);
    }

    #[test]
    fn both_ends_in_every_spelling() {
        let pod = |namespace: &str, name: &str| {
            Endpoint::Pod(PodKey { namespace: namespace.into(), name: name.into() })
        };
        assert_eq!(endpoint("node/n1"), Ok(Endpoint::Node("n1".into())));
        assert_eq!(endpoint("pod/node/n1"), Ok(pod("node", "n1")));
        assert_eq!(endpoint("service/x"), Ok(pod("service", "x")));
        assert_eq!(endpoint("fd00::1"), Ok(Endpoint::Address("fd00::1".parse().unwrap())));
        for bad in ["", "x", "/", "a/", "/b", "a//b", "service/a/", "10.0.0.0/8/9", "a/b/c"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_misspelt_field_is_a_fault() {
        let with = |field: &str| {
            faults(&format!(r#"{{"from":"a/b","to":"a/c","protocol":"ICMP","{field}":"allow"}}"#))
        };
        for field in ["expected", "Expect", "exepct", "expct", "expects"] {
            assert_eq!(
                with(field),
                [format!("case 3: the field {field:?} is unknown; \"expect\" is one that counts")]
            );
        }
        for other in ["note", "id", "x", "name", "reason", "form2"] {
            let text = format!(r#"{{"from":"a/b","to":"a/c","protocol":"ICMP","{other}":1}}"#);
            assert!(Case::read(1, fields(&text)).is_ok(), "{other}");
        }
    }

    #[test]
    fn every_fault_is_reported() {
        assert_eq!(
            faults(r#"{"from":"service/a/b","to":7,"protocol":"tcp","expect":"maybe"}"#),
            [
                "case 3: from: \"service/a/b\" is a service, which opens no connection",
                "case 3: to: 7 is no text",
                "case 3: protocol: \"tcp\" is none of TCP, UDP, SCTP, ICMP",
                "case 3: expect: \"maybe\" is neither \"allow\" nor \"deny\"",
            ]
        );
        assert_eq!(
            faults("{}"),
            ["case 3: from: is missing", "case 3: to: is missing", "case 3: protocol: is missing"]
        );
    }

    #[test]
    fn ports_are_numbers_in_range_or_names() {
        let with = |protocol: &str, port: &str| {
            let text =
                format!(r#"{{"from":"a/b","to":"a/c","protocol":"{protocol}","port":{port}}}"#);
            Case::read(1, fields(&text)).map(|case| case.port)
        };
        assert_eq!(with("TCP", "65535"), Ok(Some(Port::Number(65535))));
        for bad in ["0", "65536", "-1", "1.5", "1e99", "true", "[80]", "\"\"", "\"80\"", "null"] {
            assert!(with("TCP", bad).is_err(), "{bad}");
        }
        assert_eq!(with("ICMP", "null"), Ok(None));
        assert_eq!(with("ICMP", "0"), Ok(None));
        assert!(with("ICMP", "99999").is_err());
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
