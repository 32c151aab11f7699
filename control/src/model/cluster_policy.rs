//! Cluster network policies and egress firewalls.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{Direction, Kind, Labels, Node, PolicyRule, Report, Selector, Staging};

/// A policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy, or one of the v1alpha1 kinds before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNetworkPolicy {
    /// ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
    #[serde(default = "cluster_network_policy")]
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// Before or after the NetworkPolicies.
    pub tier: Tier,
    /// 0 to 1000, lower first; equal ones in the order of their names, then of their kinds.
    /// [`ClusterNetworkPolicy::LAST`] where the kind has none.
    pub priority: u16,
    /// Namespace selector of its subject.
    pub namespaces: Selector,
    /// Pod selector of its subject.
    pub pods: Selector,
    /// Rules for ingress, the first that matches counting.
    pub ingress: Vec<ClusterRule>,
    /// Rules for egress, likewise.
    pub egress: Vec<ClusterRule>,
    /// Whether it is staged.
    #[serde(default)]
    pub staging: Staging,
    /// Its status.
    #[serde(skip)]
    pub report: Report,
}

/// A podgate.io/v1alpha1 ClusterEgressFirewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterEgressFirewall {
    /// Its name.
    pub name: Arc<str>,
    /// Namespace selector of its subject.
    pub namespaces: Selector,
    /// Pod selector of its subject.
    pub pods: Selector,
    /// Selector of the nodes whose pods are its subject.
    #[serde(default)]
    pub nodes: Selector,
    /// Its rules, the first that matches counting: [`RuleAction::Deny`] is final, and
    /// [`RuleAction::Pass`] leaves the connection to every other policy.
    pub egress: Vec<ClusterRule>,
    /// Whether it is staged.
    #[serde(default)]
    pub staging: Staging,
    /// Its status.
    #[serde(skip)]
    pub report: Report,
}

/// A podgate.io/v1alpha1 ClusterHostFirewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterHostFirewall {
    /// Its name.
    pub name: Arc<str>,
    /// The nodes it is about.
    pub nodes: Selector,
    /// Whether it leaves the failsafe ports open.
    pub failsafe: bool,
    /// Rules for what comes to the node itself, the first that matches counting:
    /// [`RuleAction::Accept`] or [`RuleAction::Deny`].
    pub ingress: Vec<ClusterRule>,
    /// Rules for what its own processes open, likewise.
    pub egress: Vec<ClusterRule>,
    /// Whether it is staged.
    #[serde(default)]
    pub staging: Staging,
    /// Its status.
    #[serde(skip)]
    pub report: Report,
}

/// The place of a cluster policy in the order of evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// Before the NetworkPolicies.
    Admin,
    /// After them, for pods that none of them isolates.
    Baseline,
}

/// A rule of a cluster policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRule {
    /// Its action.
    pub verdict: RuleAction,
    /// The pods that it selects.
    pub rule: PolicyRule,
}

/// The action of a cluster policy's rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RuleAction {
    /// Permit.
    Accept,
    /// Deny.
    Deny,
    /// Skips the rest of this tier; the next one decides.
    Pass,
}

impl ClusterEgressFirewall {
    /// Returns whether its subject selects pods with these labels, in such a namespace, on this node.
    pub fn selects(&self, namespace: &Labels, pod: &Labels, node: Option<&Node>) -> bool {
        self.namespaces.matches(namespace) && self.pods.matches(pod) && self.selects_node(node)
    }

    /// Returns whether its subject has pods of this node. One that is not known, or has faults, may have the
    /// labels that it lacks: a firewall too many opens nothing.
    pub fn selects_node(&self, node: Option<&Node>) -> bool {
        node.is_none_or(|node| !node.complete || self.nodes.matches(&node.labels))
    }
}

impl ClusterHostFirewall {
    /// Returns whether it is about a node: one with faults may have the labels that it lacks.
    pub fn selects(&self, node: &Node) -> bool {
        !node.complete || self.nodes.matches(&node.labels)
    }

    /// Its rules for `direction`.
    pub fn direction(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The kind of policies that were saved before there were others.
fn cluster_network_policy() -> Kind {
    Kind::ClusterNetworkPolicy
}

impl ClusterNetworkPolicy {
    /// Behind every priority.
    pub const LAST: u16 = 1001;

    /// Returns whether its subject selects pods with these labels, in such a namespace.
    pub fn selects(&self, namespace: &Labels, pod: &Labels) -> bool {
        self.namespaces.matches(namespace) && self.pods.matches(pod)
    }

    /// Its rules for `direction`.
    pub fn direction(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}
