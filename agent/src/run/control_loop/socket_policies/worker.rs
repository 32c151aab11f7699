//! The thread that attaches programs, enters rules, ends connections and reads what programs deny.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::wire::{Flow, protocol};
use dataplane::{Outcome, Verdict};
use observe::verdicts::{
    Event, Observer, Past, Process, Refused, RefusedWhat, Wanted as WantedEvents,
};
use session_rules::{Service, Transport};
use socket_policy::{Denied, Error, SocketPolicy, What, cgroups};

use super::{Mailbox, Wanted};
use crate::run::session_rules::translations;
use crate::run::shared_status::SharedStatus;
use crate::run::status::SocketPoliciesStatus;

/// Interval of reading what the programs deny.
const TICK: Duration = Duration::from_millis(100);
/// Interval of looking for cgroups that are not there yet, and of entering rules for which the kernel has no memory.
const RETRY: Duration = Duration::from_millis(500);
/// Least interval of looking for connections that rules deny.
const SWEEP: Duration = Duration::from_secs(1);
/// Bits of TCP flags: SYN, ACK.
const SYN_ACK: u8 = 0x12;
const SYN: u8 = 0x02;

/// The thread.
pub(super) struct Worker {
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
    sweeps: Sweeps,
    /// Whether the kernel had no memory for the rules: a moment later it may have some.
    is_to_retry: bool,
    status: SocketPoliciesStatus,
}

/// When connections are looked for that rules deny: after each change, and once more, for a call that was let through just
/// before it and connected just after it; at most once in [`SWEEP`].
struct Sweeps {
    left: u32,
    next: Instant,
}

impl Sweeps {
    fn request(&mut self) {
        self.left = 2;
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.left > 0 && now >= self.next;
        if is_due {
            self.left -= 1;
            self.next = now + SWEEP;
        }
        is_due
    }
}

impl Worker {
    pub(super) fn new(
        policy: SocketPolicy,
        shared: &Arc<SharedStatus>,
        mailbox: &Arc<Mailbox>,
    ) -> Self {
        let matches =
            |event: &Event| event.reason == Outcome::PolicyDenied && event.process.is_none();
        let wanted =
            WantedEvents { matches: Box::new(matches), past: Past::Newest(0), follow: true };
        Self {
            policy,
            dropped: shared.broker.observe(wanted),
            shared: Arc::clone(shared),
            mailbox: Arc::clone(mailbox),
            wanted: None,
            services: BTreeMap::new(),
            cgroups: HashMap::new(),
            sweeps: Sweeps { left: 0, next: Instant::now() },
            is_to_retry: false,
            status: SocketPoliciesStatus { state: "on".into(), ..Default::default() },
        }
    }

    pub(super) fn run(mut self) {
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
            let is_incomplete = self.is_to_retry || !self.status.missing.is_empty();
            if is_new || is_incomplete && Instant::now() >= retry_at {
                retry_at = Instant::now() + RETRY;
                let has_attached = self.attach();
                if is_new || has_attached || self.is_to_retry {
                    self.enter_rules();
                    self.sweeps.request();
                }
            }
            if let Some(wanted) = self.wanted.as_ref().filter(|_| is_new) {
                self.mailbox.content.lock().handled = (wanted.number, wanted.generation);
            }
            if self.sweeps.is_due(Instant::now()) {
                self.end_denied();
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
                let uid = pod.uid.as_ref().map_err(ToString::to_string)?;
                let root = &self.shared.config.cgroup_root;
                let known = self.cgroups.get(uid).filter(|path| path.is_dir()).cloned();
                let cgroup = known
                    .or_else(|| cgroups::of_pod(root, uid))
                    .ok_or_else(|| format!("no cgroup of pod {uid} below {}", root.display()))?;
                found.insert(Arc::clone(uid), cgroup.clone());
                // No policy cuts the switch off from the policies.
                if pod.is_host && cgroups::has_process(&cgroup, std::process::id()) {
                    return Ok(());
                }
                let name = key.to_string();
                let attached = self.policy.attach(&name, &pod.addresses, &cgroup, pod.is_host);
                attached.map_err(|it| it.to_string())
            };
            missing.extend(attach().err().map(|why: String| format!("{key}: {why}")));
        }
        let names: HashSet<String> = wanted.pods.keys().map(ToString::to_string).collect();
        let gone = before.iter().filter(|name| !names.contains(&***name));
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
        let accepted = wanted.rules.accepted();
        let accepted: Vec<_> =
            accepted.into_iter().map(|(pod, rule)| (pod.to_string().into(), rule)).collect();
        let mut services = session_rules::Services::default();
        self.services = translations(&wanted.services);
        for ((at, transport), service) in &self.services {
            services.set(*at, *transport, Some(service.clone()));
        }
        let entered = self.policy.set_rules(&rules, &accepted, &services, &wanted.node);
        let no_memory = |it: &Error| it.cause.kind() == ErrorKind::OutOfMemory;
        self.is_to_retry = entered.as_ref().is_err_and(no_memory);
        if let Ok(closed) = &entered {
            let no_room: Vec<String> = closed.iter().map(ToString::to_string).collect();
            for what in no_room.iter().filter(|it| !self.status.no_room.contains(it)) {
                tracing::warn!("socket policies: {what}");
            }
            self.status.no_room = no_room;
        }
        let why = entered.err().map(|error| error.to_string());
        if let Some(why) = why.as_ref().filter(|it| self.status.reason.as_ref() != Some(it)) {
            tracing::warn!("socket policies: {why}");
        }
        self.status.reason = why;
    }

    /// Ends connections of pods on the host network that rules deny now.
    fn end_denied(&mut self) {
        match self.policy.end_denied() {
            Ok((ended, is_more)) => {
                for it in &ended {
                    let (pod, local, remote) = (&it.pod, it.local, it.remote);
                    tracing::info!(pod = %pod, "policies deny {local} - {remote} now: ended");
                }
                self.status.ended += ended.len() as u64;
                self.status.not_ended = None;
                if is_more {
                    self.sweeps.request();
                }
            }
            Err(error) => {
                let why = error.to_string();
                if self.status.not_ended.as_ref() != Some(&why) {
                    tracing::warn!("socket policies: {why}");
                }
                self.status.not_ended = Some(why);
            }
        }
    }

    /// Reports what the programs denied, and compares it with the switch's decision.
    fn refused(&mut self, denied: Denied) {
        let Some(wanted) = &self.wanted else { return };
        let is_v4 = match &denied.what {
            What::Call { target, .. } => target.is_ipv4(),
            What::Arrival { sender, .. } => sender.is_ipv4(),
        };
        let mut named = wanted.pods.iter().filter(|(key, _)| key.to_string() == *denied.pod);
        let pod = named.next().map(|(_, pod)| pod.clone());
        let is_host = pod.as_ref().is_some_and(|pod| pod.is_host);
        let address =
            pod.and_then(|pod| pod.addresses.iter().find(|it| it.is_ipv4() == is_v4).copied());
        let protocol = match denied.transport {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
        };
        let what = match denied.what {
            What::Call { process: (pid, command), target, .. } => {
                // The switch does not tell pods on the host network from their node.
                if let Some(from) = address.filter(|_| !is_host) {
                    self.compare_call(&denied.pod, from, (target, denied.transport));
                }
                // A process names itself.
                let command = cli_runtime::plain(&command).into();
                RefusedWhat::Call { process: Process { pid, command }, to: target }
            }
            What::Arrival { sender, port } => RefusedWhat::Arrival { from: sender, port },
        };
        let by = (*denied.by).into();
        self.shared.broker.record_refused(Refused { pod: denied.pod, address, by, protocol, what });
    }

    /// Notes a call of a pod that was denied where the switch allows it.
    fn compare_call(&mut self, pod: &str, from: IpAddr, to: (SocketAddr, Transport)) {
        let targets = self.services.get(&to).map_or(vec![to.0], |it| it.endpoints.clone());
        let protocol = match to.1 {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
        };
        if targets.iter().any(|target| self.is_allowed_by_switch(from, *target, protocol)) {
            self.status.stricter += 1;
            self.differs(format!("{pod} -> {}: denied at the socket, allowed by the switch", to.0));
        }
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
        // What programs kept from a pod on the host network is among the verdicts, too.
        let is_host = |pod: &Arc<str>| {
            let pods = self.wanted.iter().flat_map(|wanted| &wanted.pods);
            pods.filter(|(_, it)| it.is_host).any(|(key, _)| key.to_string() == **pod)
        };
        let opens = opens && !event.to.pod.as_ref().is_some_and(is_host);
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
        self.status.arrivals_denied = counters.kept_out;
        self.status.raw_denied = counters.raw;
        self.shared.set_socket_policies(self.status.clone());
    }
}

#[cfg(test)]
mod tests {
    use control::{Control, Scope};
    use socket_policy::Options;

    use super::super::Pod;
    use super::*;

    #[test]
    fn a_call_that_the_switch_would_allow_counts_as_a_difference() {
        testkit::requires_root!();
        let folder = testkit::TempDir::new("stricter");
        let shared = Arc::new(crate::run::shared_status::tests::started(folder.path()));
        let policy = SocketPolicy::load(Options::default()).unwrap();
        let mut worker = Worker::new(policy, &shared, &Arc::default());
        // The switch knows no pods, so no policy of theirs.
        let control = Control::new(Scope::Node("n1".into()));
        let pod =
            |is_host| Pod { uid: Err("".into()), addresses: vec![[10, 0, 0, 1].into()], is_host };
        let key = |name: &str| control::PodKey { namespace: "default".into(), name: name.into() };
        worker.wanted = Some(Wanted {
            number: 1,
            generation: 1,
            rules: control.session_rule_source(None),
            services: Arc::default(),
            node: Vec::new(),
            pods: [(key("a"), pod(false)), (key("host"), pod(true))].into(),
            is_complete: true,
        });
        let mut refused = |pod: &str| {
            let process = (4711, "redis-cli".into());
            let target = "10.0.0.2:80".parse().unwrap();
            let what = What::Call { process, user: 0, target };
            let by = "NetworkPolicy default/a egress".into();
            worker.refused(Denied { pod: pod.into(), by, transport: Transport::Tcp, what });
            worker.status.stricter
        };
        assert_eq!(refused("default/host"), 0, "the switch does not tell it from its node");
        assert_eq!(refused("default/a"), 1);
        let difference = worker.status.last_difference.unwrap();
        let wanted = "default/a -> 10.0.0.2:80: denied at the socket, allowed by the switch";
        assert_eq!(difference, wanted);
    }

    #[test]
    fn each_change_is_followed_by_two_sweeps_a_second_apart() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut sweeps = Sweeps { left: 0, next: start };
        assert!(!sweeps.is_due(at(0)));
        sweeps.request();
        assert!(sweeps.is_due(at(0)) && !sweeps.is_due(at(999)));
        sweeps.request();
        let due: Vec<u64> =
            (1..50).map(|it| it * 100).filter(|it| sweeps.is_due(at(*it))).collect();
        assert_eq!(due, [1_000, 2_000]);
    }
}
