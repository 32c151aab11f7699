//! The node itself: host firewalls that select it, and policies of its pods on the host
//! network, as rule lists.
//!
//! Pods on the host network share the node's addresses. Programs at their cgroups tell apart what their sockets open and
//! accept. Without them, and for SCTP, ports do, and only for connections that come in: a pod's ingress
//! holds at the ports that its containers declare. Everything else that their policies say cannot be enforced, and is
//! reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use acl::{End, PeerSetId, Rule};

use super::{Acl, Control, Scope};
use crate::configurator::{self, Policies};
use crate::fault::{Fault, FieldFault};
use crate::membership::Membership;
use crate::model::{ClusterHostFirewall, Direction, Pod, Protocol};
use crate::render;
use crate::view::{HostFirewall, HostPod, HostSockets, PodAcl};
use crate::{Failsafe, Kind, ObjectRef, PodKey};

/// The lists in force, and the peer sets that they keep.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    firewalls: Arc<[HostFirewall]>,
    sets: Vec<PeerSetId>,
    network: HostNetwork,
}

/// The pods on the host network of this node.
#[derive(Debug, Default)]
struct HostNetwork {
    /// Whether policies hold for them.
    is_enforced: bool,
    /// Whether programs at their cgroups hold them to their rules.
    has_sockets: bool,
    /// Ports that they accept connections at, whatever their rules say.
    failsafe: Failsafe,
    keys: BTreeSet<PodKey>,
    is_stale: bool,
    pods: Arc<[HostPod]>,
    /// Their egress and ingress for these programs, where a policy is about one of them.
    sockets: BTreeMap<PodKey, [Option<Acl>; 2]>,
    sets: Vec<PeerSetId>,
    faults: Vec<Fault>,
}

impl Control {
    /// Enforces policies for pods on the host network of this node from now on, at the ports
    /// that they declare.
    pub fn enforce_host_network(&mut self) {
        self.host.network.is_enforced = true;
        self.host.network.is_stale = true;
    }

    /// Enforces them at the pods' sockets, which needs programs at their cgroups: egress too, and ingress at every port of TCP
    /// and UDP but those of `failsafe`. Declared ports count for SCTP alone then.
    pub fn enforce_host_sockets(&mut self, failsafe: Failsafe) {
        self.host.network.has_sockets = true;
        self.host.network.failsafe = failsafe;
        self.host.network.is_stale = true;
    }

    pub(crate) fn host_failsafe(&self) -> &Failsafe {
        &self.host.network.failsafe
    }

    /// The parts of policies that cannot be enforced for pods on the host network of this node,
    /// as faults of the pods. Empty without [`enforce_host_network`](Self::enforce_host_network).
    pub fn host_network_faults(&self) -> &[Fault] {
        &self.host.network.faults
    }

    /// A pod came, went or changed.
    pub(super) fn note_host_pod(&mut self, key: &PodKey, pod: Option<&Arc<Pod>>) {
        let Scope::Node(name) = &self.scope else { return };
        let is_here =
            |pod: &&Arc<Pod>| pod.host_network && !pod.finished && pod.node.as_ref() == Some(name);
        let network = &mut self.host.network;
        network.is_stale |= match pod.filter(is_here) {
            Some(_) => {
                network.keys.insert(key.clone());
                true
            }
            None => network.keys.remove(key),
        };
    }

    /// A policy or a namespace changed.
    pub(super) fn note_host_policies(&mut self) {
        self.host.network.is_stale = true;
    }

    /// Configures the host firewalls anew; the same list if nothing differs.
    pub(super) fn configure_host(&mut self) -> Arc<[HostFirewall]> {
        let selected = self.selected_host_firewalls();
        if !selected.is_empty() {
            self.need_content();
        }
        let api_server = self.cache.api_server().clone();
        let mut fresh = Vec::new();
        for firewall in &selected {
            let [ingress, egress] = Direction::BOTH.map(|direction| {
                let rules = firewall.direction(direction);
                let basic = configurator::host_rules(rules, direction, &api_server);
                let (cache, membership) = (&self.cache, &mut self.membership);
                render::rules(basic, direction, cache, membership).into()
            });
            let (name, failsafe) = (Arc::clone(&firewall.name), firewall.failsafe);
            fresh.push(HostFirewall { name, failsafe, ingress, egress });
        }
        let lists = fresh.iter().flat_map(|it| it.ingress.iter().chain(it.egress.iter()));
        keep(&mut self.membership, &mut self.host.sets, sets(lists).collect());
        if *self.host.firewalls != *fresh {
            self.host.firewalls = fresh.into();
            if let Scope::Node(name) = self.scope.clone() {
                self.configure_host_services(vec![(selected, vec![name])]);
            }
        }
        Arc::clone(&self.host.firewalls)
    }

    /// Configures the pods on the host network anew if they or policies changed; the same list if
    /// nothing differs.
    pub(super) fn configure_host_pods(&mut self) -> Arc<[HostPod]> {
        let network = &mut self.host.network;
        if !std::mem::take(&mut network.is_stale) || !network.is_enforced {
            return Arc::clone(&self.host.network.pods);
        }
        let has_sockets = network.has_sockets;
        let known = self.host.network.keys.iter().filter_map(|key| self.cache.pod(key));
        let known: Vec<Arc<Pod>> = known.cloned().collect();
        let (mut fresh, mut faults, mut sockets) = (Vec::new(), Vec::new(), BTreeMap::new());
        for pod in known {
            let policies = self.policies_of(&pod);
            let mut ports = Arc::clone(&pod.ports.declared);
            if has_sockets {
                let acls = [Direction::Egress, Direction::Ingress]
                    .map(|direction| self.host_acl(&pod, &policies, direction));
                if acls.iter().any(Option::is_some) {
                    sockets.insert(pod.key.clone(), acls);
                }
                ports = ports.iter().copied().filter(|it| it.0 == Protocol::Sctp).collect();
            } else {
                faults.extend(unenforced(&pod, &policies));
            }
            if ports.is_empty() {
                continue;
            }
            let Some(rules) = self.host_ingress(&pod, &policies) else { continue };
            self.need_content();
            let (cache, membership) = (&self.cache, &mut self.membership);
            let ingress = render::rules(rules, Direction::Ingress, cache, membership).into();
            fresh.push(HostPod { key: pod.key.clone(), ports, ingress });
        }
        let sets = sets(fresh.iter().flat_map(|it| it.ingress.iter())).collect();
        let before = std::mem::replace(&mut self.host.network.sockets, sockets);
        before.into_values().flatten().flatten().for_each(|acl| self.release(acl));
        let network = &mut self.host.network;
        keep(&mut self.membership, &mut network.sets, sets);
        network.faults = faults;
        if *network.pods != *fresh {
            network.pods = fresh.into();
        }
        Arc::clone(&network.pods)
    }

    /// The ACL of a pod on the host network, as for other pods.
    fn host_acl(&mut self, pod: &Pod, policies: &Policies, direction: Direction) -> Option<Acl> {
        if self.is_readable(pod) {
            return self.acl(pod, policies, direction);
        }
        let closed = configurator::closed(&pod.key);
        let (cache, membership) = (&self.cache, &mut self.membership);
        let rules = render::rules(closed, direction, cache, membership);
        Some(self.acquire(rules, Vec::new()))
    }

    /// Whether the rules for sockets of a pod on the host network depend on one of these port names.
    pub(super) fn has_host_sockets_of(&self, is_of: impl Fn(&Acl) -> bool) -> bool {
        self.host.network.sockets.values().flatten().flatten().any(is_of)
    }

    /// The compiled rules for sockets of the pods on the host network; the same map if nothing differs.
    pub(super) fn host_sockets(&self) -> Arc<BTreeMap<PodKey, HostSockets>> {
        let compiled = |acl: &Option<Acl>| match acl {
            Some(acl) => self.tables.table(&acl.rules).cloned().map_or(PodAcl::Open, PodAcl::Table),
            None => PodAcl::Open,
        };
        let of_pod = |(key, acls): (&PodKey, &[Option<Acl>; 2])| {
            let [opens, accepts] = acls.each_ref().map(compiled);
            (key.clone(), HostSockets { opens, accepts })
        };
        let now: BTreeMap<_, _> = self.host.network.sockets.iter().map(of_pod).collect();
        let last = &self.view.host_sockets;
        let is_same = now.len() == last.len()
            && now
                .iter()
                .zip(last.iter())
                .all(|((key, acls), (other, known))| key == other && acls.is_same(known));
        if is_same { Arc::clone(last) } else { Arc::new(now) }
    }

    /// The ingress rules of a pod on the host network; `None` if no policy selects it. One that
    /// could not be read, or whose namespace could not be, is closed.
    fn host_ingress(&self, pod: &Pod, policies: &Policies) -> Option<Vec<configurator::BasicRule>> {
        match self.is_readable(pod) {
            true => configurator::ingress_rules(pod, policies),
            false => Some(configurator::closed(&pod.key)),
        }
    }

    /// The content of peer sets is published from now on.
    fn need_content(&mut self) {
        if self.membership.content().is_empty() {
            self.membership.list_content();
        }
    }

    /// The firewalls about this node.
    fn selected_host_firewalls(&self) -> Vec<Arc<ClusterHostFirewall>> {
        let Scope::Node(name) = &self.scope else { return Vec::new() };
        let node = self.cache.nodes().get(name);
        let selects = |firewall: &&Arc<ClusterHostFirewall>| match node {
            None => firewall.nodes.is_everything(),
            Some(node) => firewall.selects(node),
        };
        let firewalls = self.cache.host_firewalls().values();
        firewalls.filter(|it| self.is_enforced(&it.staging)).filter(selects).cloned().collect()
    }
}

/// The parts of its policies that cannot be enforced for a pod on the host network.
fn unenforced(pod: &Pod, policies: &Policies) -> Vec<Fault> {
    let object = ObjectRef {
        kind: Kind::Pod,
        namespace: Some(Arc::clone(&pod.key.namespace)),
        name: Arc::clone(&pod.key.name),
    };
    let mut faults = Vec::new();
    let mut add = |direction: Direction, why: &str| {
        for policy in policies.with_rules(direction) {
            let problem = format!("{} of {policy} is not enforced: {why}", direction.field());
            faults.push(FieldFault::new("spec.hostNetwork", problem).of(object.clone()));
        }
    };
    if pod.ports.declared.is_empty() {
        add(Direction::Ingress, "no container declares a port");
    }
    add(Direction::Egress, "ports do not tell what the pod opens from what its node does");
    faults
}

/// Keeps `sets` instead of those kept before.
fn keep(membership: &mut Membership, kept: &mut Vec<PeerSetId>, sets: Vec<PeerSetId>) {
    sets.iter().for_each(|set| membership.retain(*set));
    let before = std::mem::replace(kept, sets);
    before.into_iter().for_each(|set| membership.release(set));
}

fn sets<'a>(rules: impl Iterator<Item = &'a Rule>) -> impl Iterator<Item = PeerSetId> {
    let ends = rules.flat_map(|rule: &Rule| [rule.source, rule.destination]);
    ends.filter_map(|end| match end {
        End::Set(set) => Some(set),
        End::Any => None,
    })
}
