//! Processes of the cluster node itself get to services through the host port.

use std::net::IpAddr;
use std::sync::Arc;

use super::ControlLoop;
use linux_net::redirect::Redirects;

/// What the kernel was told to lead to the switch.
#[derive(Default)]
pub(super) struct Redirected {
    /// What that follows from; `None` if nothing was tried yet.
    made_of: Option<(Arc<Redirects>, Vec<IpAddr>)>,
}

impl ControlLoop {
    /// Tells the kernel, if it may be different: when a service gets another port or address, and
    /// not when its endpoints change.
    pub(super) fn redirect_own_processes(&mut self) {
        if self.host.is_none() {
            return;
        }
        let made_of = (Arc::clone(self.services.redirects()), self.own_addresses());
        let is_same = |known: &(Arc<Redirects>, Vec<IpAddr>)| {
            Arc::ptr_eq(&known.0, &made_of.0) && known.1 == made_of.1
        };
        if self.redirected.made_of.as_ref().is_some_and(is_same) {
            return;
        }
        let mut wanted = Redirects::clone(&made_of.0);
        let is_nothing = wanted == Redirects::default();
        wanted.node = made_of.1.iter().copied().collect();
        match self.interfaces.redirect(&wanted) {
            Ok(()) => {}
            // Where there are no such services, nobody misses them.
            Err(error) if is_nothing => log::debug!("services for own processes: {error}"),
            Err(error) => log::error!("services for own processes: {error}"),
        }
        // What failed is tried again when it has changed, not at every snapshot.
        self.redirected.made_of = Some(made_of);
    }
}
