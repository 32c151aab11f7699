//! Namespaces drawn as one node.

use std::collections::{BTreeMap, BTreeSet};

use super::{Edge, Node, NodeKind, Picture, Range};

/// The node of a collapsed namespace for pods that are in no manifest.
const POSSIBLE: &str = "pods not in these files";

impl Picture {
    /// Returns the picture with each of these namespaces as one node. Connections inside them are not drawn.
    pub fn collapsed(&self, namespaces: &BTreeSet<String>) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        let mut places = Vec::new();
        let mut of_namespaces: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        for node in &self.nodes {
            if !namespaces.contains(&node.group) {
                places.push(nodes.len());
                nodes.push(node.clone());
                continue;
            }
            let is_possible = node.kind == NodeKind::Possible;
            let at = *of_namespaces.entry((&node.group, is_possible)).or_insert_with(|| {
                let (name, kind) = match is_possible {
                    true => (POSSIBLE.to_owned(), NodeKind::Possible),
                    false => {
                        let kind = NodeKind::Collapsed { workloads: 0, open: 0, reaching_all: 0 };
                        (node.group.clone(), kind)
                    }
                };
                nodes.push(Node { name, group: node.group.clone(), kind });
                nodes.len() - 1
            });
            places.push(at);
            if let NodeKind::Collapsed { workloads, open, reaching_all } = &mut nodes[at].kind
                && let NodeKind::Workload { is_open, reaches_all, .. } = node.kind
            {
                *workloads += 1;
                *open += usize::from(is_open);
                *reaching_all += usize::from(reaches_all);
            }
        }
        let mut picture = Self { nodes, edges: Vec::new() };
        for denied in [false, true] {
            let edges = self.edges.iter().filter(|edge| edge.denied == denied);
            let ranges = edges.flat_map(|edge| {
                let (from, to) = (places[edge.from], places[edge.to]);
                let of = |place: usize| &self.nodes[place].group;
                let is_inside = of(edge.from) == of(edge.to) && namespaces.contains(of(edge.to));
                let ranges = edge.ports.0.iter().filter(move |_| !is_inside);
                ranges.map(move |range| (from, to, *range))
            });
            picture.add_edges(ranges.collect::<Vec<_>>(), denied);
        }
        picture.leave_out_implied();
        picture
    }

    /// Leaves out edges of the possible pods of a collapsed namespace that its workloads have too.
    fn leave_out_implied(&mut self) {
        let is_possible = |node: &Node| node.kind == NodeKind::Possible && node.name == POSSIBLE;
        let ends = |edge: &Edge| [edge.from, edge.to].map(|at| (&*self.nodes[at].group, at));
        let mut known: BTreeSet<([&str; 2], bool, Range)> = BTreeSet::new();
        for edge in &self.edges {
            let of_ends = ends(edge);
            if !of_ends.iter().any(|(_, at)| is_possible(&self.nodes[*at])) {
                let groups = of_ends.map(|(group, _)| group);
                known.extend(edge.ports.0.iter().map(|range| (groups, edge.denied, *range)));
            }
        }
        let is_implied = |edge: &Edge| {
            let of_ends = ends(edge);
            let groups = of_ends.map(|(group, _)| group);
            of_ends.iter().any(|(_, at)| is_possible(&self.nodes[*at]))
                && edge.ports.0.iter().all(|it| known.contains(&(groups, edge.denied, *it)))
        };
        let left: Vec<bool> = self.edges.iter().map(|edge| !is_implied(edge)).collect();
        let mut left = left.into_iter();
        self.edges.retain(|_| left.next().unwrap_or(true));
        let used: BTreeSet<usize> = self.edges.iter().flat_map(|it| [it.from, it.to]).collect();
        let is_left = |at: usize| !is_possible(&self.nodes[at]) || used.contains(&at);
        *self = self.part(&is_left, &|_| true);
    }
}
