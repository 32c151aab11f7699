//! Builds the view of a commit: pods and nodes; unchanged parts are shared with the view
//! before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain_names::DomainPattern;

use crate::control::{Acl, Control, Scope};
use crate::model::{DeniedReply, Node};
use crate::{ClusterNode, PodAcl, PodKey, PodView};

/// The label with a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

impl Control {
    /// Returns the view's pods with these recomputed; the same map if none changed.
    pub(crate) fn pods(&self, keys: BTreeSet<PodKey>) -> Arc<BTreeMap<PodKey, Arc<PodView>>> {
        let mut pods = Arc::clone(&self.view.pods);
        for key in keys {
            let known = pods.get(&key);
            match self.pod_view(&key) {
                None if known.is_none() => {}
                None => drop(Arc::make_mut(&mut pods).remove(&key)),
                Some(fresh) => {
                    if known.is_none_or(|known| !is_same(known, &fresh)) {
                        Arc::make_mut(&mut pods).insert(key, Arc::new(fresh));
                    }
                }
            }
        }
        pods
    }

    fn pod_view(&self, key: &PodKey) -> Option<PodView> {
        let local = self.local.get(key)?;
        let [ingress, egress] = &local.acls;
        let acl = |acl: &Option<Acl>| match acl {
            None => Some(PodAcl::Open),
            Some(acl) => self.tables.table(&acl.rules).cloned().map(PodAcl::Table),
        };
        let pod = self.cache.pod(key)?;
        let node = match (&self.scope, &pod.node) {
            (Scope::Node(name), _) | (Scope::All, Some(name)) => Arc::clone(name),
            (Scope::All, None) => "".into(),
        };
        let addresses = self.cache.addresses(key).to_vec();
        let staged = match &local.staged {
            Some([ingress, egress]) => Some([acl(ingress)?, acl(egress)?]),
            None => None,
        };
        let staged_egress = local.staged.as_ref().and_then(|[_, egress]| egress.as_ref());
        let names = egress.iter().chain(staged_egress);
        let names = names.flat_map(|acl| self.membership().patterns(self.tables.sets(&acl.rules)));
        let names: BTreeSet<DomainPattern> = names.cloned().collect();
        Some(PodView {
            node,
            addresses,
            to_pod: acl(ingress)?,
            from_pod: acl(egress)?,
            names: names.into_iter().collect(),
            host_ports: Arc::clone(&pod.ports.host),
            denied_reply: self.denied_reply(key),
            staged,
        })
    }

    /// The reply where policies of this pod deny: its namespace's, or else the node's.
    fn denied_reply(&self, pod: &PodKey) -> DeniedReply {
        let namespace = self.cache.namespaces().get(&pod.namespace);
        namespace.and_then(|it| it.denied_reply).unwrap_or(self.denied_reply)
    }

    pub(crate) fn nodes(&self) -> Arc<BTreeMap<Arc<str>, Arc<ClusterNode>>> {
        let nodes: BTreeMap<_, _> = self.cache.nodes().values().map(|it| self.node(it)).collect();
        if nodes == *self.view.nodes { Arc::clone(&self.view.nodes) } else { Arc::new(nodes) }
    }

    fn node(&self, node: &Node) -> (Arc<str>, Arc<ClusterNode>) {
        let fresh = ClusterNode {
            addresses: node.addresses.clone(),
            pod_cidrs: node.pod_cidrs.clone(),
            zone: node.labels.value(ZONE).map(Arc::from),
        };
        let shared = match self.view.nodes.get(&node.name) {
            Some(known) if **known == fresh => Arc::clone(known),
            _ => Arc::new(fresh),
        };
        (Arc::clone(&node.name), shared)
    }
}

fn is_same(a: &PodView, b: &PodView) -> bool {
    a.node == b.node
        && a.addresses == b.addresses
        && a.to_pod.is_same(&b.to_pod)
        && a.from_pod.is_same(&b.from_pod)
        && a.names == b.names
        && a.host_ports == b.host_ports
        && a.denied_reply == b.denied_reply
        && match (&a.staged, &b.staged) {
            (Some(a), Some(b)) => a.iter().zip(b).all(|(a, b)| a.is_same(b)),
            (a, b) => a.is_none() && b.is_none(),
        }
}
