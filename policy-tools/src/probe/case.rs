//! One case: a question about a connection, as users write it.
//!
//! ```json
//! {"from": "default/web", "to": "service/default/db", "protocol": "TCP", "port": 6379, "expect": "allow"}
//! ```
//!
//! | `from`, `to` | means |
//! |---|---|
//! | `NS/POD` | a pod (`pod/NS/POD` says the same, also of pods in a namespace called `node`) |
//! | an IP address | the pod, node or service (`to`) that has it, else a host outside |
//! | `node/NAME` | a node |
//! | `service/NS/NAME` | the ready endpoints of a service; `to` only |
//! | a domain name | the addresses that `--resolve` gives for it; `to` only |
//!
//! A case may have further fields; they are kept.

use std::fmt;

use serde_json::Value;

use super::answer::Expected;
use super::{Endpoint, Port, Protocol};

pub(crate) use super::ends::port;
pub use super::ends::{endpoint, port_argument};

/// The fields of a case, in the order they were written.
pub type Fields = Vec<(String, Value)>;

/// A question about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// All its fields, as given.
    pub fields: Fields,
    /// The end that opens the connection; never a service or a domain name.
    pub from: Endpoint,
    /// The end that it is opened to.
    pub to: Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<Port>,
    /// The verdict that the user expects.
    pub expect: Option<Expected>,
}

/// A fault of a case; displays as `case N: FIELD: PROBLEM`, without the parts that do not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the case, from 1.
    pub case: Option<usize>,
    /// The field; empty for the case as a whole.
    pub field: &'static str,
    /// The fault, with the value where that helps.
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

/// The fields of a case that have a meaning.
const FIELDS: [&str; 5] = ["from", "to", "protocol", "port", "expect"];

/// Returns whether a field is probably a known one misspelt: in another case, with one letter added, removed or
/// changed, two exchanged, or an ending.
fn is_misspelt(field: &str, known: &str) -> bool {
    if field == known {
        return false;
    }
    let lower = field.to_lowercase();
    let has_ending = known.len() > 3
        && ["s", "ed", "s-to", "_", "ation", "ing"]
            .iter()
            .any(|end| lower.strip_prefix(known).is_some_and(|rest| rest == *end));
    lower == known || has_ending || known.len() > 3 && strsim::osa_distance(&lower, known) == 1
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
    value.as_str().ok_or_else(|| format!("{value} is not text"))
}

fn sender(text: &str) -> Result<Endpoint, String> {
    let endpoint = endpoint(text)?;
    match endpoint.only_a_target() {
        Some(what) => Err(format!("{text:?} is {what}, which opens no connection")),
        None => Ok(endpoint),
    }
}

fn protocol(value: &Value) -> Result<Protocol, String> {
    Protocol::from_name(text(value)?)
        .ok_or_else(|| format!("{value} is none of TCP, UDP, SCTP, ICMP"))
}

fn verdict(value: &Value) -> Result<Expected, String> {
    Expected::from_name(text(value)?)
        .ok_or_else(|| format!("{value} is none of allow, deny, unreachable"))
}

/// A port where none counts: port 0 is as good as none.
fn any_port(value: &Value) -> Result<(), String> {
    match value.as_u64() {
        Some(0) => Ok(()),
        _ => port(value).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::PodKey;
    use control::model::Key;

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
        assert_eq!(case.expect, Some(Expected::Deny));
        assert_eq!(case.fields.len(), 6);
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
                "case 3: to: 7 is not text",
                "case 3: protocol: \"tcp\" is none of TCP, UDP, SCTP, ICMP",
                "case 3: expect: \"maybe\" is none of allow, deny, unreachable",
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
        // Taken for a name that no pod has, it would make any statement hold.
        for bad in ["\"1-52\"", "\"HTTP\"", "\"80,443\"", "\"-a\"", "\"a b\""] {
            assert!(with("TCP", bad).is_err(), "{bad}");
        }
        assert_eq!(with("TCP", "\"p-1\""), Ok(Some(Port::Name("p-1".into()))));
        assert_eq!(with("ICMP", "null"), Ok(None));
        assert_eq!(with("ICMP", "0"), Ok(None));
        assert!(with("ICMP", "99999").is_err());
    }
}
