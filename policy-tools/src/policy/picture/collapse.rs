//! Namespaces drawn as one node.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, NodeKind, Picture};

impl Picture {
    /// The same picture with each of these namespaces as one node. Connections inside them are
    /// not drawn.
    pub fn collapsed(&self, namespaces: &BTreeSet<String>) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        let mut places = Vec::new();
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for node in &self.nodes {
            if !namespaces.contains(&node.group) {
                places.push(nodes.len());
                nodes.push(node.clone());
                continue;
            }
            let at = *of_namespaces.entry(&node.group).or_insert_with(|| {
                let kind = NodeKind::Collapsed { workloads: 0, open: 0 };
                nodes.push(Node { name: node.group.clone(), group: node.group.clone(), kind });
                nodes.len() - 1
            });
            places.push(at);
            if let NodeKind::Collapsed { workloads, open } = &mut nodes[at].kind
                && let NodeKind::Workload { is_open, .. } = node.kind
            {
                *workloads += 1;
                *open += usize::from(is_open);
            }
        }
        let mut picture = Self { nodes, edges: Vec::new() };
        for denied in [false, true] {
            let edges = self.edges.iter().filter(|edge| edge.denied == denied);
            let ranges = edges.flat_map(|edge| {
                let (from, to) = (places[edge.from], places[edge.to]);
                let ranges = edge.ports.0.iter().filter(move |_| from != to);
                ranges.map(move |range| (from, to, *range))
            });
            picture.add_edges(ranges.collect::<Vec<_>>(), denied);
        }
        picture
    }
}
