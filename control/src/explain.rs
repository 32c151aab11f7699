//! Asking why: which policies select either end, which rule decides, who may reach whom.
//!
//! Every verdict comes out of the compiled tables of the view in force; the objects are
//! looked at only to name what selects a pod.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Action, Address, End, Key, PortRange, Rule};
use serde::Serialize;

use crate::configurator::ClusterWide;
use crate::model::{Direction, Namespaces, Selector};
use crate::peers::{PeerSet, PodPeers};
use crate::{Control, PodGate, PodKey, View};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A pod.
    Pod(PodKey),
    /// An address, be it a pod's or not.
    Address(IpAddr),
}

/// Why a connection may be opened or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Whether it may.
    pub permits: bool,
    /// What the opening pod's egress says; `None` if the source is no pod in scope.
    pub egress: Option<Judged>,
    /// What the receiving pod's ingress says; `None` if the destination is no pod in scope.
    pub ingress: Option<Judged>,
}

/// What one gate says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The pod whose gate it is.
    pub pod: String,
    /// Every policy that selects the pod and has a say in this direction, in their order.
    pub selecting: Vec<String>,
    /// Whether the gate lets the connection through.
    pub permits: bool,
    /// The rule that decided, or `default-allow`.
    pub by: Arc<str>,
}

/// All that a pod may be reached by, and all it may reach, rule by rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Walkthrough {
    /// The rules of its ingress in their order; empty if everything may come.
    pub ingress: Vec<Reach>,
    /// The rules of its egress in their order; empty if it may go anywhere.
    pub egress: Vec<Reach>,
}

/// One rule in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reach {
    /// Whether the rule permits.
    pub permits: bool,
    /// The other end, such as `pods app=web in namespace shop`.
    pub peer: String,
    /// Pods that are meant at the moment; empty where no pods in particular are.
    pub pods: Vec<String>,
    /// Protocol and ports, such as `TCP 80-90` or `everything`.
    pub ports: String,
    /// Where the rule comes from.
    pub by: Arc<str>,
}

impl Control {
    /// Why a connection may be opened or not. A port stands for nothing with protocols that
    /// have none; `protocol` is the IP protocol number.
    ///
    /// # Errors
    /// When an end names a pod that has no tables, or the ends share no address family.
    pub fn explain(
        &self,
        from: &Endpoint,
        to: &Endpoint,
        protocol: u8,
        port: u16,
    ) -> Result<Explanation, String> {
        let view = self.view();
        let (sources, targets) = (addresses(&view, from)?, addresses(&view, to)?);
        let pair = sources.iter().flat_map(|source| targets.iter().map(move |to| (*source, *to)));
        let (source, target) = pair
            .into_iter()
            .find(|(source, target)| source.is_ipv4() == target.is_ipv4())
            .ok_or("the two ends have no addresses of one family")?;
        let key = key(&view, source, target, protocol, port);
        let judge = |address: IpAddr, direction: Direction| {
            let mut pods = view.pods.iter();
            let (name, pod) = pods.find(|(_, pod)| pod.addresses.contains(&address))?;
            let gate = match direction {
                Direction::Ingress => &pod.to_pod,
                Direction::Egress => &pod.from_pod,
            };
            let (permits, by) = ask(gate, &key);
            let selecting = self.selecting(name, direction);
            Some(Judged { pod: name.to_string(), selecting, permits, by })
        };
        let (egress, ingress) = match source == target {
            // A pod may always talk to itself.
            true => (None, None),
            false => (judge(source, Direction::Egress), judge(target, Direction::Ingress)),
        };
        let permits = egress.iter().chain(&ingress).all(|judged| judged.permits);
        Ok(Explanation { permits, egress, ingress })
    }

    /// All that may reach a pod and all that it may reach; `None` if it has no tables.
    pub fn walkthrough(&self, pod: &PodKey) -> Option<Walkthrough> {
        let view = self.view();
        let pod = view.pods.get(pod)?;
        let reaches = |gate: &PodGate| match gate {
            PodGate::Open => Vec::new(),
            PodGate::Table(table) => {
                let rules = table.rules().iter().filter(|rule| !self.is_idle(rule));
                rules.map(|rule| self.reach(rule)).collect()
            }
        };
        Some(Walkthrough { ingress: reaches(&pod.to_pod), egress: reaches(&pod.from_pod) })
    }

    fn selecting(&self, pod: &PodKey, direction: Direction) -> Vec<String> {
        let Some(pod) = self.pod(pod) else { return Vec::new() };
        let policies = self.policies_of(pod);
        let cluster = |list: &[ClusterWide]| -> Vec<String> {
            let list = list.iter().filter(|policy| !policy.direction(direction).is_empty());
            list.map(ToString::to_string).collect()
        };
        let namespaced = policies.namespaced.iter();
        let namespaced = namespaced.filter(|it| it.direction(direction).is_some());
        let mut names = cluster(&policies.firewalls);
        names.extend(cluster(&policies.admin));
        names.extend(namespaced.map(|it| format!("NetworkPolicy {}", it.key)));
        names.extend(cluster(&policies.baseline));
        names
    }

    /// Whether a rule is about cluster nodes with faults while there are none.
    fn is_idle(&self, rule: &Rule) -> bool {
        let End::Set(id) = peer(rule) else { return false };
        self.membership().meaning(id) == Some(&PeerSet::FaultyNodes)
            && self.cache.nodes().values().all(|node| node.complete)
    }

    fn reach(&self, rule: &Rule) -> Reach {
        let end = peer(rule);
        let (peer, pods) = match end {
            End::Any => ("anybody".to_owned(), Vec::new()),
            End::Net(net) => (net.to_string(), Vec::new()),
            End::Set(id) => {
                let meaning = self.membership().meaning(id);
                let pods = match meaning {
                    Some(set) if set.is_of_pods() => self.membership().pods_of(id),
                    _ => Vec::new(),
                };
                let words = meaning.map_or_else(|| "nobody".to_owned(), |set| set.to_string());
                (words, pods.iter().map(ToString::to_string).collect())
            }
        };
        Reach {
            permits: rule.action == Action::Permit,
            peer,
            pods,
            ports: ports(rule),
            by: Arc::clone(&rule.origin),
        }
    }
}

fn peer(rule: &Rule) -> End {
    if rule.source == End::Any { rule.destination } else { rule.source }
}

fn addresses(view: &View, end: &Endpoint) -> Result<Vec<IpAddr>, String> {
    match end {
        Endpoint::Address(address) => Ok(vec![*address]),
        Endpoint::Pod(key) => match view.pods.get(key) {
            Some(pod) => Ok(pod.addresses.clone()),
            None => Err(format!(
                "pod {key} has no tables: it is not known, not in scope, has no address, has \
                 finished or is on the host network"
            )),
        },
    }
}

fn key(view: &View, source: IpAddr, destination: IpAddr, protocol: u8, port: u16) -> Key {
    let (source, destination) = (Address::from(source), Address::from(destination));
    // Only echo requests open anything: type 8 or 128, code 0.
    let (source_port, destination_port) = match protocol {
        1 => (8, 0),
        58 => (128, 0),
        _ => (0, port),
    };
    Key {
        source,
        destination,
        source_identity: view.addresses.lookup(source),
        destination_identity: view.addresses.lookup(destination),
        protocol,
        source_port,
        destination_port,
        ..Key::default()
    }
}

fn ask(gate: &PodGate, key: &Key) -> (bool, Arc<str>) {
    let PodGate::Table(table) = gate else { return (true, "default-allow".into()) };
    match table.lookup(key).and_then(|index| table.rules().get(index)) {
        Some(rule) => (rule.action == Action::Permit, Arc::clone(&rule.origin)),
        None => (false, "default-deny".into()),
    }
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

impl fmt::Display for PeerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(pods) => pods.fmt(f),
            Self::Nodes(selector) if selector.is_everything() => f.write_str("all cluster nodes"),
            Self::Nodes(selector) => write!(f, "cluster nodes {selector}"),
            Self::FaultyNodes => f.write_str("cluster nodes whose objects have faults"),
            Self::Block(net, except) => block(f, net, except),
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
        if let Some((net, except)) = &self.within {
            f.write_str(" in ")?;
            block(f, net, except)?;
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
