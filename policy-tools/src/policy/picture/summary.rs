//! Draws ends together that are treated alike.

use std::collections::{BTreeMap, BTreeSet};

use super::survey::INTERNET;
use super::{ELSEWHERE, EVERYWHERE, Node, NodeKind, Range};
use crate::policy::representatives::General;

/// Makes one source of all workloads of a namespace or of the cluster, one target of all workloads
/// of a namespace, and one end of everything outside. Of possible pods the most general ones are left.
pub(super) fn summarize(
    nodes: &mut Vec<Node>,
    edges: Vec<(usize, usize, Range)>,
    general: &General,
) -> Vec<(usize, usize, Range)> {
    let groups = Groups::of(nodes);
    let mut by_target: BTreeMap<(usize, Range), BTreeSet<usize>> = BTreeMap::new();
    for (from, to, range) in edges {
        by_target.entry((to, range)).or_default().insert(from);
    }
    let mut by_source: BTreeMap<(usize, Range), BTreeSet<usize>> = BTreeMap::new();
    for ((to, range), mut froms) in by_target {
        groups.summarize(nodes, to, true, &mut froms);
        groups.generalize(nodes, general, &mut froms);
        for from in froms {
            by_source.entry((from, range)).or_default().insert(to);
        }
    }
    let mut found = Vec::new();
    for ((from, range), mut tos) in by_source {
        groups.summarize(nodes, from, false, &mut tos);
        groups.generalize(nodes, general, &mut tos);
        found.extend(tos.into_iter().map(|to| (from, to, range)));
    }
    found
}

/// The nodes by kind and namespace.
struct Groups {
    /// Workloads and possible pods of each namespace.
    spaces: BTreeMap<String, [BTreeSet<usize>; 2]>,
    workloads: BTreeSet<usize>,
    possible: BTreeSet<usize>,
    outside: BTreeSet<usize>,
}

impl Groups {
    fn of(nodes: &[Node]) -> Self {
        let mut groups = Self {
            spaces: BTreeMap::new(),
            workloads: BTreeSet::new(),
            possible: BTreeSet::new(),
            outside: BTreeSet::new(),
        };
        for (n, node) in nodes.iter().enumerate() {
            let is_possible = match node.kind {
                NodeKind::Outside => {
                    groups.outside.insert(n);
                    continue;
                }
                NodeKind::Possible => true,
                _ => false,
            };
            match is_possible {
                true => groups.possible.insert(n),
                false => groups.workloads.insert(n),
            };
            if node.group != ELSEWHERE {
                let space = groups.spaces.entry(node.group.clone()).or_default();
                space[usize::from(is_possible)].insert(n);
            }
        }
        groups
    }

    /// Puts one end in the place of all workloads of the cluster (of sources alone) and of a namespace, and of
    /// what is outside.
    fn summarize(
        &self,
        nodes: &mut Vec<Node>,
        other: usize,
        are_sources: bool,
        ends: &mut BTreeSet<usize>,
    ) {
        let has_all = |of: &BTreeSet<usize>, ends: &BTreeSet<usize>| {
            of.iter().filter(|it| **it != other).count() > 1
                && of.iter().all(|it| *it == other || ends.contains(it))
        };
        let mut whole = Vec::new();
        if are_sources && self.spaces.len() > 1 && has_all(&self.workloads, ends) {
            ends.retain(|it| !self.workloads.contains(it));
            if self.possible.is_subset(ends) {
                ends.retain(|it| !self.possible.contains(it));
            }
            whole.push(Node {
                name: "*".into(),
                group: EVERYWHERE.into(),
                kind: NodeKind::WholeCluster,
            });
        }
        for (space, [workloads, possible]) in &self.spaces {
            if !has_all(workloads, ends) {
                continue;
            }
            ends.retain(|it| !workloads.contains(it));
            if possible.is_subset(ends) {
                ends.retain(|it| !possible.contains(it));
            }
            let (name, group) = ("*".into(), space.clone());
            whole.push(Node { name, group, kind: NodeKind::WholeNamespace });
        }
        most_of_outside(nodes, &self.outside, ends);
        ends.extend(whole.into_iter().map(|node| place(nodes, node)));
    }

    /// Leaves out possible pods for which a more general one stands.
    fn generalize(&self, nodes: &[Node], general: &General, ends: &mut BTreeSet<usize>) {
        let possible = ends.iter().filter(|it| self.possible.contains(it));
        let names: BTreeSet<String> = possible.map(|it| nodes[*it].name.clone()).collect();
        if !names.is_empty() {
            let least = general.least(names);
            ends.retain(|it| !self.possible.contains(it) || least.contains(&nodes[*it].name));
        }
    }
}

/// Makes one end of the internet with most of the networks outside.
fn most_of_outside(nodes: &mut Vec<Node>, outside: &BTreeSet<usize>, ends: &mut BTreeSet<usize>) {
    const MOST_LEFT_OUT: usize = 3;
    let within = outside.iter().filter(|it| ends.contains(it)).count();
    let has_internet = outside.iter().any(|it| ends.contains(it) && nodes[*it].name == INTERNET);
    let left_out: Vec<&str> =
        outside.iter().filter(|it| !ends.contains(it)).map(|it| &*nodes[*it].name).collect();
    if !has_internet || within < 2 || left_out.len() > MOST_LEFT_OUT {
        return;
    }
    let name = match left_out.is_empty() {
        true => "every address".to_owned(),
        false => format!("every address but {}", left_out.join(", ")),
    };
    ends.retain(|it| !outside.contains(it));
    ends.insert(place(nodes, Node { name, group: String::new(), kind: NodeKind::Outside }));
}

/// The place of a node, which is added where it is new.
pub(super) fn place(nodes: &mut Vec<Node>, node: Node) -> usize {
    let same = |it: &Node| (&it.name, &it.group) == (&node.name, &node.group);
    nodes.iter().position(same).unwrap_or_else(|| {
        nodes.push(node);
        nodes.len() - 1
    })
}
