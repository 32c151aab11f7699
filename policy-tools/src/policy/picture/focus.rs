//! Parts of a picture: one workload or one namespace with its connections.

use std::collections::{BTreeSet, HashMap};

use super::{Edge, NodeKind, Picture};

impl Picture {
    /// The part about one workload, `NAMESPACE/NAME`, and what it is connected with; connections of all
    /// workloads of its namespace or of the cluster are its own too. `None` without such a workload.
    pub fn focused(&self, workload: &str) -> Option<Self> {
        let is_it = |node: &super::Node| {
            matches!(node.kind, NodeKind::Workload { .. })
                && node.place().as_deref() == Some(workload)
        };
        let own = self.nodes.iter().position(is_it)?;
        let stands = |at: usize| {
            let node = &self.nodes[at];
            match node.kind {
                NodeKind::WholeCluster => true,
                NodeKind::WholeNamespace => node.group == self.nodes[own].group,
                _ => at == own,
            }
        };
        Some(self.part(&|at| at == own, &|edge| stands(edge.from) || stands(edge.to)))
    }

    /// The part about one namespace: its nodes, and the others that they are connected with.
    pub(super) fn around(&self, namespace: &str) -> Self {
        let is_own = |at: usize| self.nodes[at].group == namespace;
        self.part(&is_own, &|edge| is_own(edge.from) || is_own(edge.to))
    }

    /// The wanted nodes and edges, and the ends of these.
    pub(super) fn part(
        &self,
        has_node: &dyn Fn(usize) -> bool,
        has_edge: &dyn Fn(&Edge) -> bool,
    ) -> Self {
        let edges: Vec<&Edge> = self.edges.iter().filter(|edge| has_edge(edge)).collect();
        let mut kept: BTreeSet<usize> = edges.iter().flat_map(|it| [it.from, it.to]).collect();
        kept.extend((0..self.nodes.len()).filter(|at| has_node(*at)));
        let places: HashMap<usize, usize> =
            kept.iter().enumerate().map(|(new, old)| (*old, new)).collect();
        let edges = edges.into_iter().map(|edge| Edge {
            from: places[&edge.from],
            to: places[&edge.to],
            ..edge.clone()
        });
        Self {
            edges: edges.collect(),
            nodes: kept.iter().map(|at| self.nodes[*at].clone()).collect(),
        }
    }
}
