//! Network policies.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use domain_names::DomainPattern;
use ipnet::IpNet;

use acl::{Direction, Origin, PortRange};

use super::{Key, Protocol, Report, Selector, Staging};

/// A networking.k8s.io/v1 NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub key: Key,
    /// `spec.podSelector`: the pods it isolates, in its own namespace.
    pub selector: Selector,
    /// Its ingress rules.
    pub ingress: DirectionRules,
    /// Its egress rules.
    pub egress: DirectionRules,
    /// Whether it is staged.
    #[serde(default)]
    pub staging: Staging,
    /// Its generation.
    #[serde(skip)]
    pub report: Report,
}

impl NetworkPolicy {
    /// Returns its rules for `direction`.
    pub fn direction(&self, direction: Direction) -> &DirectionRules {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The rules of one direction: `None` leaves it open; otherwise the selected pods are isolated and
/// only connections that a rule permits may open.
pub type DirectionRules = Option<Vec<PolicyRule>>;

/// One element of `spec.ingress` or `spec.egress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Its position in the policy, from 0.
    pub index: usize,
    /// Its policy and position, for verdicts.
    pub origin: Origin,
    /// `from` or `to`; `None` (missing or empty list) means any peer.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; `None` (missing or empty list) means every protocol and port.
    pub ports: Option<Vec<Ports>>,
}

/// A peer of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Peer {
    /// Pods by label.
    Pods {
        /// The namespaces they are in.
        namespaces: Namespaces,
        /// Their labels.
        pods: Selector,
    },
    /// A network less its exceptions, all of them inside it; sorted, without duplicates.
    Block(IpNet, Vec<IpNet>),
    /// The addresses of nodes by their labels (cluster policies only).
    Nodes(Selector),
    /// The API server: its service's addresses and its endpoints (egress firewalls only).
    ApiServer,
    /// The addresses that DNS gives the pod for these names (rules that permit only).
    Name(DomainPattern),
}

/// The namespaces that a pod peer looks in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Namespaces {
    /// Exactly this one: the policy's own.
    Own(Arc<str>),
    /// All whose labels match.
    Selected(Selector),
}

/// One element of `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
    /// `port` and `endPort`.
    pub port: PortSpec,
}

/// The ports that an element of `ports` covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum PortSpec {
    /// No `port`: all ports of the protocol.
    All,
    /// A number, or the numbers up to `endPort`.
    Range(#[serde(with = "range")] PortRange),
    /// The name of a container port of the pod that is connected to.
    Name(Arc<str>),
}

/// A port range as the pair of its ends.
mod range {
    use acl::PortRange;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(range: &PortRange, to: S) -> Result<S::Ok, S::Error> {
        (range.first, range.last).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PortRange, D::Error> {
        let (first, last) = Deserialize::deserialize(from)?;
        match first <= last {
            true => Ok(PortRange { first, last }),
            false => Err(de::Error::custom("a port range that ends before it begins")),
        }
    }
}
