//! Programs at the cgroups of this node's pods, which deny `connect()` and `sendmsg()` by session rules, and what arrives at
//! sockets of pods on the host network.
//!
//! The loop says what is wanted; a thread (`worker.rs`) finds cgroups, attaches programs and enters rules, ends connections
//! that these deny, and reads what the programs deny. When the switch ends the programs stay with the last rules.

mod worker;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use control::model::{PodKey, Uid};
use control::{Control, SessionRules, Uids, View};
use dataplane::services::Services;
use parking_lot::{Condvar, Mutex};
use socket_policy::{Limits, Options, PINS, SocketPolicy, cgroups};

use super::reconciler::{Effects, Reconciler, Signal};
use crate::config::{Config, SocketError, SocketPolicies};
use crate::run::error::StartError;
use crate::run::shared_status::SharedStatus;
use crate::run::status::SocketPoliciesStatus;
use crate::run::thread::Thread;
use worker::Worker;

/// The loop's end: hands what is wanted to the thread.
pub(super) struct SocketPoliciesReconciler {
    mailbox: Arc<Mailbox>,
    last: Option<Basis>,
    _thread: Thread,
}

/// The inputs of the desired rules.
struct Basis {
    view: Arc<View>,
    services: Arc<Services>,
    node: Vec<IpAddr>,
    pods: BTreeMap<PodKey, Pod>,
    is_complete: bool,
}

impl PartialEq for Basis {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.view, &other.view)
            && Arc::ptr_eq(&self.services, &other.services)
            && self.node == other.node
            && self.pods == other.pods
            && self.is_complete == other.is_complete
    }
}

/// Holds the desired rules for the thread, and its progress for the loop.
#[derive(Default)]
pub(super) struct Mailbox {
    content: Mutex<Content>,
    changed: Condvar,
}

impl Mailbox {
    /// Whether what was set for this snapshot is in force, as far as it can be: programs are at the cgroups that are there, and
    /// rules are entered.
    pub(super) fn is_in_force(&self, generation: u64) -> bool {
        let content = self.content.lock();
        let (number, handled) = content.handled;
        number == content.number || handled >= generation
    }
}

#[derive(Default)]
struct Content {
    wanted: Option<Wanted>,
    /// Number of the last desired rules.
    number: u64,
    /// Number of the desired rules that the thread has handled, and the first snapshot with them.
    handled: (u64, u64),
    ends: bool,
}

/// The desired rules.
struct Wanted {
    number: u64,
    /// The first snapshot with them.
    generation: u64,
    rules: SessionRules,
    services: Arc<Services>,
    node: Vec<IpAddr>,
    pods: BTreeMap<PodKey, Pod>,
    /// Whether these are all pods: others are detached.
    is_complete: bool,
}

#[derive(Clone, PartialEq)]
struct Pod {
    /// The UID by which the runtime knows it; `Err` says why there is none.
    uid: Result<Arc<str>, Arc<str>>,
    addresses: Vec<IpAddr>,
    /// Whether it is on the host network.
    is_host: bool,
}

impl SocketPoliciesReconciler {
    /// Starts the thread, if there are programs.
    pub(super) fn start(
        shared: &Arc<SharedStatus>,
        loaded: Result<Option<SocketPolicy>, String>,
    ) -> Result<Option<Self>, StartError> {
        let policy = match loaded {
            Ok(Some(policy)) => policy,
            Ok(None) => return Ok(None),
            Err(why) => {
                tracing::warn!("socket policies are unavailable: {why}");
                shared.set_socket_policies(SocketPoliciesStatus::without(Some(why)));
                return Ok(None);
            }
        };
        let mailbox = Arc::<Mailbox>::default();
        let worker = Worker::new(policy, shared, &mailbox);
        let thread = Thread::start("sockets", move || worker.run())?;
        Ok(Some(Self { mailbox, last: None, _thread: thread }))
    }

    /// Sets what is to be in force from this snapshot on, if anything has changed.
    fn reconcile(
        &mut self,
        (control, generation): (&Control, u64),
        services: &Arc<Services>,
        node: Vec<IpAddr>,
        is_complete: bool,
        uids: &Uids,
    ) {
        let view = control.view();
        let pod = |key: &PodKey, addresses: &[IpAddr], is_host| {
            (key.clone(), Pod { uid: uids.of(key), addresses: addresses.to_vec(), is_host })
        };
        let pods = view.pods.iter().map(|(key, it)| pod(key, &it.addresses, false));
        let host = view.host_sockets.keys().map(|key| pod(key, &node, true));
        let pods = pods.chain(host).collect();
        let basis = Basis { services: Arc::clone(services), view, node, pods, is_complete };
        if self.last.as_ref() == Some(&basis) {
            return;
        }
        let mut content = self.mailbox.content.lock();
        content.number += 1;
        let wanted = Wanted {
            number: content.number,
            generation,
            rules: control.session_rule_source(None),
            services: Arc::clone(services),
            pods: basis.pods.clone(),
            node: basis.node.clone(),
            is_complete,
        };
        self.last = Some(basis);
        content.wanted = Some(wanted);
        self.mailbox.changed.notify_one();
    }

    /// Returns the mailbox, which tells which rules are in force.
    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }
}

impl Reconciler for SocketPoliciesReconciler {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let services = match signal {
            Signal::Published(published) => Arc::clone(&published.services),
            // UIDs, and whether all objects are listed, are in no snapshot.
            Signal::Committed => {
                let (view, node) = (effects.control.view(), &effects.shared.config.node_name);
                effects.services.services(&view, node)
            }
            _ => return,
        };
        let own = effects.own_addresses();
        let is_complete = effects.input.info.decides();
        let view = effects.control.view();
        let local = view.pods.keys().chain(view.host_sockets.keys());
        let uids = effects.control.uids(local, |key| effects.pods.uid(key).map(Uid::from));
        let control = (&effects.control, effects.generation);
        self.reconcile(control, &services, own, is_complete, &uids);
        effects.uid_faults = uids.faults().collect();
    }
}

impl Drop for SocketPoliciesReconciler {
    fn drop(&mut self) {
        self.mailbox.content.lock().ends = true;
        self.mailbox.changed.notify_one();
    }
}

/// Loads the programs for pods' cgroups; `None` if the configuration does not ask for them. That needs PERFMON, beside the
/// capabilities of the switch: they tell the name of a process.
///
/// # Errors
/// Why they are not to be had, in words.
pub fn load(config: &Config) -> Result<Option<SocketPolicy>, String> {
    if config.socket_policies == SocketPolicies::Off {
        return Ok(None);
    }
    let root = &config.cgroup_root;
    match cgroups::is_v2(root) {
        Ok(true) => {}
        Ok(false) => return Err(format!("{}: no hierarchy of cgroup v2", root.display())),
        Err(error) => return Err(format!("{}: {error}", root.display())),
    }
    let options = Options {
        refuse: config.socket_error == SocketError::Econnrefused,
        closed: config.socket_policies == SocketPolicies::Closed,
        pins: Some(config.bpf_fs.join(PINS)),
        limits: limits(config),
    };
    SocketPolicy::load(options).map(Some).map_err(|error| error.to_string())
}

fn limits(config: &Config) -> Limits {
    let [networks, endpoints, exchanges] = config.socket_room;
    Limits { networks, ranges: networks / 2, endpoints, services: endpoints / 2, exchanges }
}

#[cfg(test)]
mod tests {
    use control::Scope;
    use control::objects::{self, Read};
    use serde_json::json;

    use super::*;

    /// Without the thread, which would attach programs.
    fn reconciler() -> SocketPoliciesReconciler {
        SocketPoliciesReconciler {
            mailbox: Arc::default(),
            last: None,
            _thread: Thread::start("none", || {}).unwrap(),
        }
    }

    #[test]
    fn each_input_counts() {
        let (mut sockets, mut control) = (reconciler(), Control::new(Scope::Node("n1".into())));
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "default", "uid": "0e"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]},
            "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        let Read::Object(pod, _) = objects::read(pod) else { panic!() };
        control.apply(pod);
        control.commit();
        assert_eq!(control.view().pods.len(), 1);
        let services = Arc::<Services>::default();
        let mut is_set =
            |services: &Arc<Services>, node: &[[u8; 4]], is_complete, uid: Option<&str>| {
                let node = node.iter().map(|it| IpAddr::from(*it)).collect();
                let uids = control.uids(control.view().pods.keys(), |_| uid.map(Uid::from));
                sockets.reconcile((&control, 1), services, node, is_complete, &uids);
                sockets.mailbox.content.lock().wanted.take().is_some()
            };
        assert!(is_set(&services, &[], false, None));
        assert!(!is_set(&services, &[], false, None), "nothing has changed");
        let node = [[192, 0, 2, 1]];
        assert!(is_set(&services, &node, false, None), "an address of the node");
        assert!(is_set(&services, &node, true, None), "the cluster is complete");
        assert!(is_set(&Arc::default(), &node, true, None), "other services");
        let services = Arc::default();
        assert!(is_set(&services, &node, true, None));
        assert!(is_set(&services, &node, true, Some("0f")), "the runtime's UID");
        assert!(is_set(&services, &node, true, None), "that of the object");
        assert!(!is_set(&services, &node, true, None), "nothing has changed");
    }

    #[test]
    fn a_snapshot_is_in_force_when_the_thread_has_handled_it() {
        let (mut sockets, control) = (reconciler(), Control::new(Scope::Node("n1".into())));
        assert!(sockets.mailbox.is_in_force(1), "nothing is wanted");
        let set = |sockets: &mut SocketPoliciesReconciler, generation| {
            let services = Arc::<Services>::default();
            sockets.reconcile((&control, generation), &services, vec![], true, &Uids::default());
        };
        let in_force = |sockets: &SocketPoliciesReconciler| {
            (1..7).filter(|it| sockets.mailbox.is_in_force(*it)).collect::<Vec<u64>>()
        };
        set(&mut sockets, 2);
        set(&mut sockets, 4);
        assert!(in_force(&sockets).is_empty());
        let mut content = sockets.mailbox.content.lock();
        let wanted = content.wanted.take().unwrap();
        content.handled = (wanted.number, wanted.generation);
        drop(content);
        assert_eq!(in_force(&sockets), [1, 2, 3, 4, 5, 6], "nothing else is wanted");
        set(&mut sockets, 6);
        assert_eq!(in_force(&sockets), [1, 2, 3, 4], "those before the change");
    }
}
