//! Peer sets: whom a policy's peer stands for, interned by meaning.
//!
//! Two rules of different policies that mean the same pods share one set, so selectors that
//! many policies use are evaluated once. A set that needs the port name of the pod that is
//! connected to carries the number it stands for: the name means one set for each number
//! that the peer's pods give it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Block, PeerSetId};
use ipnet::IpNet;

use crate::model::{Labels, Namespaces, Peer, Pod, Protocol, Selector};

/// What a peer set holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PeerSet {
    /// The addresses of pods.
    Pods(PodPeers),
    /// A network less its exceptions.
    Block(IpNet, Vec<IpNet>),
}

/// Which pods; every condition must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodPeers {
    /// In which namespaces.
    pub(crate) namespaces: Namespaces,
    /// With which labels.
    pub(crate) pods: Selector,
    /// With an address in this network less its exceptions (only those addresses count).
    pub(crate) within: Option<(IpNet, Vec<IpNet>)>,
    /// With a container port of this name and protocol, of this number.
    pub(crate) port: Option<NamedPort>,
}

/// A port name and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamedPort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
}

impl PodPeers {
    /// The pods that a policy's peer can mean; `None` is anybody.
    pub(crate) fn of(peer: Option<&Peer>) -> Self {
        let (namespaces, pods, within) = match peer {
            Some(Peer::Pods { namespaces, pods }) => (namespaces.clone(), pods.clone(), None),
            Some(Peer::Block(net, except)) => {
                (everywhere(), Selector::default(), Some((*net, except.clone())))
            }
            None => (everywhere(), Selector::default(), None),
        };
        Self { namespaces, pods, within, port: None }
    }

    /// Whether the namespace is one of those meant.
    pub(crate) fn covers_namespace(&self, name: &str, labels: &Labels) -> bool {
        match &self.namespaces {
            Namespaces::Own(own) => &**own == name,
            Namespaces::Selected(selector) => selector.matches(labels),
        }
    }

    /// Whether a pod of such a namespace is meant, some of its addresses at least.
    pub(crate) fn covers_pod(&self, pod: &Pod) -> bool {
        self.pods.matches(&pod.labels)
            && self
                .port
                .as_ref()
                .is_none_or(|it| pod.named_port(&it.name, it.protocol) == Some(it.number))
    }

    /// Whether one of that pod's addresses is meant.
    pub(crate) fn covers_address(&self, address: IpAddr) -> bool {
        self.within.as_ref().is_none_or(|(net, except)| {
            net.contains(&address) && !except.iter().any(|except| except.contains(&address))
        })
    }
}

fn everywhere() -> Namespaces {
    Namespaces::Selected(Selector::default())
}

/// The set that a peer without port names stands for.
pub(crate) fn set_of(peer: &Peer) -> PeerSet {
    match peer {
        Peer::Pods { .. } => PeerSet::Pods(PodPeers::of(Some(peer))),
        Peer::Block(net, except) => PeerSet::Block(*net, except.clone()),
    }
}

/// One address as a block.
pub(crate) fn single(address: IpAddr) -> Block {
    Block { net: IpNet::from(address), except: Vec::new() }
}

/// Gives peer sets their numbers.
#[derive(Debug, Default)]
pub(crate) struct PeerSets {
    ids: HashMap<Arc<PeerSet>, PeerSetId>,
    next: u32,
}

impl PeerSets {
    /// The number of this set, the same for as long as the set is known.
    pub(crate) fn id(&mut self, set: PeerSet) -> PeerSetId {
        if let Some(id) = self.ids.get(&set) {
            return *id;
        }
        let id = PeerSetId(self.next);
        self.next = self.next.wrapping_add(1);
        self.ids.insert(Arc::new(set), id);
        id
    }

    /// Forgets sets that are not among `used`.
    pub(crate) fn retain(&mut self, used: impl Fn(PeerSetId) -> bool) {
        self.ids.retain(|_, id| used(*id));
    }

    /// All sets, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PeerSet, PeerSetId)> {
        self.ids.iter().map(|(set, id)| (&**set, *id))
    }
}
