//! NetworkPolicies that allow what was observed and nothing else.
//!
//! Every namespace with observed traffic gets a policy that closes all of its pods, and each of its
//! workloads that opened or received connections one with rules for them. The result is proved: the
//! [probe](crate::probe) opens every observed connection against it.

mod labels;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use control::objects::{Read, read};
use control::{Object, PodKey};
use serde_json::{Value, json};

use super::flows::{Flow, Party};
use crate::input::Manifests;
use crate::probe::{Answer, Endpoint, Port, ProbeVerdict, Prober, Question};
use labels::Workloads;

/// Policies suggested from flows.
#[derive(Debug, Default)]
pub struct Suggestion {
    /// The policies, as objects of Kubernetes.
    pub policies: Vec<Value>,
    /// Observed connections that they allow.
    pub allowed: Vec<Flow>,
    /// Observed connections that they deny, each with the reason.
    pub denied: Vec<(Flow, String)>,
    /// Notes on the policies for a reader.
    pub notes: Vec<String>,
}

/// The directions of a workload that the policies restrict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Directions {
    /// Connections that workloads receive
    Ingress,
    /// Connections that workloads open
    Egress,
    /// Both
    Both,
}

/// Connections that are opened together: enough for the switch's batches.
const TOGETHER: usize = 1_024;

/// Ports by protocol name.
type PortSet = BTreeSet<(&'static str, u16)>;

/// The rules of one workload in one direction: ports for each peer.
type Rules = BTreeMap<Party, PortSet>;

/// Suggests policies for these connections. NetworkPolicies of the manifests are left aside;
/// cluster-wide ones stay in force.
///
/// # Errors
/// Fails if there are more pods than addresses or ports for them.
pub fn suggest(
    manifests: &Manifests,
    flows: &BTreeSet<Flow>,
    directions: Directions,
    with_denied: bool,
) -> Result<Suggestion, String> {
    let workloads = Workloads::new(manifests);
    let mut found = Suggestion::default();
    let mut rules: BTreeMap<(String, String), [Rules; 2]> = BTreeMap::new();
    let mut wanted = Vec::new();
    for flow in flows {
        // Denied once and allowed at another time, it is one connection, and wanted.
        if flow.denied && flows.contains(&Flow { denied: false, ..flow.clone() }) {
            continue;
        }
        if let Some(reason) = impossible(flow, &workloads, with_denied) {
            found.denied.push((flow.clone(), reason));
            continue;
        }
        let port = (flow.protocol.name(), flow.port.unwrap_or_default());
        for (own, peer, direction) in [(&flow.to, &flow.from, 0), (&flow.from, &flow.to, 1)] {
            let Party::Workload(namespace, name) = own else { continue };
            if workloads.is_on_host(namespace, name) {
                continue;
            }
            let of_workload = rules.entry((namespace.clone(), name.clone())).or_default();
            of_workload[direction].entry(peer.clone()).or_default().insert(port);
        }
        wanted.push(flow.clone());
    }
    let namespaces: BTreeSet<&String> = rules.keys().map(|(namespace, _)| namespace).collect();
    for namespace in namespaces {
        found.policies.push(policy(namespace, "default-deny", json!({}), directions, None));
    }
    for ((namespace, name), sides) in &rules {
        let (selector, note) = workloads.selector(namespace, name);
        found.notes.extend(note);
        let sides = sides.each_ref().map(|side| rules_of(side, namespace, &workloads));
        found.policies.push(policy(namespace, name, selector, directions, Some(sides)));
    }
    found.prove(manifests, wanted)?;
    Ok(found)
}

/// Returns why no policy can or should allow a connection; `None` if one can.
fn impossible(flow: &Flow, workloads: &Workloads<'_>, with_denied: bool) -> Option<String> {
    if flow.denied && !with_denied {
        return Some("policies denied it when it was observed".into());
    }
    if flow.port.is_none() {
        return Some("a NetworkPolicy has no rule for ICMP alone".into());
    }
    [&flow.from, &flow.to].into_iter().find_map(|party| match party {
        Party::Workload(namespace, name) if !workloads.has(namespace, name) => {
            Some(format!("{party} is not in the manifests"))
        }
        _ => None,
    })
}

impl Suggestion {
    /// Opens every connection against the policies.
    fn prove(&mut self, manifests: &Manifests, wanted: Vec<Flow>) -> Result<(), String> {
        let mut proved = manifests.clone();
        proved.objects.retain(|object| !matches!(object, Object::NetworkPolicy(_)));
        for policy in &self.policies {
            match read(policy.clone()) {
                Read::Object(object, faults) if faults.is_empty() => proved.objects.push(object),
                other => return Err(format!("a policy that cannot be read: {policy}: {other:?}")),
            }
        }
        let decided = decide(manifests, proved, &wanted)?;
        for (flow, answers) in wanted.into_iter().zip(decided) {
            match answers.into_iter().find(|answer| answer.verdict == ProbeVerdict::Deny) {
                None => self.allowed.push(flow),
                Some(answer) => self.denied.push((flow, reason(&answer))),
            }
        }
        Ok(())
    }

    /// Renders the policies as YAML, with the evidence as comments.
    pub fn yaml(&self) -> String {
        let (allowed, denied) = (self.allowed.len(), self.denied.len());
        let mut text = format!(
            "# Allows {allowed} of {} observed connections, each proved by a probe.\n",
            allowed + denied
        );
        if denied > 0 {
            let _ = writeln!(text, "# Observed, and denied by these policies:");
        }
        for (flow, reason) in &self.denied {
            let _ = writeln!(text, "#   {}: {reason}", in_words(flow));
        }
        for note in &self.notes {
            let _ = writeln!(text, "# Note: {note}");
        }
        for policy in &self.policies {
            text += "---\n";
            text += &crate::yaml::document(policy);
        }
        text
    }
}

/// Opens each connection between all pods of its workloads in `manifests`, by the policies of `decides`. No
/// answer for a workload that is not there.
///
/// # Errors
/// Fails if there are more pods than addresses or ports for them.
pub fn decide(
    manifests: &Manifests,
    decides: Manifests,
    flows: &[Flow],
) -> Result<Vec<Vec<Answer>>, String> {
    let workloads = Workloads::new(manifests);
    let endpoints = |party: &Party| match party {
        Party::Workload(namespace, name) => workloads.pods(namespace, name),
        Party::Node(name) => vec![Endpoint::Node(name.as_str().into())],
        Party::Address(address) => vec![Endpoint::Address(*address)],
    };
    let mut ends: HashMap<&Party, Vec<Endpoint>> = HashMap::new();
    for party in flows.iter().flat_map(|flow| [&flow.from, &flow.to]) {
        ends.entry(party).or_insert_with(|| endpoints(party));
    }
    let addresses = ends.values().flatten().filter_map(Endpoint::address).collect::<Vec<_>>();
    let mut prober = Prober::new(decides, addresses)?;
    let mut decided = Vec::with_capacity(flows.len());
    for some in flows.chunks(TOGETHER) {
        let ports: Vec<_> = some.iter().map(|flow| flow.port.map(Port::Number)).collect();
        let mut questions = Vec::new();
        let mut numbers = Vec::with_capacity(some.len());
        for (flow, port) in some.iter().zip(&ports) {
            let (from, to) = (&ends[&flow.from], &ends[&flow.to]);
            let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
            let (protocol, port) = (flow.protocol, port.as_ref());
            questions.extend(pairs.map(|(from, to)| Question { from, to, protocol, port }));
            numbers.push(from.len() * to.len());
        }
        let answers = prober.answer(questions).map_err(|unended| unended.to_string())?;
        let mut answers = answers.into_iter();
        decided.extend(numbers.into_iter().map(|number| answers.by_ref().take(number).collect()));
    }
    Ok(decided)
}

/// Returns the reason of an answer in words.
pub fn reason(answer: &Answer) -> String {
    let by: String = answer.by.iter().map(|by| format!(", by {by}")).collect();
    format!("{}{by}", answer.reason)
}

/// A connection in words, such as `shop/web to shop/db TCP 5432`.
pub fn in_words(flow: &Flow) -> String {
    let port = flow.port.map_or_else(String::new, |port| format!(" {port}"));
    format!("{} to {} {}{port}", flow.from, flow.to, flow.protocol.name())
}

/// Peers of a rule, and the ports it is about.
type Side<'a> = (Vec<Value>, &'a PortSet);

/// A NetworkPolicy; without rules it closes the pods that it selects.
fn policy(
    namespace: &str,
    name: &str,
    selector: Value,
    directions: Directions,
    sides: Option<[Vec<Side<'_>>; 2]>,
) -> Value {
    let mut spec = json!({"podSelector": selector, "policyTypes": []});
    let each = [("Ingress", "ingress", "from"), ("Egress", "egress", "to")];
    for (n, (kind, field, end)) in each.into_iter().enumerate() {
        let is_wanted = match directions {
            Directions::Both => true,
            Directions::Ingress => n == 0,
            Directions::Egress => n == 1,
        };
        if !is_wanted {
            continue;
        }
        if let Value::Array(types) = &mut spec["policyTypes"] {
            types.push(kind.into());
        }
        let rules = sides.as_ref().map_or(&[][..], |sides| &sides[n]);
        let rules: Vec<Value> = rules
            .iter()
            .map(|(peers, ports)| {
                let port = |(protocol, first, last): (&str, u16, u16)| {
                    let mut port = json!({"port": first});
                    if last > first {
                        port["endPort"] = last.into();
                    }
                    if protocol != "TCP" {
                        port["protocol"] = protocol.into();
                    }
                    port
                };
                json!({end: peers, "ports": ranges(ports).into_iter().map(port).collect::<Vec<_>>()})
            })
            .collect();
        if !rules.is_empty() {
            spec[field] = rules.into();
        }
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// Ports as ranges of neighbours: protocol, first and last.
fn ranges(ports: &PortSet) -> Vec<(&'static str, u16, u16)> {
    let mut ranges: Vec<(&'static str, u16, u16)> = Vec::new();
    for (protocol, port) in ports {
        match ranges.last_mut() {
            Some((of, _, last)) if of == protocol && last.checked_add(1) == Some(*port) => {
                *last = *port;
            }
            _ => ranges.push((*protocol, *port, *port)),
        }
    }
    ranges
}

/// The rules of one side: peers with equal ports share one.
fn rules_of<'a>(
    side: &'a Rules,
    namespace: &str,
    workloads: &Workloads<'_>,
) -> Vec<(Vec<Value>, &'a PortSet)> {
    let mut rules: Vec<(Vec<Value>, &PortSet)> = Vec::new();
    for (party, ports) in side {
        let peers = workloads.peers(party, namespace);
        match rules.iter_mut().find(|(_, known)| *known == ports) {
            Some((known, _)) => known.extend(peers),
            None => rules.push((peers, ports)),
        }
    }
    rules
}

/// The pods of the manifests that belong to one workload.
fn is_of(manifests: &Manifests, key: &PodKey, name: &str) -> bool {
    manifests.workload(key).split_once('/').is_some_and(|(_, own)| own == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Protocol;

    #[test]
    fn many_connections_are_decided_each_for_itself() {
        let object = |value: Value| match read(value) {
            Read::Object(object, _) => object,
            other => panic!("{other:?}"),
        };
        let pod = |name: &str| {
            object(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
                "spec": {"containers": []}}))
        };
        let policy = object(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "db", "namespace": "shop"}, "spec": {
                "podSelector": {"matchLabels": {"app": "db"}},
                "ingress": [{"ports": [{"port": 1000, "endPort": 2999}]}]}}));
        let manifests = Manifests::from(vec![pod("web"), pod("db"), policy]);
        let party = |name: &str| Party::Workload("shop".to_owned(), name.to_owned());
        let flow = |from: &str, port: u16| Flow {
            from: party(from),
            to: party("db"),
            protocol: Protocol::Tcp,
            port: Some(port),
            denied: false,
        };
        // More than are opened together, and one in the middle without an initiator.
        let mut flows: Vec<Flow> = (0..4_000).map(|port| flow("web", port)).collect();
        flows.insert(1_500, flow("gone", 80));
        let decided = decide(&manifests, manifests.clone(), &flows).unwrap();
        assert_eq!(decided.len(), flows.len());
        for (flow, answers) in flows.iter().zip(decided) {
            let expected = match (flow.port, flow.from == party("gone")) {
                (_, true) => vec![],
                (Some(1_000..3_000), _) => vec![ProbeVerdict::Allow],
                _ => vec![ProbeVerdict::Deny],
            };
            let verdicts: Vec<ProbeVerdict> = answers.iter().map(|answer| answer.verdict).collect();
            assert_eq!(verdicts, expected, "{}", in_words(flow));
        }
    }
}
