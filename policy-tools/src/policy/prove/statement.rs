//! Statements, and the file that holds them.

use serde_json::Value;

use crate::input::located::{self, Located, Tree};
use crate::policy::suite::Side;
use crate::probe::{Port, Protocol, Verdict, case};

/// One statement.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Its name; made of its fields where it has none.
    pub name: String,
    /// Its line in the file.
    pub line: u64,
    pub(super) from: From,
    pub(super) to: Side,
    /// `None`: each of them.
    pub(super) protocol: Option<Protocol>,
    /// `None`: each of them.
    pub(super) port: Option<Port>,
    pub(super) expect: Verdict,
}

/// The ends that open connections.
#[derive(Clone, Debug)]
pub(super) enum From {
    These(Side),
    /// All pods and addresses but these.
    AllBut(Vec<Side>),
}

const FIELDS: [&str; 7] = ["name", "from", "only", "to", "protocol", "port", "expect"];

/// Reads a file of statements.
///
/// # Errors
/// Everything that is wrong, each with its place, and a file without statements.
pub fn read(text: &[u8]) -> Result<Vec<Statement>, Vec<String>> {
    let found = read_any(text)?;
    if found.is_empty() { Err(vec!["holds no statement".into()]) } else { Ok(found) }
}

/// The same; the file may hold none.
///
/// # Errors
/// Everything that is wrong, each with its place.
pub fn read_any(text: &[u8]) -> Result<Vec<Statement>, Vec<String>> {
    let documents = located::documents(text).map_err(|problem| vec![problem])?;
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    let entries = documents.iter().flat_map(|document| match &document.tree {
        Tree::List(list) => list.iter().collect(),
        Tree::Scalar(Value::Null) => Vec::new(),
        _ => vec![document],
    });
    for (n, entry) in entries.enumerate() {
        let at = format!("statement {} (line {})", n + 1, entry.line);
        match Statement::read(entry) {
            Ok(statement) => found.push(statement),
            Err(problems) => faults.extend(problems.iter().map(|it| format!("{at}: {it}"))),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

impl Statement {
    fn read(entry: &Located) -> Result<Self, Vec<String>> {
        if !matches!(entry.tree, Tree::Map(_)) {
            return Err(vec![format!("{} is no statement", entry.value())]);
        }
        let mut faults = Vec::new();
        for (field, _) in entry.fields().iter().filter(|(it, _)| !FIELDS.contains(&it.as_str())) {
            let known = FIELDS.join(", ");
            faults.push(format!("{field}: unknown field; a statement has {known}"));
        }
        let mut keep = |field: &str, problem: String| faults.push(format!("{field}: {problem}"));
        let text = |field: &str| match entry.get(field) {
            None => Ok(None),
            Some(it) => it.text().map(Some).ok_or_else(|| format!("{} is no text", it.value())),
        };
        let mut of = |field: &str| {
            text(field).unwrap_or_else(|problem| {
                keep(field, problem);
                None
            })
        };
        let [name, from, to, protocol, expect] =
            ["name", "from", "to", "protocol", "expect"].map(&mut of);
        let mut side = |field: &str, text: &str| match Side::read(text, field == "to") {
            Ok(side) => Some(side),
            Err(problem) => {
                keep(field, problem);
                None
            }
        };
        let to_side = to.and_then(|text| side("to", text));
        let from_side = from.and_then(|text| side("from", text));
        let only = entry.get("only").map(|only| {
            let elements =
                if only.is_list() { only.elements() } else { std::slice::from_ref(only) };
            let texts = elements.iter().map(|it| it.text().unwrap_or_default());
            texts.filter_map(|text| side("only", text)).collect::<Vec<Side>>()
        });
        if to.is_none() && entry.get("to").is_none() {
            keep("to", "is missing".into());
        }
        if entry.get("from").is_some() == only.is_some() {
            keep("from", "a statement has either from or only".into());
        }
        let expect = match (expect, only.is_some()) {
            (Some("allow"), false) => Some(Verdict::Allow),
            (Some("deny"), false) => Some(Verdict::Deny),
            (None, true) => Some(Verdict::Deny),
            (Some(_), true) => {
                keep("expect", "goes with from, not with only".into());
                None
            }
            (Some(other), false) => {
                keep("expect", format!("{other:?} is neither \"allow\" nor \"deny\""));
                None
            }
            (None, false) => {
                keep("expect", "is missing".into());
                None
            }
        };
        let named = protocol.map(|text| Protocol::from_name(text).ok_or(text));
        let protocol = match named {
            Some(Err(text)) => {
                keep("protocol", format!("{text:?} is none of TCP, UDP, SCTP, ICMP"));
                None
            }
            Some(Ok(protocol)) => Some(protocol),
            None => None,
        };
        let is_icmp = protocol == Some(Protocol::Icmp);
        let is_every = entry.get("port").and_then(Located::text) == Some("*");
        let port = match entry.get("port").map(Located::value) {
            Some(_) if is_every => None,
            Some(_) if is_icmp => {
                keep("port", "ICMP has no ports".into());
                None
            }
            Some(value) => match case::port(&value) {
                Ok(port) => Some(port),
                Err(problem) => {
                    keep("port", problem);
                    None
                }
            },
            None => {
                if !is_icmp {
                    keep("port", "is missing; \"*\" is every port".into());
                }
                None
            }
        };
        let protocol = protocol.or((!is_every).then_some(Protocol::Tcp));
        let from_side = match (from_side, only) {
            (Some(side), _) => Some(From::These(side)),
            (None, only) => only.map(From::AllBut),
        };
        match (from_side, to_side, expect, faults.is_empty()) {
            (Some(from), Some(to), Some(expect), true) => {
                let made = || format!("line {}", entry.line);
                let name = name.map_or_else(made, str::to_owned);
                Ok(Self { name, line: entry.line, from, to, protocol, port, expect })
            }
            _ => Err(faults),
        }
    }

    /// Whether it is about pods that a namespace may have.
    pub(crate) fn concerns(&self, namespace: &str) -> bool {
        let has = |side: &Side| match side {
            Side::Pods(own, _) => own.as_deref().is_none_or(|own| own == namespace),
            Side::AnyPod | Side::AnyNamespace | Side::Any => true,
            Side::One(_) | Side::Internet | Side::Nodes => false,
        };
        let from = match &self.from {
            From::These(side) => has(side),
            From::AllBut(_) => true,
        };
        from || has(&self.to)
    }

    /// The ends that it names.
    pub fn sides(&self) -> impl Iterator<Item = &Side> {
        let from = match &self.from {
            From::These(side) => std::slice::from_ref(side),
            From::AllBut(sides) => sides,
        };
        from.iter().chain([&self.to])
    }
}
