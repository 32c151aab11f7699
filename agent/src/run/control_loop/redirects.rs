//! Services for processes of the node itself: the kernel redirects what they send to node
//! ports and external addresses to the host port.

use super::kernel_filter::VERIFY;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::run::error::StartError;
use crate::run::kernel::{HostNetwork, Programmer};
use linux_net::redirect::Redirects;
use snapshot::SWITCH_ADDRESSES;

/// Keeps the kernel's redirects in line with the services.
pub(super) struct RedirectReconciler {
    /// `None` removes the redirects: the switch ends.
    pub(super) programmer: Programmer<Option<Redirects>>,
    /// Input of the redirects set last.
    made_of: Option<(Arc<Redirects>, Vec<IpAddr>, BTreeSet<SocketAddr>)>,
}

impl RedirectReconciler {
    pub(super) fn start(mut network: Box<dyn HostNetwork>) -> Result<Self, StartError> {
        let apply = move |wanted: &Option<Redirects>| match wanted {
            None => network.release_redirects(),
            Some(wanted) => network.redirect(wanted).or_else(|error| {
                let is_nothing = wanted.node_ports.is_empty() && wanted.addresses.is_empty();
                // Without such services a failure has no effect.
                if is_nothing { Ok(()) } else { Err(error) }
            }),
        };
        let programmer = Programmer::start("redirects", VERIFY, apply);
        Ok(Self { programmer: programmer?, made_of: None })
    }

    /// Redirects the ports of `services` at the node's addresses, but never what is for the
    /// API server. A change of endpoints costs nothing here.
    pub(super) fn reconcile(
        &mut self,
        services: &Arc<Redirects>,
        node: Vec<IpAddr>,
        api_server: BTreeSet<SocketAddr>,
    ) {
        if let Some((known, at, bypass)) = &self.made_of
            && Arc::ptr_eq(known, services)
            && (at, bypass) == (&node, &api_server)
        {
            return;
        }
        let mut wanted = Redirects::clone(services);
        wanted.node = node.iter().copied().collect();
        wanted.bypass.clone_from(&api_server);
        wanted.switch.extend(SWITCH_ADDRESSES);
        self.programmer.set(Some(wanted));
        self.made_of = Some((Arc::clone(services), node, api_server));
    }

    /// Removes the redirects; open connections continue.
    pub(super) fn release(self) {
        self.programmer.set(None);
    }
}
