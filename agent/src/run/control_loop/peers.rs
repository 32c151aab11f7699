//! The nodes' addresses, for the Hubble Peer API.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::ClusterNode;

use super::reconciler::{Effects, Reconciler, Signal};

/// Hands the addresses out after a change.
#[derive(Default)]
pub(super) struct Peers {
    /// The nodes whose addresses were handed out last.
    of: Arc<BTreeMap<Arc<str>, Arc<ClusterNode>>>,
}

impl Reconciler for Peers {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let nodes = Arc::clone(&effects.control.view().nodes);
        let is_due = matches!(signal, Signal::Due(_)) && !Arc::ptr_eq(&nodes, &self.of);
        if !is_due || effects.shared.config.hubble.listen.is_none() {
            return;
        }
        let address = |node: &ClusterNode| node.addresses.first().copied();
        let peers = nodes.iter().filter_map(|(name, it)| Some((Arc::clone(name), address(it)?)));
        effects.shared.broker.directory().set_peers(peers.collect());
        self.of = nodes;
    }
}
