//! A file of cases for `podgate policy test`.
//!
//! ```yaml
//! - {name: orders are stored, from: shop/app=api, to: shop/app=db, port: 5432, expect: allow}
//! - {from: internet, to: "*", protocol: TCP, port: 22, expect: deny}
//! - everything-else: deny
//! ```
//!
//! Unlike a case of a probe, one here may select many ends, must have an expectation, and has no
//! fields beside those that mean something.

use std::collections::BTreeSet;
use std::sync::Arc;

use control::model::{Labels, Namespace, Pod, Requirement, Selector, Test};
use serde_json::Value;

use crate::input::Manifests;
use crate::input::located::{self, Located, Tree};
use crate::probe::case::{Fields, endpoint};
use crate::probe::{Case, Endpoint, Expected, Port, Protocol};

/// The cases of a file.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// The cases in their order.
    pub cases: Vec<Expectation>,
    /// The line that says `everything-else: deny`, if one does.
    pub everything_else: Option<u64>,
}

/// One case: the verdict expected of every connection from one side to the other.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Its name; made of its fields where it has none.
    pub name: String,
    /// Its line in the file.
    pub line: u64,
    /// The ends that open connections.
    pub from: Side,
    /// The ends that they are opened to.
    pub to: Side,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<Port>,
    /// The verdict that is expected of all connections.
    pub expect: Expected,
}

/// One end, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// As in a case of a probe.
    One(Endpoint),
    /// Pods by their labels, and those of their namespaces.
    Pods(Pods),
    /// An address that no object has.
    Internet,
    /// Every node.
    Nodes,
    /// Every pod that could exist, in any namespace.
    AnyPod,
    /// Every pod that could exist in a namespace that the files do not have.
    AnyNamespace,
    /// Every pod that could exist in a namespace that the files have.
    ExistingNamespace,
    /// Every pod, and the internet.
    Any,
}

impl Side {
    /// Whether it stands for this pod among those of the manifests; `labels` are those of its namespace.
    pub(super) fn has(&self, pod: &Pod, manifests: &Manifests, labels: Option<&Labels>) -> bool {
        let is_invented = || manifests.representative_namespaces.contains(&pod.key.namespace);
        match self {
            Self::AnyPod | Self::Any => true,
            Self::AnyNamespace => is_invented(),
            Self::ExistingNamespace => !is_invented(),
            Self::Pods(of) => {
                of.pods.matches(&pod.labels) && labels.is_some_and(|it| of.namespaces.matches(it))
            }
            Self::One(_) | Self::Internet | Self::Nodes => false,
        }
    }
}

/// Pods by their labels, and those of their namespaces, the name among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// The labels of namespaces.
    pub namespaces: Selector,
    /// The labels of pods.
    pub pods: Selector,
}

/// Reads an entry of a file, or leaves it.
pub(super) type Take<'a> = dyn FnMut(&Located) -> Option<Result<(), Vec<String>>> + 'a;

const FIELDS: [&str; 6] = ["name", "from", "to", "protocol", "port", "expect"];

impl Suite {
    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong, each with its line.
    pub fn read(text: &[u8]) -> Result<Self, Vec<String>> {
        Self::read_with(text, &mut |_| None)
    }

    /// Reads a file of which `take` reads some entries: it returns `None` for those that it leaves.
    ///
    /// # Errors
    /// As of [`read`](Self::read), and those of `take`.
    pub(super) fn read_with(text: &[u8], take: &mut Take<'_>) -> Result<Self, Vec<String>> {
        let documents = located::documents(text).map_err(|problem| vec![problem])?;
        let (mut suite, mut faults, mut taken) = (Self::default(), Vec::new(), 0);
        let mut counting = |value: &Located| {
            let read = take(value);
            taken += usize::from(read.is_some());
            read
        };
        for document in &documents {
            suite.add(document, &mut counting, &mut faults);
        }
        let is_empty = suite.cases.is_empty() && suite.everything_else.is_none() && taken == 0;
        if is_empty && faults.is_empty() {
            faults.push("holds no expectation".into());
        }
        if faults.is_empty() { Ok(suite) } else { Err(faults) }
    }

    fn add(&mut self, value: &Located, take: &mut Take<'_>, faults: &mut Vec<String>) {
        match &value.tree {
            Tree::List(list) => list.iter().for_each(|it| self.add(it, take, faults)),
            Tree::Map(fields) if fields.iter().all(|(name, _)| is_of_file(name)) => {
                for (name, value) in fields {
                    match (name.as_str(), value.text()) {
                        ("cases", _) if value.is_list() => self.add(value, take, faults),
                        ("everything-else", Some("deny")) => {
                            self.everything_else = Some(value.line)
                        }
                        (name, _) => faults.push(format!(
                            "line {}: {name}: {} is not what belongs here",
                            value.line,
                            value.value()
                        )),
                    }
                }
            }
            Tree::Map(_) if value.get("apiVersion").is_some() && value.get("kind").is_some() => {
                let line = value.line;
                faults
                    .push(format!("line {line}: is an object of Kubernetes: --manifests reads it"));
            }
            Tree::Map(_) => match take(value) {
                Some(read) => faults.extend(read.err().into_iter().flatten()),
                None => match Expectation::read(value) {
                    Ok(case) => self.cases.push(case),
                    Err(found) => faults.extend(found),
                },
            },
            Tree::Scalar(Value::Null) => {}
            Tree::Scalar(it) => faults.push(format!("line {}: {it} is not a case", value.line)),
        }
    }
}

fn is_of_file(field: &str) -> bool {
    matches!(field, "cases" | "everything-else")
}

impl Expectation {
    /// Returns whether an end of it has addresses of several families, of which connections need one.
    pub(super) fn is_of_families(&self) -> bool {
        [&self.from, &self.to].iter().any(|side| matches!(side, Side::Internet | Side::Any))
    }

    fn read(value: &Located) -> Result<Self, Vec<String>> {
        let line = value.line;
        let mut faults = Vec::new();
        for (field, it) in value.fields() {
            if !FIELDS.contains(&field.as_str()) {
                let known = FIELDS.join(", ");
                faults
                    .push(format!("line {}: {field}: unknown field; a case has {known}", it.line));
            }
        }
        let mut side = |field: &str| {
            let text = value.get(field).and_then(Located::text);
            match text.map(|text| Side::read(text, field == "to")) {
                Some(Ok(side)) => Some(side),
                Some(Err(problem)) => {
                    faults.push(format!("line {line}: {field}: {problem}"));
                    None
                }
                None => {
                    faults.push(format!("line {line}: {field}: is missing or no text"));
                    None
                }
            }
        };
        let (from, to) = (side("from"), side("to"));
        if value.get("expect").is_none() {
            faults.push(format!("line {line}: expect: is missing"));
        }
        // The rest is as in a case of a probe, whose ends are of no interest here.
        let is_rest =
            |name: &str| FIELDS.contains(&name) && !matches!(name, "name" | "from" | "to");
        let own = value.fields().iter().filter(|(name, _)| is_rest(name));
        let mut fields: Fields = own.map(|(name, it)| (name.clone(), it.value())).collect();
        let is_named = |name: &str| value.get(name).is_some();
        if !is_named("protocol") && is_named("port") {
            fields.push(("protocol".into(), "TCP".into()));
        }
        fields.extend(["from", "to"].map(|end| (end.to_owned(), Value::from("0.0.0.0"))));
        let case = match Case::read(0, fields) {
            Ok(case) => Some(case),
            Err(found) => {
                let found = found
                    .into_iter()
                    .filter(|it| FIELDS.contains(&it.field) || it.field.is_empty());
                faults.extend(found.map(|it| format!("line {line}: {}: {}", it.field, it.problem)));
                None
            }
        };
        let expect = case.as_ref().and_then(|case| case.expect);
        let (Some(from), Some(to), Some(case), Some(expect)) = (from, to, case, expect) else {
            return Err(faults);
        };
        if !faults.is_empty() {
            return Err(faults);
        }
        let text = |field: &str| value.get(field).and_then(Located::text).map(str::to_owned);
        let port: String = case.port.iter().map(|port| format!(" {port}")).collect();
        let ends = (text("from").unwrap_or_default(), text("to").unwrap_or_default());
        let made = format!("{} to {} {}{port}: {expect}", ends.0, ends.1, case.protocol.name());
        let name = text("name").unwrap_or(made);
        Ok(Self { name, line, from, to, protocol: case.protocol, port: case.port, expect })
    }
}

impl Side {
    /// Returns whether it includes pods that are in no file.
    pub(super) fn could_exist(&self) -> bool {
        matches!(self, Self::AnyPod | Self::AnyNamespace | Self::ExistingNamespace)
    }

    /// Reads the text of a side.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn read(text: &str, is_target: bool) -> Result<Self, String> {
        match text {
            "internet" => return Ok(Self::Internet),
            "*" => return Ok(Self::Any),
            "any-pod" => return Ok(Self::AnyPod),
            "any-namespace" => return Ok(Self::AnyNamespace),
            "existing-namespace" => return Ok(Self::ExistingNamespace),
            "node/*" => return Ok(Self::Nodes),
            _ => {}
        }
        if let Some(pods) = Pods::read(text)? {
            return Ok(Self::Pods(pods));
        }
        match endpoint(text) {
            Ok(endpoint) => match endpoint.only_a_target().filter(|_| !is_target) {
                Some(what) => Err(format!("{text:?} is {what}, which opens no connection")),
                None => Ok(Self::One(endpoint)),
            },
            Err(problem) => Err(format!(
                "{problem}; a case may also say NS/LABEL=VALUE[,…], NS/*, (LABEL=VALUE[,…])/*, node/*, \
                 internet, any-pod, any-namespace, existing-namespace or *"
            )),
        }
    }
}

impl Pods {
    /// Reads `NS/LABEL=VALUE[,…]`, `NS/*` or `(LABEL=VALUE[,…])/…`, with `!=` for labels that differ or are absent;
    /// `None` for another text.
    fn read(text: &str) -> Result<Option<Self>, String> {
        let of_labels = text.strip_prefix('(').and_then(|rest| rest.split_once(")/"));
        let (namespaces, pods) = match (of_labels, text.split_once('/')) {
            (Some((namespaces, pods)), _) => (requirements(namespaces)?, pods),
            (None, Some((name, pods))) if pods.contains('=') || pods == "*" => {
                let name = (name != "*").then(|| equal(Namespace::NAME_LABEL, name));
                (name.into_iter().collect(), pods)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { namespaces, pods: requirements(pods)? }))
    }

    /// The name of the namespace, where they are of one.
    pub fn namespace(&self) -> Option<&str> {
        let mut named =
            self.namespaces.requirements().iter().filter(|it| &*it.key == Namespace::NAME_LABEL);
        named.find_map(only_value)
    }

    /// Returns the minimal labels of a matching namespace and pod.
    pub(super) fn least_labels(&self) -> [Labels; 2] {
        [&self.namespaces, &self.pods].map(|selector| {
            let requirements = selector.requirements().iter();
            requirements
                .filter_map(|it| Some((Arc::clone(&it.key), Arc::<str>::from(only_value(it)?))))
                .collect()
        })
    }
}

/// Requirements on labels, joined by commas; `*` is none.
fn requirements(text: &str) -> Result<Selector, String> {
    let labels = text.split(',').filter(|it| *it != "*");
    let read = |label: &str| {
        let (requirement, key) = match (label.split_once("!="), label.split_once('=')) {
            (Some((key, value)), _) => {
                let test = Test::NotIn(BTreeSet::from([value.into()]));
                (Requirement { key: key.into(), test }, key)
            }
            (None, Some((key, value))) => (equal(key, value), key),
            (None, None) => return Err(format!("{label:?} is not LABEL=VALUE")),
        };
        match key.is_empty() {
            true => Err(format!("{label:?} is not LABEL=VALUE")),
            false => Ok(requirement),
        }
    };
    labels.map(read).collect()
}

fn equal(key: &str, value: &str) -> Requirement {
    Requirement { key: key.into(), test: Test::In(BTreeSet::from([value.into()])) }
}

/// The only value that a label may have.
fn only_value(requirement: &Requirement) -> Option<&str> {
    match &requirement.test {
        Test::In(values) if values.len() == 1 => values.first().map(|value| &**value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        Suite::read(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn every_way_to_name_ends() {
        let labels = |text: &str| Side::read(text, false).unwrap();
        let pods = |text: &str| match labels(text) {
            Side::Pods(Pods { namespaces, pods }) => format!("{namespaces} / {pods}"),
            other => panic!("{other:?}"),
        };
        let shop = "kubernetes.io/metadata.name=shop";
        assert_eq!(pods("shop/app=web,tier=front"), format!("{shop} / app=web,tier=front"));
        assert_eq!(
            pods("shop/app.kubernetes.io/name=web"),
            format!("{shop} / app.kubernetes.io/name=web")
        );
        assert_eq!(pods("*/app=web"), " / app=web");
        assert_eq!(pods("shop/*"), format!("{shop} / "));
        assert_eq!(pods("*/app!=web"), " / app notin (web)");
        assert_eq!(pods("(a.b/pci=true,team!=x)/*"), "a.b/pci=true,team notin (x) / ");
        assert_eq!(pods("(pci!=true)/app=web"), "pci notin (true) / app=web");
        for wrong in ["shop/=web", "(pci)/*", "()/*", "(pci=true)/web", "shop/a=b,c"] {
            let said = Side::read(wrong, false).unwrap_err();
            assert!(said.contains("is not LABEL=VALUE"), "{said}");
        }
        assert_eq!(
            [labels("internet"), labels("*"), labels("node/*")],
            [Side::Internet, Side::Any, Side::Nodes]
        );
        assert!(Side::read("service/shop/web", false).is_err());
        assert!(Side::read("service/shop/web", true).is_ok());
        assert!(Side::read("api.example.org", false).is_err());
        assert!(Side::read("api.example.org", true).is_ok());
        assert!(Side::read("web", false).unwrap_err().contains("NS/LABEL=VALUE"));
    }

    #[test]
    fn a_file_of_cases() {
        let text = "- {name: n, from: a/b, to: a/c, port: 80, expect: allow}\n\
                    - {from: '*', to: a/c, protocol: ICMP, expect: deny}\n- everything-else: deny\n";
        let suite = Suite::read(text.as_bytes()).unwrap();
        let names: Vec<&str> = suite.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["n", "* to a/c ICMP: deny"]);
        assert_eq!(suite.everything_else, Some(3));
        let json = r#"{"cases": [{"from": "a/b", "to": "a/c", "port": 80, "expect": "deny"}]}"#;
        assert_eq!(Suite::read(json.as_bytes()).unwrap().cases.len(), 1);
    }

    #[test]
    fn a_mistake_is_unusable() {
        assert_eq!(faults(""), ["holds no expectation"]);
        assert_eq!(faults("[]"), ["holds no expectation"]);
        let known = "a case has name, from, to, protocol, port, expect";
        assert_eq!(
            faults("- {from: a/b, to: a/c, port: 80, expected: allow}"),
            [&*format!("line 1: expected: unknown field; {known}"), "line 1: expect: is missing"]
        );
        assert_eq!(
            faults("- {from: a/b, to: a/c, port: 80, expect: alow}"),
            ["line 1: expect: \"alow\" is none of allow, deny, unreachable"]
        );
        assert_eq!(faults("- everything-else: allow").len(), 1);
        assert_eq!(faults("- nonsense"), ["line 1: \"nonsense\" is not a case"]);
        assert_eq!(
            faults("- {from: a/b, to: a/c, protocol: TCP, expect: deny}"),
            ["line 1: port: is missing"]
        );
    }
}
