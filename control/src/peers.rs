//! Peer sets: the meaning of a policy's peer, in a form that can be compared.
//!
//! Two rules of different policies that mean the same pods mean the same set, so selectors
//! that many policies use are evaluated once. A set that needs the port name of the pod that
//! is connected to carries the number it stands for: the name means one set for each number
//! that the peer's pods give it. A set of a domain name is one pod's: names mean what DNS says to
//! that pod. All peers of one rule are one set, their union.

use std::net::IpAddr;
use std::sync::Arc;

use domain_names::DomainPattern;
use ipnet::IpNet;

use crate::PodKey;
use crate::blocks::Blocks;
use crate::model::{Labels, Namespaces, Node, Peer, Pod, Protocol, RuleAction, Selector};
use crate::union::Union;

/// The content of a peer set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PeerSet {
    /// The addresses of pods.
    Pods(PodPeers),
    /// The addresses of nodes by their labels, those with faults left out.
    Nodes(Selector),
    /// The same, and the addresses that these nodes publish.
    NodesAtAnyAddress(Selector),
    /// The addresses of nodes whose objects have faults.
    FaultyNodes,
    /// A network less its exceptions.
    Block(IpNet, Vec<IpNet>),
    /// The addresses that DNS gives a pod for domain names.
    Name(NamePeers),
    /// What is in any of several sets.
    Any(Arc<Union>),
    /// The intersection of these, none of which is a network alone or an `All`; sorted.
    All(Vec<PeerSet>),
}

/// Domain names as one pod knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamePeers {
    /// The pod that asks for them.
    pub(crate) pod: PodKey,
    /// The names.
    pub(crate) pattern: DomainPattern,
}

/// A set of pods; every condition must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodPeers {
    /// In which namespaces.
    pub(crate) namespaces: Namespaces,
    /// With which labels.
    pub(crate) pods: Selector,
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

/// Number of a port name that egress rules use.
pub(crate) type NameId = u32;

/// A port name as the pods that peers mean use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameOf {
    pub(crate) peers: PeerSet,
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
}

impl PodPeers {
    /// All pods in all namespaces.
    pub(crate) fn all() -> Self {
        let namespaces = Namespaces::Selected(Selector::default());
        Self { namespaces, pods: Selector::default(), port: None }
    }

    /// Whether the namespace is one of those meant.
    fn covers_namespace(&self, name: &str, labels: &Labels) -> bool {
        match &self.namespaces {
            Namespaces::Own(own) => &**own == name,
            Namespaces::Selected(selector) => selector.matches(labels),
        }
    }

    /// Whether a pod of such a namespace is meant.
    fn covers_pod(&self, pod: &Pod) -> bool {
        let has = |port: &NamedPort| {
            pod.named_ports(&port.name, port.protocol).any(|number| number == port.number)
        };
        self.pods.matches(&pod.labels) && self.port.as_ref().is_none_or(has)
    }
}

fn holds(net: &IpNet, except: &[IpNet], address: IpAddr) -> bool {
    net.contains(&address) && !except.iter().any(|except| except.contains(&address))
}

impl PeerSet {
    /// The set that a peer without port names stands for, in a rule of `pod` with this verdict.
    pub(crate) fn of(peer: &Peer, verdict: RuleAction, pod: Option<&PodKey>) -> Self {
        match (peer, pod) {
            (Peer::Name(pattern), Some(pod)) => {
                Self::Name(NamePeers { pod: pod.clone(), pattern: pattern.clone() })
            }
            (Peer::Nodes(selector), _) if verdict == RuleAction::Deny => {
                Self::NodesAtAnyAddress(selector.clone())
            }
            (peer, _) => Self::of_any(peer),
        }
    }

    /// The set of a peer that is the same for every pod.
    fn of_any(peer: &Peer) -> Self {
        match peer {
            Peer::Pods { namespaces, pods } => Self::Pods(PodPeers {
                namespaces: namespaces.clone(),
                pods: pods.clone(),
                port: None,
            }),
            Peer::Block(net, except) => Self::Block(*net, except.clone()),
            Peer::Nodes(selector) => Self::Nodes(selector.clone()),
            // Replaced by addresses before; without them it matches nothing. Nor do names of no pod.
            Peer::ApiServer | Peer::Name(_) => Self::any(Vec::new()),
        }
    }

    /// What is in any of these, which are no unions.
    pub(crate) fn any(mut sets: Vec<Self>) -> Self {
        if sets.len() == 1
            && let Some(only) = sets.pop()
        {
            return only;
        }
        let (blocks, mut others): (Vec<Self>, Vec<Self>) =
            sets.into_iter().partition(|set| matches!(set, Self::Block(..)));
        let blocks = Blocks::covered(blocks.iter().filter_map(Self::as_block), 1);
        others.sort_unstable();
        others.dedup();
        match (&*blocks, others.len()) {
            ([], 1) => others.remove(0),
            ([(net, except)], 0) => Self::Block(*net, except.clone()),
            _ => Self::Any(Arc::new(Union::new(blocks, others))),
        }
    }

    /// The pods of `peers` that call a port so, of all pods without any; `None` if peers are no
    /// pods.
    pub(crate) fn with_port(peers: Option<&Self>, port: NamedPort) -> Option<Self> {
        let named = Self::Pods(PodPeers { port: Some(port), ..PodPeers::all() });
        match peers {
            None => Some(named),
            Some(peers) => named.and(peers),
        }
    }

    fn as_block(&self) -> Option<(IpNet, &[IpNet])> {
        match self {
            Self::Block(net, except) => Some((*net, except)),
            _ => None,
        }
    }

    /// The networks in it; addresses of pods, nodes and names are not among them.
    pub(crate) fn blocks(&self) -> Blocks {
        match self {
            Self::Block(net, except) => Blocks::covered([(*net, &except[..])], 1),
            Self::Any(union) => union.blocks().clone(),
            Self::All(parts) => {
                Self::met_blocks(&parts.iter().map(Self::blocks).collect::<Vec<_>>())
            }
            Self::Pods(_) | Self::Nodes(_) | Self::NodesAtAnyAddress(_) => Blocks::default(),
            Self::FaultyNodes | Self::Name(_) => Blocks::default(),
        }
    }

    /// The parts that must all hold; the set itself if it is not made of parts.
    fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            single => std::slice::from_ref(single),
        }
    }

    /// Whether it is made of networks alone.
    pub(crate) fn is_of_blocks(&self) -> bool {
        match self {
            Self::Block(..) => true,
            Self::Any(union) => union.others().is_empty(),
            _ => false,
        }
    }

    /// Whether networks are in it.
    fn has_blocks(&self) -> bool {
        match self {
            Self::Block(..) => true,
            Self::Any(union) => !union.blocks().is_empty(),
            _ => false,
        }
    }

    /// Whether pods can be in it by what they are, and not by their address alone.
    pub(crate) fn is_of_pods(&self) -> bool {
        match self {
            Self::Pods(_) => true,
            Self::Any(union) => union.has_pods(),
            Self::All(parts) => {
                parts.iter().any(Self::is_of_pods)
                    && parts.iter().all(|part| part.is_of_pods() || part.has_blocks())
            }
            _ => false,
        }
    }

    /// Whether nodes can be in it likewise.
    pub(crate) fn is_of_nodes(&self) -> bool {
        match self {
            Self::Any(union) => union.has_nodes(),
            Self::All(parts) => {
                parts.iter().any(Self::is_of_nodes)
                    && parts.iter().all(|part| part.is_of_nodes() || part.has_blocks())
            }
            set => set.is_nodes(),
        }
    }

    fn is_nodes(&self) -> bool {
        matches!(self, Self::Nodes(_) | Self::NodesAtAnyAddress(_) | Self::FaultyNodes)
    }

    /// The names in it, if addresses of names can be.
    pub(crate) fn names(&self) -> Vec<&NamePeers> {
        let mut names = Vec::new();
        for part in self.parts() {
            match part {
                Self::Name(own) => names.push(own),
                Self::Any(union) => names.extend(union.names()),
                _ => {}
            }
        }
        names
    }

    /// Whether the set contains an address whose names `has` matches.
    pub(crate) fn holds_name(&self, address: IpAddr, has: impl Fn(&NamePeers) -> bool) -> bool {
        let means = |part: &Self, with_blocks: bool| match part {
            Self::Name(names) => has(names),
            Self::Block(net, except) => with_blocks && holds(net, except, address),
            Self::Any(union) => {
                with_blocks && union.blocks().contains(address) || union.names().any(&has)
            }
            _ => false,
        };
        match self {
            Self::All(parts) => {
                !self.names().is_empty() && parts.iter().all(|part| means(part, true))
            }
            set => means(set, false),
        }
    }

    /// The one namespace that its pods can be in, if there is only one.
    pub(crate) fn only_namespace(&self) -> Option<&Arc<str>> {
        self.parts().iter().find_map(|part| match part {
            Self::Pods(PodPeers { namespaces: Namespaces::Own(own), .. }) => Some(own),
            // A network may hold pods of any namespace, where more than it alone counts.
            Self::Any(union) if self.parts().len() == 1 || union.blocks().is_empty() => {
                union.only_namespace()
            }
            _ => None,
        })
    }

    /// Whether pods of this namespace can be in it.
    pub(crate) fn covers_namespace(&self, name: &str, labels: &Labels) -> bool {
        let covers = |part: &Self, with_blocks: bool| match part {
            Self::Pods(pods) => pods.covers_namespace(name, labels),
            Self::Any(union) => {
                with_blocks && !union.blocks().is_empty()
                    || union.others().iter().any(|it| it.covers_namespace(name, labels))
            }
            Self::Block(..) => with_blocks,
            _ => false,
        };
        match self {
            Self::All(parts) => parts.iter().all(|part| covers(part, true)),
            set => covers(set, false),
        }
    }

    /// Whether this address of a pod, which is in a namespace with these labels that the set
    /// covers, is in it.
    pub(crate) fn holds_pod(&self, pod: &Pod, namespace: &Labels, address: IpAddr) -> bool {
        match self {
            Self::Pods(pods) => pods.covers_pod(pod),
            Self::Any(union) => union.holds_pod(pod, namespace, address),
            Self::All(parts) => {
                self.is_of_pods() && parts.iter().all(|it| it.means_pod(pod, namespace, address))
            }
            _ => false,
        }
    }

    /// Whether the address of a pod is in it in whatever way, by a network too.
    pub(crate) fn means_pod(&self, pod: &Pod, namespace: &Labels, address: IpAddr) -> bool {
        match self {
            Self::Block(net, except) => holds(net, except, address),
            Self::Any(union) if union.blocks().contains(address) => true,
            set => set.holds_pod(pod, namespace, address),
        }
    }

    /// Whether pods of this namespace can be in it in whatever way.
    pub(crate) fn may_mean(&self, name: &str, labels: &Labels) -> bool {
        self.has_blocks() || self.covers_namespace(name, labels)
    }

    /// Whether this address of a node, of its object or published, is in it.
    pub(crate) fn holds_node(&self, node: &Node, address: IpAddr, is_published: bool) -> bool {
        match self {
            Self::Nodes(_) if is_published => false,
            Self::Nodes(selector) | Self::NodesAtAnyAddress(selector) => {
                node.complete && selector.matches(&node.labels)
            }
            Self::FaultyNodes => !node.complete,
            Self::Any(union) => union.holds_node(node, address, is_published),
            Self::All(parts) => {
                self.is_of_nodes()
                    && parts.iter().all(|part| match part {
                        Self::Block(net, except) => holds(net, except, address),
                        Self::Any(union) if union.blocks().contains(address) => true,
                        part => part.holds_node(node, address, is_published),
                    })
            }
            Self::Block(..) | Self::Pods(_) | Self::Name(_) => false,
        }
    }

    /// Returns the intersection; `None` if it is always empty.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let both = self.parts().iter().chain(other.parts());
        let (blocks, others): (Vec<&Self>, Vec<&Self>) = both.partition(|it| it.is_of_blocks());
        let mut parts: Vec<Self> = others.into_iter().cloned().collect();
        if !blocks.is_empty() {
            parts.push(Self::met(&blocks)?);
        }
        parts.sort();
        parts.dedup();
        let pods = parts.iter().any(|part| matches!(part, Self::Pods(_)));
        let nodes = parts.iter().any(Self::is_nodes);
        let names = parts.iter().any(|part| matches!(part, Self::Name(_)));
        match (pods && nodes || names && (pods || nodes), parts.len()) {
            // Pods on the host network are no pods to policies, so no address is both. An address
            // of the cluster is no name's.
            (true, _) => None,
            (false, 1) => parts.pop(),
            (false, _) => Some(Self::All(parts)),
        }
    }

    /// The intersection of sets of networks alone; `None` if it is empty.
    fn met(sets: &[&Self]) -> Option<Self> {
        if let [only] = sets {
            return Some((*only).clone());
        }
        let met = Self::met_blocks(&sets.iter().map(|set| set.blocks()).collect::<Vec<_>>());
        match &*met {
            [] => None,
            [(net, except)] => Some(Self::Block(*net, except.clone())),
            _ => Some(Self::Any(Arc::new(Union::new(met, Vec::new())))),
        }
    }

    fn met_blocks(lists: &[Blocks]) -> Blocks {
        let all = lists.iter().flat_map(|blocks| blocks.iter());
        Blocks::covered(all.map(|(net, except)| (*net, &except[..])), lists.len() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(net: &str, except: &[&str]) -> PeerSet {
        let except = except.iter().map(|net| net.parse().unwrap()).collect();
        PeerSet::Block(net.parse().unwrap(), except)
    }

    #[test]
    fn blocks_meet_in_the_smaller_one() {
        let wide = block("10.0.0.0/8", &["10.1.1.0/24", "10.2.0.0/16"]);
        let narrow = block("10.1.0.0/16", &["10.1.2.0/24"]);
        let met = block("10.1.0.0/16", &["10.1.1.0/24", "10.1.2.0/24"]);
        assert_eq!(wide.and(&narrow), Some(met.clone()));
        assert_eq!(narrow.and(&wide), Some(met));
        assert_eq!(wide.and(&block("10.2.3.0/24", &[])), None, "excepted");
        assert_eq!(wide.and(&block("11.0.0.0/8", &[])), None);
        assert_eq!(wide.and(&block("::/0", &[])), None);
    }

    #[test]
    fn peers_in_any_order_are_one_set() {
        let pods = |label: &str| {
            let test = crate::model::Test::In([Arc::from("x")].into());
            let requirement = crate::model::Requirement { key: label.into(), test };
            PeerSet::Pods(PodPeers { pods: [requirement].into_iter().collect(), ..PodPeers::all() })
        };
        let (net, inner) = (block("10.0.0.0/8", &[]), block("10.1.0.0/16", &[]));
        let one = PeerSet::any(vec![pods("a"), net.clone(), pods("b"), inner.clone()]);
        let other = PeerSet::any(vec![pods("b"), pods("a"), net.clone(), pods("b")]);
        assert_eq!(one, other);
        assert_eq!(PeerSet::any(vec![net.clone(), inner]), net, "one network");
        assert_eq!(PeerSet::any(vec![pods("a"), pods("a")]), pods("a"));
        assert_eq!(PeerSet::any(Vec::new()).blocks().len(), 0);
    }

    #[test]
    fn unions_meet_in_as_many_networks_as_both_have() {
        let nets = |first: u8| {
            let nets = (0..=255).map(|d| block(&format!("10.{first}.{d}.0/24"), &[]));
            PeerSet::any(nets.chain([block("192.0.2.0/24", &[])]).collect())
        };
        let met = nets(1).and(&nets(2)).unwrap();
        assert_eq!(met, block("192.0.2.0/24", &[]));
        assert_eq!(nets(1).and(&nets(1)).unwrap().blocks().len(), 257);
    }

    #[test]
    fn pods_and_nodes_never_meet_and_equal_sets_are_one() {
        let pods = PeerSet::Pods(PodPeers::all());
        let nodes = PeerSet::Nodes(Selector::default());
        assert_eq!(pods.and(&nodes), None);
        assert_eq!(pods.and(&pods), Some(pods.clone()));
        let within = pods.and(&block("10.0.0.0/8", &[])).unwrap();
        assert_eq!(within.and(&block("11.0.0.0/8", &[])), None);
        assert!(within.is_of_pods() && !within.is_of_nodes());
    }
}
