//! Host firewalls, and policies of pods on the host network, in the kernel's nftables, with either
//! enforcer.

use std::sync::Arc;

use control::View;
use nftables::Failsafe;

use super::HOST_FIREWALL;
use super::kernel_filter::VERIFY;
use crate::run::error::StartError;
use crate::run::kernel::{HostNetwork, Programmer};

/// Keeps the kernel's rules about the node itself in line with the objects.
pub(super) struct HostFirewallReconciler {
    pub(super) programmer: Programmer<Desired>,
    failsafe: Failsafe,
}

#[derive(Clone)]
pub(super) struct Desired {
    view: Arc<View>,
    failsafe: Failsafe,
}

impl PartialEq for Desired {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.view, &other.view);
        // The addresses of peers count only where there are rules.
        Arc::ptr_eq(&a.host_firewalls, &b.host_firewalls)
            && Arc::ptr_eq(&a.host_pods, &b.host_pods)
            && (!a.has_host_rules() || Arc::ptr_eq(&a.peer_sets, &b.peer_sets))
            && self.failsafe == other.failsafe
    }
}

impl HostFirewallReconciler {
    pub(super) fn start(
        mut network: Box<dyn HostNetwork>,
        failsafe: Failsafe,
    ) -> Result<Self, StartError> {
        let apply =
            move |desired: &Desired| network.host_firewall(&desired.view, &desired.failsafe);
        let programmer = Programmer::start(HOST_FIREWALL, VERIFY, apply);
        Ok(Self { programmer: programmer?, failsafe })
    }

    pub(super) fn reconcile(&self, view: &Arc<View>) {
        self.programmer.set(Desired { view: Arc::clone(view), failsafe: self.failsafe.clone() });
    }
}
