//! Drops what the kernel must not route: tunnel packets outside of tunnels, forged sources.

use std::sync::Arc;
use std::time::Duration;

use control::View;
use dataplane::Underlay;

use super::uplink::Nodes;
use crate::run::error::StartError;
use crate::run::kernel::{HostNetwork, Programmer};
use linux_net::filter::Rules;

/// Interval of checks for foreign changes of the switch's nftables tables.
pub(super) const VERIFY: Duration = Duration::from_secs(1);

/// Keeps the kernel's filter in line with the cluster's pod networks.
pub(super) struct KernelFilterReconciler {
    pub(super) programmer: Programmer<Rules>,
    /// The nodes that the last rules follow from, and whether there was an uplink.
    made_for: Option<(Arc<Nodes>, bool)>,
}

impl KernelFilterReconciler {
    pub(super) fn start(mut network: Box<dyn HostNetwork>) -> Result<Self, StartError> {
        let apply = move |rules: &Rules| network.filter(rules);
        let programmer = Programmer::start("filter", VERIFY, apply);
        Ok(Self { programmer: programmer?, made_for: None })
    }

    /// Filters what the kernel of node `node` routes.
    pub(super) fn reconcile(
        &mut self,
        view: &View,
        node: &str,
        underlay: &Underlay,
        has_uplink: bool,
    ) {
        let is_same = |(nodes, had_uplink): &(Arc<Nodes>, bool)| {
            Arc::ptr_eq(nodes, &view.nodes) && *had_uplink == has_uplink
        };
        if self.made_for.as_ref().is_some_and(is_same) {
            return;
        }
        // Without an uplink the kernel may route to other nodes' pods.
        let nodes = view.nodes.iter().filter(|(name, _)| has_uplink || &***name == node);
        let tunnel_port = match underlay {
            Underlay::Overlay(overlay) if has_uplink => Some(overlay.port),
            _ => None,
        };
        let pods = nodes.flat_map(|(_, node)| node.pod_cidrs.iter().copied()).collect();
        self.programmer.set(Rules { tunnel_port, pods });
        self.made_for = Some((Arc::clone(&view.nodes), has_uplink));
    }
}
