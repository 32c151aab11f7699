//! Nodes that could exist, and those that a pod could be on.

use std::collections::HashSet;
use std::sync::Arc;

use control::Object;
use control::model::{Labels, Node, Pod, Selector};

use super::{Selectors, classes, with_labels};
use crate::input::Manifests;

/// Nodes of one class, on which a pod may be.
#[derive(Clone, Debug, Default)]
pub(super) struct Home {
    /// A node of the class; `None` where nodes matter to no pod.
    pub(super) node: Option<Arc<str>>,
    pub(super) words: String,
    /// The pods of the manifests that are on such nodes.
    nodes: HashSet<Arc<str>>,
}

impl Home {
    /// Returns whether a pod is on a node of the class. A pod without a known node is on no particular one.
    pub(super) fn has(&self, pod: &Pod) -> bool {
        self.node.is_none() || pod.node.as_ref().is_some_and(|node| self.nodes.contains(node))
    }
}

/// The classes of nodes that egress firewalls tell apart; one without them.
pub(super) fn homes(manifests: &Manifests, selectors: &Selectors) -> Result<Vec<Home>, String> {
    let relevant: Vec<&Selector> = selectors.nodes_of_pods.iter().collect();
    if relevant.is_empty() {
        return Ok(vec![Home::default()]);
    }
    let home = |labels: Labels| {
        let class = matching(&relevant, &labels);
        let same = nodes(manifests).filter(|it| matching(&relevant, &it.labels) == class);
        let nodes: HashSet<Arc<str>> = same.map(|it| Arc::clone(&it.name)).collect();
        let node = nodes.iter().min().cloned();
        Home { node, words: format!(" on any node{}", with_labels(&labels)), nodes }
    };
    Ok(classes(&relevant, &[])?.into_iter().map(home).collect())
}

/// Adds a node for each class that no node of the manifests is in.
pub(super) fn add_nodes(manifests: &mut Manifests, selectors: &Selectors) -> Result<(), String> {
    if selectors.nodes.is_empty() {
        return Ok(());
    }
    let relevant: Vec<&Selector> = selectors.nodes.iter().collect();
    let here: HashSet<Vec<bool>> =
        nodes(manifests).map(|node| matching(&relevant, &node.labels)).collect();
    for (n, labels) in classes(&relevant, &[])?.into_iter().enumerate() {
        if here.contains(&matching(&relevant, &labels)) {
            continue;
        }
        let name: Arc<str> = format!("(any node {n})").into();
        let words = format!("any node{} (none in these files)", with_labels(&labels));
        manifests.representative_nodes.insert(Arc::clone(&name), words);
        let node = Node {
            name,
            labels: Arc::new(labels),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            ready: true,
            created: 0,
            complete: true,
        };
        manifests.objects.push(Object::Node(node.into()));
    }
    Ok(())
}

fn nodes(manifests: &Manifests) -> impl Iterator<Item = &Node> {
    manifests.objects.iter().filter_map(|object| match object {
        Object::Node(node) => Some(&**node),
        _ => None,
    })
}

fn matching(selectors: &[&Selector], labels: &Labels) -> Vec<bool> {
    selectors.iter().map(|selector| selector.matches(labels)).collect()
}
