//! Names the policies that select a pod, and lists the rules of its tables in words.
//!
//! Rules come out of the compiled tables of the view in force. Verdicts do not come from here: the
//! graph gives them.

use std::fmt;

use acl::{Action, End, Origin, PortRange, Rule};
use serde::Serialize;

use crate::model::{Direction, Namespaces, Selector};
use crate::peers::{PeerSet, PodPeers};
use crate::{Control, PodAcl, PodKey};

/// The origin of connections from a pod's own node, which no policy denies.
const OWN_NODE: &str = "own-node";

/// The rules of a pod's tables, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Walkthrough {
    /// The rules of its ingress in their order; empty if no policy selects it for ingress.
    pub ingress: Vec<Reach>,
    /// The rules of its egress in their order; empty if no policy selects it for egress.
    pub egress: Vec<Reach>,
}

/// One rule in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// Whether the rule permits.
    pub permits: bool,
    /// The other end, such as `pods app=web in namespace shop`.
    pub peer: String,
    /// Pods that the peer selects at the moment; empty where the peer is no selector of pods.
    pub pods: Vec<String>,
    /// Whether the peer is a selector of pods that selects none.
    pub selects_nothing: bool,
    /// Protocols and ports, such as `TCP 80-90, UDP 53` or `everything`.
    pub ports: String,
    /// The rule's origin.
    pub by: Origin,
}

impl Control {
    /// Lists the rules of a pod's tables; `None` if it has no tables.
    pub fn walkthrough(&self, pod: &PodKey) -> Option<Walkthrough> {
        let view = self.view();
        let pod = view.pods.get(pod)?;
        let reaches = |acl: &PodAcl| match acl {
            PodAcl::Open => Vec::new(),
            PodAcl::Table(table) => {
                let rules: Vec<&Rule> =
                    table.rules().iter().filter(|rule| !self.is_idle(rule)).collect();
                rules.chunk_by(|a, b| is_of_one(a, b)).map(|rules| self.reach(rules)).collect()
            }
        };
        let (mut ingress, egress) = (reaches(&pod.to_pod), reaches(&pod.from_pod));
        if !ingress.is_empty() {
            // The graph lets the kubelet in before it looks at a table.
            ingress.insert(
                0,
                Reach {
                    permits: true,
                    peer: format!("its own node {}", pod.node),
                    pods: Vec::new(),
                    selects_nothing: false,
                    ports: "everything".into(),
                    by: Origin::other(OWN_NODE),
                },
            );
        }
        Some(Walkthrough { ingress, egress })
    }

    /// Names every policy that selects a pod and has rules for `direction`, in their order.
    pub fn selecting(&self, pod: &PodKey, direction: Direction) -> Vec<String> {
        let Some(pod) = self.pod(pod) else { return Vec::new() };
        self.policies_of(pod).with_rules(direction)
    }

    /// Whether a rule is about nodes with faults while there are none.
    fn is_idle(&self, rule: &Rule) -> bool {
        let End::Set(id) = peer(rule) else { return false };
        self.membership().meaning(id) == Some(&PeerSet::FaultyNodes)
            && self.cache.nodes().values().all(|node| node.complete)
    }

    /// These rules, which differ in their ports, in words.
    fn reach(&self, rules: &[&Rule]) -> Reach {
        let rule = rules[0];
        let end = peer(rule);
        let (peer, pods, is_of_pods) = match end {
            End::Any => ("any peer".to_owned(), Vec::new(), false),
            End::Set(id) => {
                let meaning = self.membership().meaning(id);
                let is_of_pods = meaning.is_some_and(PeerSet::is_of_pods);
                let pods = if is_of_pods { self.membership().pods_of(id) } else { Vec::new() };
                let words = meaning.map_or_else(|| "no peer".to_owned(), |set| set.to_string());
                (words, pods.iter().map(ToString::to_string).collect(), is_of_pods)
            }
        };
        Reach {
            permits: rule.action == Action::Permit,
            peer,
            selects_nothing: is_of_pods && pods.is_empty(),
            pods,
            ports: rules.iter().map(|rule| ports(rule)).collect::<Vec<_>>().join(", "),
            by: rule.origin.clone(),
        }
    }
}

/// Whether rules are one of a policy, for different ports.
fn is_of_one(a: &Rule, b: &Rule) -> bool {
    peer(a) == peer(b) && a.action == b.action && a.origin == b.origin
}

fn peer(rule: &Rule) -> End {
    if rule.source == End::Any { rule.destination } else { rule.source }
}

fn ports(rule: &Rule) -> String {
    let protocol = match rule.protocol {
        None => return "everything".into(),
        Some(6) => "TCP".to_owned(),
        Some(17) => "UDP".to_owned(),
        Some(132) => "SCTP".to_owned(),
        Some(other) => format!("protocol {other}"),
    };
    match rule.destination_ports {
        PortRange::ANY => protocol,
        PortRange { first, last } if first == last => format!("{protocol} {first}"),
        PortRange { first, last } => format!("{protocol} {first}-{last}"),
    }
}

/// Peers of one rule that are written out; the others are counted.
const PARTS: usize = 32;

/// A part of a union.
enum Part<'a> {
    Block(&'a ipnet::IpNet, &'a [ipnet::IpNet]),
    Other(&'a PeerSet),
}

impl fmt::Display for PeerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(pods) => pods.fmt(f),
            Self::Nodes(selector) | Self::NodesAtAnyAddress(selector) => {
                match selector.is_everything() {
                    true => f.write_str("all nodes"),
                    false => write!(f, "nodes {selector}"),
                }
            }
            Self::FaultyNodes => f.write_str("nodes whose objects have faults"),
            Self::Block(net, except) => block(f, net, except),
            Self::Name(names) => write!(f, "{} (as DNS answers the pod)", names.pattern),
            Self::Any(union) => {
                let blocks = union.blocks().iter().map(|(net, except)| Part::Block(net, except));
                let others = union.others().iter().map(Part::Other);
                let count = union.blocks().len() + union.others().len();
                for (index, part) in others.chain(blocks).take(PARTS).enumerate() {
                    f.write_str(if index == 0 { "" } else { " or " })?;
                    match part {
                        Part::Block(net, except) => block(f, net, except)?,
                        Part::Other(other) => other.fmt(f)?,
                    }
                }
                match count {
                    0 => f.write_str("no peer"),
                    1..=PARTS => Ok(()),
                    more => write!(f, " or {} more", more - PARTS),
                }
            }
            Self::All(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    let and = if index == 0 { "" } else { " that are also " };
                    write!(f, "{and}{part}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for PodPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |selector: &Selector| selector.is_everything();
        match all(&self.pods) {
            true => f.write_str("all pods")?,
            false => write!(f, "pods {}", self.pods)?,
        }
        match &self.namespaces {
            Namespaces::Own(own) => write!(f, " in namespace {own}")?,
            Namespaces::Selected(selector) if all(selector) => f.write_str(" in any namespace")?,
            Namespaces::Selected(selector) => write!(f, " in namespaces {selector}")?,
        }
        if let Some(port) = &self.port {
            write!(f, " that call {} {} {:?}", port.protocol, port.number, port.name)?;
        }
        Ok(())
    }
}

fn block(f: &mut fmt::Formatter<'_>, net: &ipnet::IpNet, except: &[ipnet::IpNet]) -> fmt::Result {
    write!(f, "{net}")?;
    for (index, except) in except.iter().enumerate() {
        write!(f, "{} {except}", if index == 0 { " except" } else { "," })?;
    }
    Ok(())
}
