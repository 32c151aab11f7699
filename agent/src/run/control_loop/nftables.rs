//! Policies in the kernel's nftables, for pods of another CNI plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{PodKey, View};
use ipnet::IpNet;
use nftables::{Attachment, Enforcer, Locator, Renderer, Site};
use parking_lot::Mutex;

use super::NFTABLES;
use crate::config::Config;
use crate::run::error::StartError;
use crate::run::kernel::{KernelError, Programmer};

/// Interval of checks for interfaces that no event reported, and for foreign changes.
const VERIFY: Duration = Duration::from_secs(1);

/// Keeps the kernel's rules in line with the view and with the interfaces that are there.
pub(super) struct NftablesReconciler {
    pub(super) programmer: Programmer<Desired>,
    attachments: Arc<Mutex<Attachments>>,
    /// Whether they changed since this was last read.
    moved: Arc<AtomicBool>,
    departed: Departed,
}

type Attachments = BTreeMap<PodKey, Attachment>;

/// Addresses whose pods are gone, and whose connections conntrack may still have.
type Departed = Arc<Mutex<BTreeSet<IpAddr>>>;

/// The state to bring the kernel into.
#[derive(Clone)]
pub(super) struct Desired {
    view: Arc<View>,
    /// Whether the view is a whole cluster's. Before, the rules of an earlier process stay; without
    /// any, pods are closed as far as their networks are known.
    decides: bool,
}

impl PartialEq for Desired {
    fn eq(&self, other: &Self) -> bool {
        self.view.generation == other.view.generation && self.decides == other.decides
    }
}

/// The thread's own state.
struct Kernel {
    node: Arc<str>,
    networks: Vec<IpNet>,
    locator: Locator,
    renderer: Renderer,
    enforcer: Enforcer,
    /// The state rendered last.
    rendered: Option<(u64, Site)>,
    attachments: Arc<Mutex<Attachments>>,
    moved: Arc<AtomicBool>,
    departed: Departed,
}

impl NftablesReconciler {
    pub(super) fn start(config: &Config) -> Result<Self, StartError> {
        let (attachments, moved, departed) = (Arc::default(), Arc::default(), Departed::default());
        let locator = Locator::open().map_err(|error| StartError::Failed(error.to_string()))?;
        let mut kernel = Kernel {
            node: config.node_name.as_str().into(),
            networks: config.pod_networks.clone(),
            locator,
            renderer: Renderer::default(),
            enforcer: Enforcer::default(),
            rendered: None,
            attachments: Arc::clone(&attachments),
            moved: Arc::clone(&moved),
            departed: Arc::clone(&departed),
        };
        let apply = move |desired: &Desired| kernel.apply(desired);
        let programmer = Programmer::start(NFTABLES, VERIFY, apply);
        Ok(Self { programmer: programmer?, attachments, moved, departed })
    }

    /// Sets the desired state. `departed` are addresses whose pods are gone since the last one.
    pub(super) fn reconcile(&self, view: &Arc<View>, departed: &BTreeSet<IpAddr>, decides: bool) {
        self.departed.lock().extend(departed);
        self.programmer.set(Desired { view: Arc::clone(view), decides });
    }

    /// Returns whether pods' interfaces changed since the last call.
    pub(super) fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::AcqRel)
    }

    /// The interfaces found, by pod.
    pub(super) fn attachments(&self) -> Attachments {
        self.attachments.lock().clone()
    }
}

impl Kernel {
    fn apply(&mut self, desired: &Desired) -> Result<(), KernelError> {
        if !desired.decides {
            return self.close();
        }
        let mut site = self.site();
        self.locator.locate(&desired.view, &mut site)?;
        let now = (desired.view.generation, site);
        if self.rendered.as_ref() == Some(&now) {
            return Ok(self.enforcer.verify()?);
        }
        self.rendered = None;
        let ruleset = self.renderer.render(&desired.view, &now.1);
        let departed = std::mem::take(&mut *self.departed.lock());
        self.enforcer
            .replace(ruleset, &desired.view, &departed)
            .inspect_err(|_| self.departed.lock().extend(&departed))?;
        let attachments = now.1.attachments.clone();
        *self.attachments.lock() = attachments;
        self.moved.store(true, Ordering::Release);
        self.rendered = Some(now);
        Ok(())
    }

    fn site(&self) -> Site {
        let (node, networks) = (Some(Arc::clone(&self.node)), self.networks.clone());
        Site { node, networks, bridge_filter: true, ..Site::default() }
    }

    /// Closes the pods' networks, unless rules are in force.
    fn close(&mut self) -> Result<(), KernelError> {
        if self.enforcer.is_in_force() {
            return Ok(());
        }
        let site = self.site();
        Ok(self.enforcer.set(self.renderer.render(&View::default(), &site))?)
    }
}
