//! Files of statements.

use acl::Direction;
use serde_json::Value;

use super::statement::{Expect, From, Statement};
use crate::input::located::{self, Located, Tree};
use crate::policy::suite::Side;
use crate::probe::{Endpoint, Port, ProbeVerdict, Protocol, case};

const FIELDS: [&str; 9] =
    ["name", "from", "only", "to", "protocol", "port", "except", "hops", "expect"];
/// The expectation that what no rule allows is denied.
const DEFAULT_DENY: &str = "default-deny";
/// Fields of an exception.
const FIELDS_OF_EXCEPT: [&str; 2] = ["protocol", "port"];

/// Reads a file of statements.
///
/// # Errors
/// Everything that is wrong, each with its place, and a file without statements.
pub fn read(text: &[u8]) -> Result<Vec<Statement>, Vec<String>> {
    let found = read_any(text)?;
    if found.is_empty() { Err(vec!["holds no statement".into()]) } else { Ok(found) }
}

/// Reads a file that may hold no statements.
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
        let mut reader = Reader { entry, faults: Vec::new() };
        let statement = reader.statement();
        faults.extend(reader.faults.iter().map(|it| format!("{at}: {it}")));
        found.extend(statement.filter(|_| reader.faults.is_empty()));
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

/// Returns whether an entry of a file of cases is a statement: it has what only these have.
pub(crate) fn is_statement(entry: &Located) -> bool {
    let is = |field: &str, text: &str| entry.get(field).and_then(Located::text) == Some(text);
    ["only", "except", "hops"].iter().any(|field| entry.get(field).is_some())
        || is("port", "*")
        || is("expect", DEFAULT_DENY)
}

/// Reads one statement.
///
/// # Errors
/// Everything that is wrong with it, each with its line.
pub(crate) fn read_entry(entry: &Located) -> Result<Statement, Vec<String>> {
    let mut reader = Reader { entry, faults: Vec::new() };
    let statement = reader.statement().filter(|_| reader.faults.is_empty());
    statement.ok_or_else(|| {
        reader.faults.iter().map(|it| format!("line {}: {it}", entry.line)).collect()
    })
}

struct Reader<'a> {
    entry: &'a Located,
    /// Each as `FIELD: FAULT`.
    faults: Vec<String>,
}

/// The ends of a statement and the verdict on connections between them.
type Said = (Expect, From, Side);

impl<'a> Reader<'a> {
    /// The statement; `None` only with faults.
    fn statement(&mut self) -> Option<Statement> {
        let entry = self.entry;
        if !matches!(entry.tree, Tree::Map(_)) {
            self.faults.push(format!("{} is not a statement", entry.value()));
            return None;
        }
        if self.has("cases") || self.has("everything-else") {
            self.faults.push("is of a file of cases: podgate policy test reads it".to_owned());
            return None;
        }
        if self.has("apiVersion") && self.has("kind") {
            self.faults.push("is an object of Kubernetes: --manifests reads it".to_owned());
            return None;
        }
        self.known("", entry, &FIELDS, "a statement");
        let line = entry.line;
        let name = self.text("name").map_or_else(|| format!("line {line}"), str::to_owned);
        let only = self.only();
        let [from, to] = ["from", "to"].map(|field| self.side(field));
        let expect = self.text("expect");
        let is_default = expect == Some(DEFAULT_DENY);
        let said = match is_default {
            true => self.default_deny(from, to),
            false => self.verdict(expect, from, to, only),
        };
        let (protocol, port) = self.port(is_default);
        let except = self.except();
        let over_a_pod = self.hops(expect == Some("deny"));
        let (expect, from, to) = said?;
        if matches!(port, Some(Port::Name(_))) && !has_port_names(&to) {
            self.fault(
                "port",
                "a name stands for a port of pods and services alone: write a number",
            );
        }
        Some(Statement { name, line, from, to, protocol, port, except, over_a_pod, expect })
    }

    fn fault(&mut self, field: &str, problem: impl Into<String>) {
        self.faults.push(format!("{field}: {}", problem.into()));
    }

    fn has(&self, field: &str) -> bool {
        self.entry.get(field).is_some()
    }

    /// Rejects unknown fields.
    fn known(&mut self, at: &str, entry: &Located, fields: &[&str], what: &str) {
        for (field, _) in entry.fields().iter().filter(|(it, _)| !fields.contains(&it.as_str())) {
            let known = fields.join(", ");
            self.fault(&format!("{at}{field}"), format!("unknown field; {what} has {known}"));
        }
    }

    fn text(&mut self, field: &str) -> Option<&'a str> {
        let value = self.entry.get(field)?;
        if value.text().is_none() {
            self.fault(field, format!("{} is not text", value.value()));
        }
        value.text()
    }

    fn side(&mut self, field: &str) -> Option<Side> {
        let text = self.text(field)?;
        self.side_of(field, text)
    }

    fn side_of(&mut self, field: &str, text: &str) -> Option<Side> {
        let side = Side::read(text, field == "to");
        side.map_err(|problem| self.fault(field, problem)).ok()
    }

    fn only(&mut self) -> Option<Vec<Side>> {
        let only = self.entry.get("only")?;
        let elements = if only.is_list() { only.elements() } else { std::slice::from_ref(only) };
        let texts = elements.iter().map(|it| it.text().unwrap_or_default());
        Some(texts.filter_map(|text| self.side_of("only", text)).collect())
    }

    /// Reads that connections between two sides have a verdict.
    fn verdict(
        &mut self,
        expect: Option<&str>,
        from: Option<Side>,
        to: Option<Side>,
        only: Option<Vec<Side>>,
    ) -> Option<Said> {
        if !self.has("to") {
            self.fault("to", "is missing");
        }
        if self.has("from") == only.is_some() {
            self.fault("from", "a statement has either from or only");
        }
        let verdict = match (expect, only.is_some()) {
            (Some("allow"), false) => Some(ProbeVerdict::Allow),
            (Some("deny"), false) | (None, true) => Some(ProbeVerdict::Deny),
            (Some(_), true) => {
                self.fault("expect", "goes with from, not with only");
                None
            }
            (Some(other), false) => {
                self.fault(
                    "expect",
                    format!("{other:?} is neither \"allow\" nor \"deny\" nor {DEFAULT_DENY:?}"),
                );
                None
            }
            (None, false) => {
                if !self.has("expect") {
                    self.fault("expect", "is missing");
                }
                None
            }
        };
        let from = from.map(From::These).or(only.map(From::AllBut));
        Some((Expect::Verdict(verdict?), from?, to?))
    }

    /// Reads that one side denies what no rule allows.
    fn default_deny(&mut self, from: Option<Side>, to: Option<Side>) -> Option<Said> {
        if self.has("only") || self.has("from") == self.has("to") {
            let problem = format!(
                "{DEFAULT_DENY:?} goes with either to, for ingress, or from, for egress, of which the other one is \
                 everything"
            );
            self.fault("expect", problem);
            return None;
        }
        match (from, to) {
            (Some(from), _) => {
                Some((Expect::DefaultDeny(Direction::Egress), From::These(from), Side::Any))
            }
            (None, to) => {
                Some((Expect::DefaultDeny(Direction::Ingress), From::AllBut(Vec::new()), to?))
            }
        }
    }

    /// The protocol and the port; `None` is each.
    fn port(&mut self, may_be_absent: bool) -> (Option<Protocol>, Option<Port>) {
        let (protocol, is_every) = (self.protocol(self.entry, ""), self.is_every(self.entry));
        let is_icmp = protocol == Some(Protocol::Icmp);
        let port = match self.entry.get("port").map(Located::value) {
            Some(_) if is_every => None,
            Some(_) if is_icmp => {
                self.fault("port", "ICMP has no ports");
                None
            }
            Some(value) => case::port(&value).map_err(|problem| self.fault("port", problem)).ok(),
            None => {
                if !is_icmp && !may_be_absent {
                    self.fault("port", "is missing; \"*\" is every port");
                }
                None
            }
        };
        let usual = (!is_every && self.has("port")).then_some(Protocol::Tcp);
        (protocol.or(usual), port)
    }

    fn is_every(&self, entry: &Located) -> bool {
        entry.get("port").and_then(Located::text) == Some("*")
    }

    fn protocol(&mut self, entry: &Located, at: &str) -> Option<Protocol> {
        let value = entry.get("protocol")?;
        let protocol = value.text().and_then(Protocol::from_name);
        if protocol.is_none() {
            let problem = format!("{} is none of TCP, UDP, SCTP, ICMP", value.value());
            self.fault(&format!("{at}protocol"), problem);
        }
        protocol
    }

    /// Protocols with a port, that the statement is not about.
    fn except(&mut self) -> Vec<(Protocol, Option<u16>)> {
        let Some(list) = self.entry.get("except") else { return Vec::new() };
        if !list.is_list() {
            self.fault("except", "is not a list of {protocol, port}");
            return Vec::new();
        }
        let mut found = Vec::new();
        for (n, entry) in list.elements().iter().enumerate() {
            let at = format!("except[{n}].");
            if !matches!(entry.tree, Tree::Map(_)) {
                self.fault(
                    &format!("except[{n}]"),
                    format!("{} is no {{protocol, port}}", entry.value()),
                );
                continue;
            }
            self.known(&at, entry, &FIELDS_OF_EXCEPT, "it");
            let protocol = self.protocol(entry, &at).unwrap_or(Protocol::Tcp);
            let port = entry.get("port").map(|it| case::port(&it.value()));
            match (protocol, port) {
                (Protocol::Icmp, None) => found.push((protocol, None)),
                (Protocol::Icmp, Some(_)) => self.fault(&format!("{at}port"), "ICMP has no ports"),
                _ if self.is_every(entry) => found.push((protocol, None)),
                (_, Some(Ok(Port::Number(port)))) => found.push((protocol, Some(port))),
                (_, Some(Ok(Port::Name(_)))) => {
                    self.fault(&format!("{at}port"), "is not a number");
                }
                (_, Some(Err(problem))) => self.fault(&format!("{at}port"), problem),
                (_, None) => self.fault(&format!("{at}port"), "is missing; \"*\" is every port"),
            }
        }
        found
    }

    /// Reads whether connections over an intermediate pod count.
    fn hops(&mut self, is_denial: bool) -> bool {
        let Some(hops) = self.entry.get("hops") else { return false };
        let hops = hops.value();
        let number = hops.as_u64().filter(|it| (1..=2).contains(it));
        if number.is_none() {
            self.fault("hops", format!("{hops} is neither 1 nor 2"));
        } else if !is_denial {
            self.fault("hops", "goes with from and expect: deny");
        }
        number == Some(2)
    }
}

/// Returns whether a side can have named ports.
fn has_port_names(side: &Side) -> bool {
    match side {
        Side::One(endpoint) => matches!(endpoint, Endpoint::Pod(_) | Endpoint::Service(_)),
        Side::Internet | Side::Nodes => false,
        _ => true,
    }
}
