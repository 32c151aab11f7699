//! The union of peers: what all peers of one rule mean together.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use crate::blocks::Blocks;
use crate::model::{Labels, Namespaces, Node, Pod, Test};
use crate::peers::{NamePeers, PeerSet, PodPeers};

/// Networks, and sets of other kinds. A pod's labels lead to the few of them that may mean it.
#[derive(Debug)]
pub(crate) struct Union {
    /// Of everything that is compared.
    hash: u64,
    blocks: Blocks,
    /// Sorted; none of them has networks.
    others: Vec<PeerSet>,
    has_pods: bool,
    has_nodes: bool,
    index: Index,
}

/// Sets of pods by a label that they demand.
#[derive(Debug, Default)]
struct Index {
    /// By label and value; without one, the label only has to exist. Sorted.
    demanded: Vec<(Arc<str>, Option<Arc<str>>, u32)>,
    /// All others.
    rest: Vec<u32>,
}

impl Union {
    pub(crate) fn new(blocks: Blocks, others: Vec<PeerSet>) -> Self {
        let mut hasher = DefaultHasher::new();
        (&blocks, &others).hash(&mut hasher);
        Self {
            hash: hasher.finish(),
            has_pods: others.iter().any(PeerSet::is_of_pods),
            has_nodes: others.iter().any(PeerSet::is_of_nodes),
            index: Index::new(&others),
            blocks,
            others,
        }
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(crate) fn others(&self) -> &[PeerSet] {
        &self.others
    }

    /// Whether pods can be in it by their labels.
    pub(crate) fn has_pods(&self) -> bool {
        self.has_pods
    }

    /// Whether nodes can be in it.
    pub(crate) fn has_nodes(&self) -> bool {
        self.has_nodes
    }

    /// The domain names in it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamePeers> {
        self.others.iter().filter_map(|other| match other {
            PeerSet::Name(names) => Some(names),
            _ => None,
        })
    }

    /// The one namespace that all its pods can be in, if there is only one.
    pub(crate) fn only_namespace(&self) -> Option<&Arc<str>> {
        let of = |set: &PeerSet| match set {
            PeerSet::Pods(PodPeers { namespaces: Namespaces::Own(own), .. }) => {
                Some(Arc::clone(own))
            }
            _ => None,
        };
        let first = self.others.iter().find(|set| set.is_of_pods())?;
        let own = of(first)?;
        let mut pods = self.others.iter().filter(|set| set.is_of_pods());
        pods.all(|set| of(set).as_ref() == Some(&own)).then(|| first.only_namespace()).flatten()
    }

    /// Whether one of the sets of pods holds this address of a pod.
    pub(crate) fn holds_pod(&self, pod: &Pod, namespace: &Labels, address: IpAddr) -> bool {
        let holds = |at: &u32| {
            let set = &self.others[*at as usize];
            set.covers_namespace(&pod.key.namespace, namespace)
                && set.holds_pod(pod, namespace, address)
        };
        self.has_pods
            && (self.index.rest.iter().any(holds)
                || pod.labels.iter().any(|(key, value)| {
                    [None, Some(value)]
                        .into_iter()
                        .any(|value| self.index.of(key, value).any(|at| holds(&at)))
                }))
    }

    /// Whether one of the sets of nodes holds this address of a node.
    pub(crate) fn holds_node(&self, node: &Node, address: IpAddr, is_published: bool) -> bool {
        self.has_nodes
            && self.others.iter().any(|other| other.holds_node(node, address, is_published))
    }
}

impl Index {
    fn new(others: &[PeerSet]) -> Self {
        let mut index = Self::default();
        for (at, other) in (0_u32..).zip(others).filter(|(_, other)| other.is_of_pods()) {
            let requirements = match other {
                PeerSet::Pods(PodPeers { pods, .. }) => pods.requirements(),
                _ => &[],
            };
            let demanded = requirements.iter().find_map(|it| match &it.test {
                Test::In(values) => Some((&it.key, values.iter().cloned().map(Some).collect())),
                Test::Exists => Some((&it.key, vec![None])),
                Test::NotIn(_) | Test::DoesNotExist => None,
            });
            match demanded {
                Some((key, values)) => {
                    let of_value = |value| (Arc::clone(key), value, at);
                    index.demanded.extend(values.into_iter().map(of_value));
                }
                None => index.rest.push(at),
            }
        }
        index.demanded.sort_unstable();
        index
    }

    /// The sets that demand this label.
    fn of(&self, key: &Arc<str>, value: Option<&Arc<str>>) -> impl Iterator<Item = u32> {
        let wanted = (&**key, value.map(|value| &**value));
        let first =
            self.demanded.partition_point(|(key, value, _)| (&**key, value.as_deref()) < wanted);
        let same = self.demanded[first..].iter();
        let same = same.take_while(move |(key, value, _)| (&**key, value.as_deref()) == wanted);
        same.map(|(_, _, at)| *at)
    }
}

impl PartialEq for Union {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.hash == other.hash && self.blocks == other.blocks && self.others == other.others
    }
}

impl Eq for Union {}

impl Hash for Union {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl PartialOrd for Union {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Union {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.blocks, &self.others).cmp(&(&other.blocks, &other.others))
    }
}
