//! Masquerades traffic from pods to the world, in the kernel.

use super::kernel_filter::VERIFY;
use std::sync::Arc;

use control::View;

use super::uplink::Nodes;
use crate::run::error::StartError;
use crate::run::kernel::{HostNetwork, Programmer};
use linux_net::masquerade::Rules;
use linux_net::redirect::Redirects;

/// Keeps the kernel's masquerading in line with the cluster's pod networks.
pub(super) struct MasqueradeReconciler {
    pub(super) programmer: Programmer<Rules>,
    /// The nodes and services that the last rules follow from.
    made_for: Option<(Arc<Nodes>, Arc<Redirects>)>,
}

impl MasqueradeReconciler {
    pub(super) fn start(mut network: Box<dyn HostNetwork>) -> Result<Self, StartError> {
        let apply = move |rules: &Rules| network.masquerade(rules);
        let programmer = Programmer::start("masquerade", VERIFY, apply);
        Ok(Self { programmer: programmer?, made_for: None })
    }

    /// Masquerades what pods of node `node` send outside of the cluster, but under no port of a
    /// service.
    pub(super) fn reconcile(&mut self, view: &View, node: &str, services: &Arc<Redirects>) {
        let is_same = |(nodes, known): &(Arc<Nodes>, Arc<Redirects>)| {
            Arc::ptr_eq(nodes, &view.nodes) && Arc::ptr_eq(known, services)
        };
        if self.made_for.as_ref().is_some_and(is_same) {
            return;
        }
        let own = view.nodes.get(node).map_or_else(Vec::new, |node| node.pod_cidrs.clone());
        let cluster = view.nodes.values().flat_map(|node| &node.pod_cidrs).copied();
        let taken = [false, true].map(|v6| services.ports(v6));
        self.programmer.set(Rules { pods: own, cluster: cluster.collect(), taken });
        self.made_for = Some((Arc::clone(&view.nodes), Arc::clone(services)));
    }
}
