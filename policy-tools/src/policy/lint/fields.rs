//! Mistakes that an object's text alone shows: kinds that nothing enforces, rules that mean nothing,
//! networks.

use std::path::Path;

use control::{Fault, Position};
use ipnet::IpNet;

use super::{Finding, Findings, INVALID, Source, repairs};
use crate::input::located::{Located, Tree};

/// The beginning of a file.
const START: Position = Position { line: 1, column: 1 };

impl Findings<'_> {
    /// Reports policies of other controllers, and kinds that nothing enforces.
    pub(super) fn foreign(&mut self, source: &Source) {
        let text = |field: &str| source.tree.get(field).and_then(Located::text).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let of_others = [
            "projectcalico.org",
            "cilium.io",
            "antrea.io",
            "policy.openshift.io",
            // MultiNetworkPolicy, about the further networks of Multus.
            "k8s.cni.cncf.io",
        ];
        let is_policy = kind.contains("Policy") || kind.contains("Policies");
        if of_others.iter().any(|other| group.ends_with(other)) && is_policy {
            let message = format!(
                "{version} {kind} is a policy of another product, which Podgate does not enforce: write it as a NetworkPolicy or a \
                 ClusterNetworkPolicy"
            );
            self.add(source, "kind", "not-enforced-here", message);
        } else if let Some(known) = crate::input::misspelt_kind(version, kind) {
            let message =
                format!("{kind} is not a kind of {version}, so nothing enforces it; write {known}");
            self.add(source, "kind", "not-enforced-here", message);
        }
    }

    /// Reports rules that `policyTypes` leaves out, and empty lists of peers.
    pub(super) fn types(&mut self, source: &Source) {
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
                let message = format!(
                    "the {field} rules mean nothing, as policyTypes leaves {name} out; add it there, or remove them"
                );
                self.add(source, &format!("spec.{field}"), code, message);
            }
            for (n, rule) in rules.elements().iter().enumerate() {
                let is_empty =
                    rule.get(peers).is_some_and(|it| it.is_list() && it.elements().is_empty());
                if is_empty {
                    let message =
                        format!("`{peers}: []` means any peer; leave the rule out to allow none");
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

    /// Checks networks and their exceptions.
    pub(super) fn peers(&mut self, source: &Source) {
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
                    let message = format!(
                        "{text} is all of {cidr}, so the peer matches no address; remove one of them"
                    );
                    self.add(source, &path, "except-is-all", message);
                } else if !net.trunc().contains(&inner.trunc()) {
                    let message = format!(
                        "{text} is not inside {cidr}, so it takes nothing away; correct or remove it"
                    );
                    self.add(source, &path, "except-outside", message);
                }
            }
        }
    }

    fn host_bits(&mut self, source: &Source, path: &str, net: IpNet) {
        if net.trunc() != net {
            let message = format!(
                "{net} means {}, as it has bits beyond its prefix: write that, or the prefix that is meant",
                net.trunc()
            );
            self.add(source, path, "host-bits", message);
        }
    }

    /// Reports the faults that the switch itself finds, unless a finding describes them better.
    pub(super) fn faults(&mut self, faults: &[Fault], named: &dyn Fn(&Path) -> String) {
        for fault in faults {
            let file = fault.file.as_deref().map(named).unwrap_or_default();
            let here = |source: &&Source| {
                source.file == file && fault.document.is_some_and(|it| it == source.document)
            };
            let object = fault.object.as_ref().map(ToString::to_string);
            let is_it = |source: &&Source| object.as_ref().is_none_or(|it| *it == source.object);
            let mut of_document = self.sources.iter().filter(here);
            let source = of_document.clone().find(is_it).or_else(|| of_document.next());
            let Some(source) = source else {
                let Position { line, column } = fault.position.unwrap_or(START);
                self.found.insert(Finding {
                    file,
                    line,
                    column,
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
                let repair = repairs::of_fault(&fault.fault, at);
                let repair = repair.map(|it| format!("; {it}")).unwrap_or_default();
                self.add(source, &path, INVALID, format!("{}{repair}", fault.fault));
            }
        }
    }
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
