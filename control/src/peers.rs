//! Peer sets: the meaning of a policy's peer, in a form that can be compared.
//!
//! Two rules of different policies that mean the same pods mean the same set, so selectors
//! that many policies use are evaluated once. A set that needs the port name of the pod that
//! is connected to carries the number it stands for: the name means one set for each number
//! that the peer's pods give it. A set of a domain name is one pod's: names mean what DNS says to
//! that pod.

use std::net::IpAddr;
use std::sync::Arc;

use domain_names::DomainPattern;
use ipnet::IpNet;

use crate::PodKey;
use crate::model::{Labels, Namespaces, Node, Peer, Pod, Protocol, RuleAction, Selector};

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
    /// The intersection of these, none of which is a `Block` alone or an `All`; sorted.
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

/// Number of a port name that egress rules use.
pub(crate) type NameId = u32;

/// A port name as a peer's pods use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameOf {
    pub(crate) peers: PodPeers,
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
}

impl PodPeers {
    /// The pods that a policy's peer can mean; `None` for a peer that means no pods. Without a
    /// peer, all pods.
    pub(crate) fn of(peer: Option<&Peer>) -> Option<Self> {
        let everywhere = || Namespaces::Selected(Selector::default());
        let (namespaces, pods, within) = match peer {
            Some(Peer::Pods { namespaces, pods }) => (namespaces.clone(), pods.clone(), None),
            Some(Peer::Block(net, except)) => {
                (everywhere(), Selector::default(), Some((*net, except.clone())))
            }
            Some(Peer::Nodes(_) | Peer::ApiServer | Peer::Name(_)) => return None,
            None => (everywhere(), Selector::default(), None),
        };
        Some(Self { namespaces, pods, within, port: None })
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
        let has = |port: &NamedPort| {
            pod.named_ports(&port.name, port.protocol).any(|number| number == port.number)
        };
        self.pods.matches(&pod.labels) && self.port.as_ref().is_none_or(has)
    }

    /// Whether one of that pod's addresses is meant.
    pub(crate) fn covers_address(&self, address: IpAddr) -> bool {
        self.within.as_ref().is_none_or(|(net, except)| holds(net, except, address))
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
                within: None,
                port: None,
            }),
            Peer::Block(net, except) => Self::Block(*net, except.clone()),
            Peer::Nodes(selector) => Self::Nodes(selector.clone()),
            // Replaced by addresses before; without them it matches nothing. Nor do names of no pod.
            Peer::ApiServer | Peer::Name(_) => {
                let any = IpNet::from(IpAddr::from([0; 4]));
                Self::Block(any, vec![any])
            }
        }
    }

    /// The parts that must all hold; the set itself if it is not made of parts.
    fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            single => std::slice::from_ref(single),
        }
    }

    /// Whether pods can be in it.
    pub(crate) fn is_of_pods(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::Pods(_)))
    }

    /// Whether nodes can be in it.
    pub(crate) fn is_of_nodes(&self) -> bool {
        self.parts().iter().any(Self::is_nodes)
    }

    fn is_nodes(&self) -> bool {
        matches!(self, Self::Nodes(_) | Self::NodesAtAnyAddress(_) | Self::FaultyNodes)
    }

    /// The names in it, if addresses of names can be.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamePeers> {
        self.parts().iter().filter_map(|part| match part {
            Self::Name(names) => Some(names),
            _ => None,
        })
    }

    /// Whether the set contains an address whose names `has` matches.
    pub(crate) fn holds_name(&self, address: IpAddr, has: impl Fn(&NamePeers) -> bool) -> bool {
        self.names().next().is_some()
            && self.parts().iter().all(|part| match part {
                Self::Name(names) => has(names),
                Self::Block(net, except) => holds(net, except, address),
                Self::Pods(_) | Self::All(_) => false,
                Self::Nodes(_) | Self::NodesAtAnyAddress(_) | Self::FaultyNodes => false,
            })
    }

    /// The one namespace that its pods can be in, if there is only one.
    pub(crate) fn only_namespace(&self) -> Option<&Arc<str>> {
        self.parts().iter().find_map(|part| match part {
            Self::Pods(PodPeers { namespaces: Namespaces::Own(own), .. }) => Some(own),
            _ => None,
        })
    }

    /// Whether pods of this namespace can be in it.
    pub(crate) fn covers_namespace(&self, name: &str, labels: &Labels) -> bool {
        self.parts().iter().all(|part| match part {
            Self::Pods(pods) => pods.covers_namespace(name, labels),
            _ => true,
        })
    }

    /// Whether this address of a pod, which is in a namespace that the set covers, is in it.
    pub(crate) fn holds_pod(&self, pod: &Pod, address: IpAddr) -> bool {
        self.is_of_pods()
            && self.parts().iter().all(|part| match part {
                Self::Pods(pods) => pods.covers_pod(pod) && pods.covers_address(address),
                Self::Block(net, except) => holds(net, except, address),
                Self::Nodes(_) | Self::NodesAtAnyAddress(_) | Self::FaultyNodes => false,
                Self::Name(_) | Self::All(_) => false,
            })
    }

    /// Whether this address of a node, of its object or published, is in it.
    pub(crate) fn holds_node(&self, node: &Node, address: IpAddr, is_published: bool) -> bool {
        self.is_of_nodes()
            && self.parts().iter().all(|part| match part {
                Self::Nodes(_) if is_published => false,
                Self::Nodes(selector) | Self::NodesAtAnyAddress(selector) => {
                    node.complete && selector.matches(&node.labels)
                }
                Self::FaultyNodes => !node.complete,
                Self::Block(net, except) => holds(net, except, address),
                Self::Pods(_) | Self::Name(_) | Self::All(_) => false,
            })
    }

    /// Returns the intersection; `None` if it is always empty.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut block: Option<(IpNet, Vec<IpNet>)> = None;
        for part in self.parts().iter().chain(other.parts()) {
            match (part, &block) {
                (Self::Block(net, except), None) => block = Some((*net, except.clone())),
                (Self::Block(net, except), Some((known, known_except))) => {
                    block = Some(both(*net, except, *known, known_except)?);
                }
                (part, _) => parts.push(part.clone()),
            }
        }
        if let Some((net, except)) = block {
            if except.iter().any(|except| except.contains(&net)) {
                return None;
            }
            parts.push(Self::Block(net, except));
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
}

/// The smaller of two networks that lie in each other, less the exceptions of both.
fn both(a: IpNet, a_except: &[IpNet], b: IpNet, b_except: &[IpNet]) -> Option<(IpNet, Vec<IpNet>)> {
    let net = if a.contains(&b) { b } else { Some(a).filter(|a| b.contains(a))? };
    let mut except: Vec<IpNet> = a_except
        .iter()
        .chain(b_except)
        .filter(|except| net.contains(*except) || except.contains(&net))
        .copied()
        .collect();
    except.sort();
    except.dedup();
    Some((net, except))
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
    fn pods_and_nodes_never_meet_and_equal_sets_are_one() {
        let pods = PeerSet::Pods(PodPeers::of(None).unwrap());
        let nodes = PeerSet::Nodes(Selector::default());
        assert_eq!(pods.and(&nodes), None);
        assert_eq!(pods.and(&pods), Some(pods.clone()));
        let within = pods.and(&block("10.0.0.0/8", &[])).unwrap();
        assert_eq!(within.and(&block("11.0.0.0/8", &[])), None);
        assert!(within.is_of_pods() && !within.is_of_nodes());
    }
}
