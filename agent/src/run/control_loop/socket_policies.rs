//! Programs at the cgroups of this node's pods, which deny `connect()` and `sendmsg()` by session rules.
//!
//! The loop says what is wanted; a thread finds cgroups, attaches programs and enters rules, and reads what the
//! programs deny. When the switch ends the programs stay with the last rules.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::model::PodKey;
use control::{Control, SessionRules, View};
use dataplane::services::Services;
use dataplane::wire::{Flow, protocol};
use dataplane::{Outcome, Verdict};
use observe::verdicts::{Event, Observer, Past, Process, Refused, Wanted as WantedEvents};
use parking_lot::{Condvar, Mutex};
use session_rules::{Service, Transport};
use socket_policy::{Denied, Options, PINS, SocketPolicy, cgroups};

use super::reconciler::{Effects, PublishedSnapshot, Reconciler, Signal};
use crate::config::{Config, SocketError, SocketPolicies};
use crate::run::error::StartError;
use crate::run::session_rules::translations;
use crate::run::shared_status::SharedStatus;
use crate::run::status::SocketPoliciesStatus;
use crate::run::thread::Thread;

/// Interval of reading what the programs deny.
const TICK: Duration = Duration::from_millis(100);
/// Interval of looking for cgroups that are not there yet.
const RETRY: Duration = Duration::from_millis(500);
/// Bits of TCP flags: SYN, ACK.
const SYN_ACK: u8 = 0x12;
const SYN: u8 = 0x02;

/// The loop's end: hands what is wanted to the thread.
pub(super) struct SocketPoliciesReconciler {
    mailbox: Arc<Mailbox>,
    last: Option<(Arc<View>, Arc<Services>)>,
    _thread: Thread,
}

#[derive(Default)]
struct Mailbox {
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Default)]
struct Content {
    wanted: Option<Wanted>,
    ends: bool,
}

/// The desired rules.
struct Wanted {
    rules: SessionRules,
    services: Arc<Services>,
    node: Vec<IpAddr>,
    pods: BTreeMap<PodKey, Pod>,
    /// Whether these are all pods: others are detached.
    is_complete: bool,
}

#[derive(Clone)]
struct Pod {
    uid: Option<Arc<str>>,
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
        let matches =
            |event: &Event| event.reason == Outcome::PolicyDenied && event.process.is_none();
        let wanted =
            WantedEvents { matches: Box::new(matches), past: Past::Newest(0), follow: true };
        let mailbox = Arc::<Mailbox>::default();
        let worker = Worker {
            policy,
            dropped: shared.broker.observe(wanted),
            shared: Arc::clone(shared),
            mailbox: Arc::clone(&mailbox),
            wanted: None,
            services: BTreeMap::new(),
            cgroups: HashMap::new(),
            status: SocketPoliciesStatus { state: "on".into(), ..Default::default() },
        };
        let thread = Thread::start("sockets", move || worker.run())?;
        Ok(Some(Self { mailbox, last: None, _thread: thread }))
    }

    /// Sets what is to be in force, if anything has changed. `uid` gives the UID of a pod by its runtime.
    fn reconcile(
        &mut self,
        control: &Control,
        services: &Arc<Services>,
        node: Vec<IpAddr>,
        is_complete: bool,
        uid: impl Fn(&PodKey) -> Option<Arc<str>>,
    ) {
        let view = control.view();
        let is_same = |(last, known): &(Arc<View>, Arc<Services>)| {
            Arc::ptr_eq(last, &view) && Arc::ptr_eq(known, services)
        };
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        let pod = |(key, pod): (&PodKey, _)| {
            let pod: &Arc<control::PodView> = pod;
            let of_object = || control.pod(key).and_then(|it| it.uid.clone());
            let uid = uid(key).or_else(of_object);
            (key.clone(), Pod { uid, addresses: pod.addresses.clone(), is_host: false })
        };
        let host = view.host_egress.keys().map(|key| {
            let uid = control.pod(key).and_then(|it| it.uid.clone());
            (key.clone(), Pod { uid, addresses: node.clone(), is_host: true })
        });
        let wanted = Wanted {
            rules: control.session_rule_source(None),
            services: Arc::clone(services),
            pods: view.pods.iter().map(pod).chain(host).collect(),
            node,
            is_complete,
        };
        self.last = Some((view, Arc::clone(services)));
        self.mailbox.content.lock().wanted = Some(wanted);
        self.mailbox.changed.notify_one();
    }
}

impl Reconciler for SocketPoliciesReconciler {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let Signal::Published(PublishedSnapshot { services, .. }) = signal else { return };
        let uid = |key: &_| effects.pods.uid(key).map(Arc::from);
        let is_complete = effects.input.info.decides();
        let own = effects.own_addresses();
        self.reconcile(&effects.control, services, own, is_complete, uid);
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
    };
    SocketPolicy::load(options).map(Some).map_err(|error| error.to_string())
}

/// The thread.
struct Worker {
    policy: SocketPolicy,
    /// Verdicts of the switch.
    dropped: Observer,
    shared: Arc<SharedStatus>,
    mailbox: Arc<Mailbox>,
    wanted: Option<Wanted>,
    /// Its services, as they were entered.
    services: BTreeMap<(SocketAddr, Transport), Service>,
    /// Cgroups that were found, by the pod's UID.
    cgroups: HashMap<Arc<str>, PathBuf>,
    status: SocketPoliciesStatus,
}

impl Worker {
    fn run(mut self) {
        let mut retry_at = Instant::now();
        loop {
            let received = {
                let mut content = self.mailbox.content.lock();
                if content.wanted.is_none() && !content.ends {
                    self.mailbox.changed.wait_for(&mut content, TICK);
                }
                if content.ends {
                    return;
                }
                content.wanted.take()
            };
            let is_new = received.is_some();
            self.wanted = received.or(self.wanted.take());
            if is_new || !self.status.missing.is_empty() && Instant::now() >= retry_at {
                retry_at = Instant::now() + RETRY;
                let has_attached = self.attach();
                if is_new || has_attached {
                    self.enter_rules();
                }
            }
            for denied in self.policy.denied() {
                self.refused(denied);
            }
            while let Ok(event) = self.dropped.events.try_recv() {
                self.compare(&event);
            }
            self.report();
        }
    }

    /// Attaches the programs to the cgroups that are there; whether any has them that had not.
    fn attach(&mut self) -> bool {
        let Some(wanted) = &self.wanted else { return false };
        let before = self.policy.attached();
        let mut missing = Vec::new();
        let mut found = HashMap::new();
        for (key, pod) in &wanted.pods {
            let mut attach = || {
                let uid = pod.uid.as_ref().ok_or("its UID is not known")?;
                let root = &self.shared.config.cgroup_root;
                let known = self.cgroups.get(uid).filter(|path| path.is_dir()).cloned();
                let cgroup = known
                    .or_else(|| cgroups::of_pod(root, uid))
                    .ok_or_else(|| format!("no cgroup of pod {uid} below {}", root.display()))?;
                found.insert(Arc::clone(uid), cgroup.clone());
                let name = key.to_string();
                let attached = self.policy.attach(&name, &pod.addresses, &cgroup, pod.is_host);
                attached.map_err(|it| it.to_string())
            };
            missing.extend(attach().err().map(|why: String| format!("{key}: {why}")));
        }
        let is_wanted = |name: &str| wanted.pods.keys().any(|key| key.to_string() == name);
        let gone = before.iter().filter(|name| !is_wanted(name));
        let detached = gone.map(|name| self.policy.detach(name));
        let others = wanted.is_complete.then(|| self.policy.detach_others());
        for error in detached.chain(others).filter_map(Result::err) {
            tracing::warn!("socket policies: {error}");
        }
        self.cgroups = found;
        self.status.missing = missing;
        self.policy.attached().iter().any(|name| !before.contains(name))
    }

    fn enter_rules(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let rules: Vec<_> = wanted.rules.of_pods().map(|(_, rule)| rule).collect();
        let mut services = session_rules::Services::default();
        self.services = translations(&wanted.services);
        for ((at, transport), service) in &self.services {
            services.set(*at, *transport, Some(service.clone()));
        }
        let entered = self.policy.set_rules(&rules, &services, &wanted.node);
        let why = entered.err().map(|error| format!("{error}; the rules before stay in force"));
        if let Some(why) = why.as_ref().filter(|it| self.status.reason.as_ref() != Some(it)) {
            tracing::warn!("socket policies: {why}");
        }
        self.status.reason = why;
    }

    /// Reports a call that the programs denied, and compares it with the switch's decision.
    fn refused(&mut self, denied: Denied) {
        let Some(wanted) = &self.wanted else { return };
        let mut named = wanted.pods.iter().filter(|(key, _)| key.to_string() == *denied.pod);
        let of_family = |it: &&IpAddr| it.is_ipv4() == denied.target.is_ipv4();
        let pod = named.next().map(|(_, pod)| pod.clone());
        let is_host = pod.as_ref().is_some_and(|pod| pod.is_host);
        let from = pod.and_then(|pod| pod.addresses.iter().find(of_family).copied());
        let protocol = match denied.transport {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
        };
        let (pid, command) = denied.process;
        // The switch does not tell pods on the host network from their node.
        if let Some(from) = from.filter(|_| !is_host) {
            let service = self.services.get(&(denied.target, denied.transport));
            let targets = service.map_or(vec![denied.target], |it| it.endpoints.clone());
            let is_allowed = |to: &SocketAddr| self.is_allowed_by_switch(from, *to, protocol);
            if targets.iter().any(is_allowed) {
                self.status.stricter += 1;
                let (pod, to) = (&denied.pod, denied.target);
                self.differs(format!("{pod} -> {to}: denied at the socket, allowed by the switch"));
            }
        }
        self.shared.broker.record_refused(Refused {
            pod: denied.pod,
            from,
            process: Process { pid, command: command.into() },
            by: (*denied.by).into(),
            protocol,
            to: denied.target,
        });
    }

    fn is_allowed_by_switch(&self, from: IpAddr, to: SocketAddr, protocol: u8) -> bool {
        let flow = Flow {
            source: from.into(),
            destination: to.ip().into(),
            destination_port: to.port(),
            protocol,
            ..Flow::default()
        };
        let outcome = dataplane::evaluate(&self.shared.state().rules, &flow).outcome;
        outcome.verdict() != Verdict::Drop
    }

    /// Notes a connection of a pod with programs that the switch denied as it opened.
    fn compare(&mut self, event: &Event) {
        let opens = match event.protocol.map(|it| it.0) {
            Some(protocol::TCP) => event.tcp_flags.is_some_and(|it| it.0 & SYN_ACK == SYN),
            Some(protocol::UDP) => true,
            _ => false,
        };
        let has_programs = |pod: &Arc<str>| self.policy.attached().contains(pod);
        if opens && event.from.pod.as_ref().is_some_and(has_programs) {
            self.status.looser += 1;
            let (from, to) = (&event.from, &event.to);
            self.differs(format!("{from} -> {to}: denied by the switch, not at the socket"));
        }
    }

    fn differs(&mut self, difference: String) {
        tracing::debug!("socket policies: {difference}");
        self.status.last_difference = Some(difference);
    }

    fn report(&mut self) {
        let counters = self.policy.counters();
        self.status.attached = self.policy.attached().len();
        self.status.asked = counters.asked;
        self.status.denied = counters.denied;
        self.status.closed = counters.closed;
        self.status.lost = counters.lost;
        self.shared.set_socket_policies(self.status.clone());
    }
}
