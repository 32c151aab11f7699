//! Mistakes in manifests that no parser finds: each with its file, line and column.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use acl::{End, Rule, Table};
use control::model::{
    Direction, Namespaces, NetworkPolicy, Peer, Pod, PolicyRule, PortSpec, Selector, Verdict,
};
use control::{Control, Fault, Object, Scope};
use ipnet::IpNet;
use serde::Serialize;

use super::labels::{Cluster, nearest};
use super::matrix;
use crate::input::Manifests;
use crate::input::located::{Located, Tree, documents};
use crate::input::staged::Staged;
use crate::probe::complete::complete;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
    /// The object, as `KIND NS/NAME`.
    pub object: String,
    /// The kind of mistake; [`INVALID`] for what the switch itself cannot read.
    pub code: &'static str,
    /// The mistake, and where possible its mend.
    pub message: String,
}

/// The code of faults that make an object unusable.
pub const INVALID: &str = "invalid";

/// All codes with their meaning.
pub const CODES: [(&str, &str); 13] = [
    (INVALID, "the object cannot be read, or a field of it"),
    ("selects-no-pod", "a policy that selects no pod"),
    ("peer-selects-no-pod", "a peer that selects no pod"),
    ("unknown-port-name", "a port name that no container of the selected pods has"),
    ("opens-to-all", "an empty list of peers, which means everybody"),
    ("egress-without-type", "egress rules while policyTypes leaves Egress out: they mean nothing"),
    ("ingress-without-type", "ingress rules while policyTypes leaves Ingress out"),
    ("host-bits", "a network with bits beyond its prefix"),
    ("except-outside", "an exception that is not inside its network"),
    ("except-is-all", "an exception equal to its network: nothing is left"),
    ("not-enforced-here", "a policy of another product"),
    ("shadowed-rule", "a rule that never decides: others with another verdict do before"),
    ("redundant-rule", "a rule that never decides: others with the same verdict do before"),
];

/// An object as it stands in its file.
struct Source {
    file: String,
    document: usize,
    tree: Located,
    /// `KIND NS/NAME`.
    object: String,
}

/// Finds the mistakes in files and folders, in the order of files and lines. The objects of `cluster`
/// count too, and are not checked themselves.
///
/// # Errors
/// Files that cannot be read, or are no YAML.
pub fn lint(paths: &[PathBuf], cluster: Option<&Path>) -> Result<Vec<Finding>, Vec<String>> {
    let staged = Staged::new(paths, cluster, true)?;
    let (mut manifests, mut faults, mut files) = Manifests::read_staged(&staged);
    if let Some(live) = &staged.live {
        files.remove(live);
        faults.retain(|fault| fault.file.as_ref() != Some(live));
    }
    let named = |file: &Path| staged.named(&crate::input::name(file));
    let mut sources = Vec::new();
    let mut unreadable = Vec::new();
    for file in &files {
        let name = named(file);
        let text = fs::read(file).map_err(|error| format!("cannot be read: {error}"));
        match text.and_then(|text| documents(&text)) {
            Ok(found) => {
                for (n, document) in found.into_iter().enumerate() {
                    add_sources(&name, n + 1, document, &mut sources);
                }
            }
            Err(problem) => unreadable.push(format!("{name}: {problem}")),
        }
    }
    let no_file = faults.iter().filter(|fault| fault.document.is_none());
    unreadable.extend(no_file.map(|fault| staged.named(&fault.to_string())));
    if !unreadable.is_empty() {
        return Err(unreadable);
    }
    if sources.is_empty() {
        return Err(paths
            .iter()
            .map(|path| format!("{}: holds no objects", path.display()))
            .collect());
    }
    let mut findings = Findings { sources: &sources, found: BTreeSet::new() };
    for source in &sources {
        findings.foreign(source);
        findings.types(source);
        findings.peers(source);
    }
    findings.faults(&faults, &named);
    findings.selectors(&manifests.objects);
    complete(&mut manifests, []).map_err(|problem| vec![problem])?;
    findings.rules(manifests.objects);
    Ok(findings.found.into_iter().collect())
}

/// The objects of a document, of a list each item.
fn add_sources(file: &str, document: usize, tree: Located, sources: &mut Vec<Source>) {
    let text = |path: &[&str]| {
        let at = path.iter().try_fold(&tree, |at, field| at.get(field));
        at.and_then(Located::text).map(str::to_owned)
    };
    let Some(kind) = text(&["kind"]) else { return };
    if kind.ends_with("List") && tree.get("items").is_some_and(Located::is_list) {
        for item in tree.get("items").into_iter().flat_map(Located::elements) {
            add_sources(file, document, item.clone(), sources);
        }
        return;
    }
    let name = text(&["metadata", "name"]).unwrap_or_default();
    let namespace = text(&["metadata", "namespace"]).unwrap_or_else(|| "default".into());
    let object = match &*kind {
        "ClusterNetworkPolicy"
        | "ClusterEgressFirewall"
        | "ClusterHostFirewall"
        | "Namespace"
        | "Node"
        | "AdminNetworkPolicy"
        | "BaselineAdminNetworkPolicy" => format!("{kind} {name}"),
        _ => format!("{kind} {namespace}/{name}"),
    };
    sources.push(Source { file: file.to_owned(), document, tree, object });
}

struct Findings<'a> {
    sources: &'a [Source],
    found: BTreeSet<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, source: &Source, path: &str, code: &'static str, message: String) {
        let at = source.tree.nearest(path);
        self.found.insert(Finding {
            file: source.file.clone(),
            line: at.line,
            column: at.column,
            object: source.object.clone(),
            code,
            message,
        });
    }

    fn add_to(&mut self, object: &str, path: &str, code: &'static str, message: String) {
        if let Some(source) = self.sources.iter().rev().find(|source| source.object == object) {
            self.add(source, path, code, message);
        }
    }

    /// Policies that something else would enforce, and kinds that nothing does.
    fn foreign(&mut self, source: &Source) {
        let text = |field: &str| source.tree.get(field).and_then(Located::text).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let of_others = ["projectcalico.org", "cilium.io", "antrea.io", "policy.openshift.io"];
        let is_policy = kind.contains("Policy") || kind.contains("Policies");
        if of_others.iter().any(|other| group.ends_with(other)) && is_policy {
            let message = format!(
                "{version} {kind} is a policy of another product; Podgate does not enforce it"
            );
            self.add(source, "kind", "not-enforced-here", message);
        } else if let Some(known) = crate::input::misspelt_kind(version, kind) {
            let message =
                format!("{kind} is no kind of {version}, so nothing enforces it; {known} is");
            self.add(source, "kind", "not-enforced-here", message);
        } else if matches!(kind, "AdminNetworkPolicy" | "BaselineAdminNetworkPolicy") {
            let message =
                format!("{version} {kind} is not enforced; a ClusterNetworkPolicy of v1alpha2 is");
            self.add(source, "kind", "not-enforced-here", message);
        }
    }

    /// Rules that `policyTypes` leaves out, and lists of peers that are empty.
    fn types(&mut self, source: &Source) {
        if !source.object.starts_with("NetworkPolicy ") {
            return;
        }
        let Some(spec) = source.tree.get("spec") else { return };
        let types: Vec<&str> = spec
            .get("policyTypes")
            .map_or(&[][..], Located::elements)
            .iter()
            .filter_map(Located::text)
            .collect();
        let directions = [
            ("ingress", "Ingress", "from", "ingress-without-type"),
            ("egress", "Egress", "to", "egress-without-type"),
        ];
        for (field, name, peers, code) in directions {
            let Some(rules) = spec.get(field) else { continue };
            if !types.is_empty() && !types.contains(&name) {
                let message =
                    format!("the {field} rules mean nothing: policyTypes leaves {name} out");
                self.add(source, &format!("spec.{field}"), code, message);
            }
            for (n, rule) in rules.elements().iter().enumerate() {
                let is_empty =
                    rule.get(peers).is_some_and(|it| it.is_list() && it.elements().is_empty());
                if is_empty {
                    let message = format!(
                        "`{peers}: []` means everybody; to let nobody pass leave the rule out"
                    );
                    self.add(
                        source,
                        &format!("spec.{field}[{n}].{peers}"),
                        "opens-to-all",
                        message,
                    );
                }
            }
        }
    }

    /// Networks and their exceptions.
    fn peers(&mut self, source: &Source) {
        let mut blocks = Vec::new();
        find_blocks(&source.tree, "", &mut blocks);
        for (path, cidr, except) in blocks {
            let Ok(net) = cidr.parse::<IpNet>() else { continue };
            self.host_bits(source, &format!("{path}.cidr"), net);
            for (n, text) in except.iter().enumerate() {
                let path = format!("{path}.except[{n}]");
                let Ok(inner) = text.parse::<IpNet>() else { continue };
                self.host_bits(source, &path, inner);
                if inner.trunc() == net.trunc() {
                    let message = format!("{text} is all of {cidr}: the peer means nobody");
                    self.add(source, &path, "except-is-all", message);
                } else if !net.trunc().contains(&inner.trunc()) {
                    let message = format!("{text} is not inside {cidr}");
                    self.add(source, &path, "except-outside", message);
                }
            }
        }
    }

    fn host_bits(&mut self, source: &Source, path: &str, net: IpNet) {
        if net.trunc() != net {
            let message = format!("{net} means {}: it has bits beyond its prefix", net.trunc());
            self.add(source, path, "host-bits", message);
        }
    }

    /// What the switch itself cannot read, unless a finding says it better.
    fn faults(&mut self, faults: &[Fault], named: &dyn Fn(&Path) -> String) {
        for fault in faults {
            let Some(document) = fault.document else { continue };
            let file = fault.file.as_deref().map(named).unwrap_or_default();
            let here = |source: &&Source| source.file == file && source.document == document;
            let object = fault.object.as_ref().map(ToString::to_string);
            let is_it = |source: &&Source| object.as_ref().is_none_or(|it| *it == source.object);
            let mut of_document = self.sources.iter().filter(here);
            let source = of_document.clone().find(is_it).or_else(|| of_document.next());
            let Some(source) = source else {
                self.found.insert(Finding {
                    file,
                    line: 1,
                    column: 1,
                    object: object.unwrap_or_default(),
                    code: INVALID,
                    message: fault.fault.to_string(),
                });
                continue;
            };
            let at = source.tree.nearest(&fault.fault.field);
            let is_known = self.found.iter().any(|known| {
                known.object == source.object
                    && known.file == source.file
                    && ((known.line, known.column) == (at.line, at.column)
                        || fault.object.is_none() && known.code == "not-enforced-here")
            });
            if !is_known {
                let path = fault.fault.field.clone();
                self.add(source, &path, INVALID, fault.fault.to_string());
            }
        }
    }

    /// Selectors and port names, against the pods that there are.
    fn selectors(&mut self, objects: &[Object]) {
        let cluster = Cluster::new(objects);
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => self.network_policy(&cluster, policy),
                Object::ClusterNetworkPolicy(policy) => {
                    let name = format!("ClusterNetworkPolicy {}", policy.name);
                    self.subject(&cluster, &name, &policy.namespaces, &policy.pods);
                    for (field, rules) in [("ingress", &policy.ingress), ("egress", &policy.egress)]
                    {
                        for rule in rules {
                            let path = format!("spec.{field}[{}]", rule.rule.index);
                            self.rule_peers(&cluster, &name, &rule.rule, |_| path.clone());
                        }
                    }
                }
                Object::ClusterEgressFirewall(policy) => {
                    let name = format!("ClusterEgressFirewall {}", policy.name);
                    self.subject(&cluster, &name, &policy.namespaces, &policy.pods);
                }
                _ => {}
            }
        }
    }

    fn subject(
        &mut self,
        cluster: &Cluster<'_>,
        name: &str,
        namespaces: &Selector,
        pods: &Selector,
    ) {
        let selected = Namespaces::Selected(namespaces.clone());
        if cluster.select(&selected, pods).next().is_none() {
            let message = format!("selects no pod{}", cluster.suggestion(&selected, pods));
            self.add_to(name, "spec.subject", "selects-no-pod", message);
        }
    }

    fn network_policy(&mut self, cluster: &Cluster<'_>, policy: &NetworkPolicy) {
        let name = format!("NetworkPolicy {}", policy.key);
        let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
        let selected: Vec<&Pod> = cluster.select(&own, &policy.selector).collect();
        if selected.is_empty() {
            let message = format!(
                "selects no pod of namespace {}{}",
                policy.key.namespace,
                cluster.suggestion(&own, &policy.selector)
            );
            self.add_to(&name, "spec.podSelector", "selects-no-pod", message);
        }
        for direction in Direction::BOTH {
            let (field, ends) = match direction {
                Direction::Ingress => ("ingress", "from"),
                Direction::Egress => ("egress", "to"),
            };
            for rule in policy.direction(direction).iter().flatten() {
                let path = format!("spec.{field}[{}]", rule.index);
                self.rule_peers(cluster, &name, rule, |n| format!("{path}.{ends}[{n}]"));
                let meant: Vec<&Pod> = match direction {
                    Direction::Ingress => selected.clone(),
                    Direction::Egress => cluster.peers(rule),
                };
                self.port_names(&name, &path, rule, &meant);
            }
        }
    }

    fn port_names(&mut self, name: &str, path: &str, rule: &PolicyRule, meant: &[&Pod]) {
        for (n, ports) in rule.ports.iter().flatten().enumerate() {
            let PortSpec::Name(port) = &ports.port else { continue };
            let has = |pod: &&&Pod| pod.named_port(port, ports.protocol).is_some();
            if meant.is_empty() || meant.iter().any(|pod| has(&pod)) {
                continue;
            }
            let names: BTreeSet<&str> =
                meant.iter().flat_map(|pod| pod.ports.iter()).map(|it| &*it.name).collect();
            let near = nearest(port, names.iter().copied());
            let suggestion =
                near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let message = format!(
                "no container of the {} selected pods has a {} port {port}{suggestion}",
                meant.len(),
                ports.protocol
            );
            self.add_to(name, &format!("{path}.ports[{n}].port"), "unknown-port-name", message);
        }
    }

    fn rule_peers(
        &mut self,
        cluster: &Cluster<'_>,
        name: &str,
        rule: &PolicyRule,
        path: impl Fn(usize) -> String,
    ) {
        let peers = rule.peers.as_deref().unwrap_or_default();
        for (n, peer) in peers.iter().enumerate() {
            let Peer::Pods { namespaces, pods } = peer else { continue };
            if cluster.select(namespaces, pods).next().is_some() {
                continue;
            }
            // The mistake behind it, most often: two items where one was meant.
            let is_split = matches!(namespaces, Namespaces::Own(_))
                && peers[..n].iter().any(|it| {
                    matches!(it, Peer::Pods { namespaces: Namespaces::Selected(_), pods }
                        if pods.is_everything())
                });
            let hint = match is_split {
                true => {
                    "; to mean it together with the namespaceSelector above, make both one item"
                        .to_owned()
                }
                false => cluster.suggestion(namespaces, pods),
            };
            let place = match namespaces {
                Namespaces::Own(own) => format!(" of namespace {own}"),
                Namespaces::Selected(_) => String::new(),
            };
            let message = format!("the peer selects no pod{place}{hint}");
            self.add_to(name, &path(n), "peer-selects-no-pod", message);
        }
    }

    /// Rules that earlier ones leave nothing to, in every table that they are in.
    fn rules(&mut self, objects: Vec<Object>) {
        let expected = deciding_rules(&objects);
        let mut control = Control::new(Scope::All);
        control.resync(objects);
        control.commit();
        let view = control.view();
        let mut tables: HashMap<*const Table, Arc<Table>> = HashMap::new();
        for key in view.pods.keys() {
            let of_pod = matrix::tables(&view, key);
            tables.extend(of_pod.into_iter().flatten().map(|table| (Arc::as_ptr(&table), table)));
        }
        // By origin: the rule that decides instead, as long as one does everywhere.
        let mut before: BTreeMap<Arc<str>, Option<(Arc<str>, bool)>> = BTreeMap::new();
        for table in tables.values().filter(|table| table.rules().len() <= MOST_RULES) {
            for (n, rule) in table.rules().iter().enumerate() {
                let earlier = table.rules()[..n].iter();
                let mut earlier = earlier.filter(|it| it.origin != rule.origin);
                let cover = earlier.find(|it| covers(it, rule));
                let cover = cover.map(|it| (Arc::clone(&it.origin), it.action == rule.action));
                let known = before.entry(Arc::clone(&rule.origin)).or_insert_with(|| cover.clone());
                if cover.is_none() {
                    *known = None;
                }
            }
        }
        // A rule that matches what an earlier one does is in no table at all.
        for (origin, code) in expected.into_iter().filter(|(it, _)| !before.contains_key(it)) {
            let Some((object, field)) = origin.rsplit_once(' ') else { continue };
            let message = "never decides: an earlier rule matches the same connections".to_owned();
            self.add_to(object, &format!("spec.{field}"), code, message);
        }
        for (origin, cover) in before {
            let (Some((other, same)), Some((object, field))) = (cover, origin.rsplit_once(' '))
            else {
                continue;
            };
            if !field.ends_with(']') {
                continue;
            }
            let (code, what) = match same {
                true => ("redundant-rule", "says the same"),
                false => ("shadowed-rule", "says otherwise"),
            };
            let message = format!("never decides: {other} comes first and {what}");
            self.add_to(object, &format!("spec.{field}"), code, message);
        }
    }
}

/// Tables of more rules are not compared rule by rule.
const MOST_RULES: usize = 2_000;

/// Origins of the rules that tables should hold: those of policies that select a pod and whose
/// ports are numbers; each with the code of its absence.
fn deciding_rules(objects: &[Object]) -> Vec<(Arc<str>, &'static str)> {
    let cluster = Cluster::new(objects);
    let is_plain = |rule: &PolicyRule| {
        let by_name = rule.ports.iter().flatten().any(|it| matches!(it.port, PortSpec::Name(_)));
        let by_server = rule.peers.iter().flatten().any(|it| matches!(it, Peer::ApiServer));
        !by_name && !by_server
    };
    let mut found = Vec::new();
    for object in objects {
        match object {
            Object::NetworkPolicy(policy) => {
                let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
                if cluster.select(&own, &policy.selector).next().is_some() {
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    let plain = rules.filter(|rule| is_plain(rule));
                    found.extend(plain.map(|rule| (Arc::clone(&rule.origin), "redundant-rule")));
                }
            }
            Object::ClusterNetworkPolicy(policy) => {
                let selected = Namespaces::Selected(policy.namespaces.clone());
                if cluster.select(&selected, &policy.pods).next().is_some() {
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    // Where a rule passes, others decide.
                    let plain =
                        rules.filter(|it| it.verdict != Verdict::Pass && is_plain(&it.rule));
                    found.extend(plain.map(|it| (Arc::clone(&it.rule.origin), "shadowed-rule")));
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether every connection that `rule` matches is matched by `other`.
fn covers(other: &Rule, rule: &Rule) -> bool {
    let end = |other: &End, rule: &End| match (other, rule) {
        (End::Any, _) => true,
        (End::Net(wide), End::Net(net)) => wide.contains(net),
        (other, rule) => other == rule,
    };
    let ports = |other: acl::PortRange, rule: acl::PortRange| {
        other.first <= rule.first && rule.last <= other.last
    };
    end(&other.source, &rule.source)
        && end(&other.destination, &rule.destination)
        && (other.protocol.is_none() || other.protocol == rule.protocol)
        && ports(other.source_ports, rule.source_ports)
        && ports(other.destination_ports, rule.destination_ports)
        && (other.tcp_flags == acl::TcpFlags::ANY || other.tcp_flags == rule.tcp_flags)
}

/// Every `ipBlock` below a value: its path, its network and the exceptions.
fn find_blocks(tree: &Located, path: &str, found: &mut Vec<(String, String, Vec<String>)>) {
    match &tree.tree {
        Tree::Map(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if name == "ipBlock"
                    && let Some(cidr) = value.get("cidr").and_then(Located::text)
                {
                    let except = value.get("except").map_or(&[][..], Located::elements);
                    let except = except.iter().filter_map(Located::text).map(str::to_owned);
                    found.push((path.clone(), cidr.to_owned(), except.collect()));
                }
                find_blocks(value, &path, found);
            }
        }
        Tree::List(list) => {
            for (n, value) in list.iter().enumerate() {
                find_blocks(value, &format!("{path}[{n}]"), found);
            }
        }
        Tree::Scalar(_) => {}
    }
}
