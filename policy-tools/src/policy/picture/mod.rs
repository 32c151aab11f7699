//! Draws what policies allow: workloads are nodes, allowed ports are edges.
//!
//! ```text
//! manifests ─ survey ─▶ Picture ─ collapse ─▶ Picture ─ layout ─▶ SVG, HTML
//!                                                └─▶ Graphviz, Mermaid
//! ```
//!
//! Between two ends that no policy selects everything is allowed, and nothing is drawn: a node that
//! no policy selects for ingress is marked as open instead. Sources that are a whole namespace, or
//! all of them, are one node.

mod collapse;
mod focus;
mod html;
mod layout;
mod ranks;
mod route;
mod summary;
mod survey;
mod svg;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub use survey::{INTERNET, PictureOptions, picture};

use crate::policy::xml;
use crate::probe::Protocol;

/// Workloads and networks, and the connections between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The nodes, in the order of their groups.
    pub nodes: Vec<Node>,
    /// The edges, in the order of their ends.
    pub edges: Vec<Edge>,
}

/// One node of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name within the group.
    pub name: String,
    /// Its namespace; empty for a node outside of all namespaces.
    pub group: String,
    /// The workload, network or service that the node stands for.
    pub kind: NodeKind,
}

/// Kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    /// The pods of one workload.
    Workload {
        /// Number of pods.
        pods: usize,
        /// True if no policy selects it for ingress.
        is_open: bool,
        /// True if no policy selects it for egress.
        reaches_all: bool,
    },
    /// Every workload of the namespace.
    WholeNamespace,
    /// Every workload of every namespace.
    WholeCluster,
    /// A namespace whose workloads are not drawn one by one.
    Collapsed {
        /// Number of workloads.
        workloads: usize,
        /// Number of those that no policy selects for ingress.
        open: usize,
        /// Number of those that no policy selects for egress.
        reaching_all: usize,
    },
    /// Pods that are in no manifest.
    Possible,
    /// The internet, a network or a node.
    Outside,
}

/// Connections from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The place of the node that opens them.
    pub from: usize,
    /// The place of the node that they are opened to.
    pub to: usize,
    /// The ports.
    pub ports: Ports,
    /// True if they were observed, and denied.
    pub denied: bool,
}

/// Protocols with ranges of ports. ICMP has the range of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports(pub BTreeSet<(Protocol, u16, u16)>);

/// The group of the node that stands for every workload; no namespace has such a name.
const EVERYWHERE: &str = "all namespaces";

/// The group of pods that are in no manifest, of namespaces that are in none.
const ELSEWHERE: &str = "other namespaces";

/// A protocol with a range of ports.
type Range = (Protocol, u16, u16);

/// The range of all ports.
const ALL: (u16, u16) = (1, u16::MAX);

impl Ports {
    /// The ranges in words, such as `TCP 80`; `all ports` where nothing is left out.
    pub fn words(&self) -> Vec<String> {
        if Protocol::ALL.iter().all(|it| self.0.contains(&(*it, ALL.0, ALL.1))) {
            return vec!["all ports".into()];
        }
        let range = |(protocol, first, last): &(Protocol, u16, u16)| match (*first, *last) {
            ALL => protocol.name().to_owned(),
            (first, last) if first == last => format!("{} {first}", protocol.name()),
            (first, last) => format!("{} {first}-{last}", protocol.name()),
        };
        self.0.iter().map(range).collect()
    }

    fn text(&self) -> String {
        self.words().join(", ")
    }
}

impl Picture {
    /// The groups in order, each with the places of its nodes.
    fn groups(&self) -> BTreeMap<&str, Vec<usize>> {
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (n, node) in self.nodes.iter().enumerate() {
            groups.entry(&node.group).or_default().push(n);
        }
        groups
    }

    /// The names of the namespaces.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let groups = self.nodes.iter().map(|node| node.group.clone());
        groups.filter(|group| !matches!(&**group, "" | EVERYWHERE | ELSEWHERE)).collect()
    }
}

impl Node {
    /// The name as it is drawn.
    fn label(&self) -> String {
        match self.kind {
            NodeKind::WholeNamespace | NodeKind::WholeCluster => "every workload".into(),
            NodeKind::Workload { pods, .. } if pods > 1 => format!("{} ({pods} pods)", self.name),
            NodeKind::Workload { .. } | NodeKind::Outside => self.name.clone(),
            NodeKind::Possible => self.short_words(),
            NodeKind::Collapsed { workloads: 1, .. } => format!("{} (1 workload)", self.name),
            NodeKind::Collapsed { workloads, .. } => {
                format!("{} ({workloads} workloads)", self.name)
            }
        }
    }

    /// The subject of the node, as connections name their ends: `NS/WORKLOAD`, `NS/*`, a network,
    /// `internet` or `node/NAME`.
    pub fn place(&self) -> Option<String> {
        match self.kind {
            NodeKind::Workload { .. } => Some(format!("{}/{}", self.group, self.name)),
            NodeKind::Collapsed { .. } => Some(format!("{}/*", self.name)),
            NodeKind::Outside => Some(self.name.clone()),
            NodeKind::WholeNamespace | NodeKind::WholeCluster | NodeKind::Possible => None,
        }
    }

    /// The words of possible pods without what their group says.
    fn short_words(&self) -> String {
        let words = self.name.strip_suffix(" (none in these files)").unwrap_or(&self.name);
        let of_group = format!(" of namespace {}", self.group);
        let words = words.strip_suffix(&*of_group).unwrap_or(words);
        words.strip_prefix("any pod of ").unwrap_or(words).to_owned()
    }

    /// The note on a node that policies leave open.
    fn openness(&self) -> Option<String> {
        match self.kind {
            NodeKind::Workload { is_open, reaches_all, .. } => match (is_open, reaches_all) {
                (true, true) => Some("open: no ingress or egress policy".into()),
                (true, false) => Some("open: no ingress policy".into()),
                (false, true) => Some("open: no egress policy".into()),
                (false, false) => None,
            },
            NodeKind::Collapsed { open, reaching_all, .. } => {
                let counts = [(open, "ingress"), (reaching_all, "egress")];
                let notes = counts.into_iter().filter(|(count, _)| *count > 0);
                let notes: Vec<String> =
                    notes.map(|(count, what)| format!("{count} without {what} policy")).collect();
                (!notes.is_empty()).then(|| notes.join(", "))
            }
            _ => None,
        }
    }
}

/// The title of a group.
fn title(group: &str) -> &str {
    if group.is_empty() { "outside" } else { group }
}
