//! The control loop: passes all events to the reconcilers, one after the other, and publishes what
//! changes by them.
//!
//! ```text
//! events ─▶ source ─▶ Control ──────────────────────────┐
//!        ├▶ attachments, host port, uplink ─▶ Ports ────┤ publish ─▶ workers
//!        └▶ next hops, addresses ───────────────────────┘    ├─▶ kernel rules (threads)
//!                   ▲                     │                  └─▶ shared status
//!                   └──── completions ─── interface thread
//! ```
//!
//! - `attachments`, `host_port`, `uplink`: each keeps its ports open, with a retry timer of its own,
//! - `ports`: the ports that workers serve, the requests to the interface thread, and flow offload,
//! - `source`, `reports`, `warnings`: the objects, their statuses and Events about them,
//! - `node_policies`, `everywhere`: what this node publishes about policies, and what all of them do,
//! - `kernel_events`: completed operations, events of interfaces, lost ports,
//! - `kernel_addresses`: the kernel's addresses, and what other nodes learn of them,
//! - `kernel_rules`: the kernel's nftables rules, with a reconciler for each table,
//! - `socket_policies`: programs at pods' cgroups, which deny calls,
//! - `denials`: what these rules log,
//! - `unenforced`: what nftables makes nothing of,
//! - `publish`, `publish_status`: snapshots and the shared status,
//! - `policy_log`: what happened to policies, and when it was in force,
//! - `replies`: answers, held back until the status that they refer to is published,
//! - `names`: addresses of domain names, and answers of DNS that wait for their snapshot,
//! - `health_checks`, `liveness`: what others ask about the switch.

mod attachments;
mod denials;
mod everywhere;
mod faults;
mod health_checks;
mod host_firewall;
mod host_port;
mod kernel_addresses;
mod kernel_events;
mod kernel_filter;
mod kernel_rules;
mod liveness;
mod masquerade;
mod names;
mod nftables;
mod node_policies;
mod policy_log;
mod ports;
mod publish;
mod publish_status;
mod redirects;
mod replies;
mod reports;
mod socket_policies;
mod source;
mod staged;
mod start;
mod unenforced;
mod uplink;
mod uplink_filter;
mod warnings;

pub(super) use publish_status::NFTABLES;
pub use socket_policies::load as load_socket_policies;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use control::Control;
use local_api::{Answer, ApiError, ErrorKind, Request};
use snapshot::{ServiceMaker, SnapshotMaker};

use super::events::Event;
use super::kernel::{Completion, InterfaceEvent, Operation, Programming, Programs};
use super::owners::Owners;
use super::shared_status::{FlowOffload, SharedStatus};
use super::source::{ClusterRecord, Source, SourceInfo, StateWriter};
use attachments::{Attachments, Effects};
use ports::{Change, Ports};

/// State of the control loop.
pub(super) struct ControlLoop {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    received: Receiver<Event>,
    /// Events received during the start.
    early: VecDeque<Event>,
    control: Control,
    services: ServiceMaker,
    snapshots: SnapshotMaker,
    /// Sends events until it is dropped.
    source: Source,
    source_info: SourceInfo,
    /// Buffers events until every kind is listed.
    initial_sync: Option<source::Initial>,
    state_writer: Option<StateWriter>,
    /// Writes past objects beside the journal.
    history: Option<StateWriter>,
    /// The cluster that the saved state belongs to; with an API server.
    cluster: Option<ClusterRecord>,
    owners: Owners,
    reports: reports::Reports,
    warnings: warnings::WarningSchedule,
    publication: node_policies::Publication,
    everywhere: everywhere::Everywhere,
    /// Number of the last reading of the manifests.
    reading: u64,
    skipped: std::collections::BTreeMap<String, usize>,
    faults: faults::Faults,
    ports: Ports,
    attachments: Attachments,
    host: Option<host_port::HostPort>,
    uplink: Option<uplink::UplinkPort>,
    kernel_addresses: kernel_addresses::KernelAddresses,
    kernel_rules: kernel_rules::KernelRules,
    socket_policies: Option<socket_policies::SocketPoliciesReconciler>,
    health_checks: health_checks::HealthChecks,
    publications: publish::Publications,
    policy_log: policy_log::PolicyLog,
    status_publisher: publish_status::StatusPublisher,
    replies: replies::Replies,
    answers: names::Answers,
    liveness: liveness::Liveness,
    next_check: Instant,
}

/// Interval of fetching the workers' reports.
const TICK: Duration = Duration::from_millis(100);
/// The same while an attachment waits for a snapshot to be in force.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Interval of liveness checks.
const CHECK: Duration = Duration::from_secs(1);
/// Upper bound on the time for taking events before their effects are published.
const LONGEST_TAKING: Duration = Duration::from_millis(20);

impl ControlLoop {
    /// Runs the loop until [`Event::Stop`].
    pub(super) fn run(mut self) {
        while self.take_events() {
            self.follow_source();
            self.take_turns();
            self.publish_changes();
            self.answers.pass_on(self.publications.generation);
            self.reconcile();
            self.publish_changes();
            self.publish_programming();
            self.replies.flush();
        }
        self.end();
    }

    /// Waits for events and handles them, for [`LONGEST_TAKING`] at most: a constant flow of events
    /// must not delay the next snapshot. Returns `false` at the end.
    fn take_events(&mut self) -> bool {
        self.shared.beat();
        let is_short = self.is_publishing() || self.answers.have_turns();
        let tick = if is_short { SHORT_TICK } else { TICK };
        let mut next = match self.early.pop_front() {
            Some(event) => Ok(event),
            None => self.received.recv_timeout(tick),
        };
        self.publications.since = Instant::now();
        loop {
            match next {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(event) => self.handle_event(event),
                Err(RecvTimeoutError::Timeout) => break,
            }
            if self.publications.since.elapsed() >= LONGEST_TAKING {
                break;
            }
            let early = self.early.pop_front();
            next = early.map_or_else(|| self.received.recv_timeout(Duration::ZERO), Ok);
        }
        true
    }

    /// Passes an event to those that it concerns.
    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Source(event, _slot) => {
                self.source_event(event);
                self.ports.changed(Change::Objects);
            }
            Event::Request(request, reply) => self.request(request, reply),
            Event::SessionRules(pod, reply) => {
                let view = self.control.view();
                let is_known = pod.as_ref().is_none_or(|pod| {
                    view.pods.contains_key(pod) || view.host_egress.contains_key(pod)
                });
                let services = self.services.services(&view, &self.shared.config.node_name);
                let source = || (self.control.session_rule_source(pod.as_ref()), services);
                // The client may have disconnected.
                let _ = reply.send(is_known.then(source));
            }
            // The thread that requested them may have ended.
            Event::Objects(reply) => drop(reply.send(self.control.objects().collect())),
            Event::Interface(event) => self.interface_event(&event),
            Event::Completed(all) => all.into_iter().for_each(|it| self.completed(it)),
            Event::Names(changes, answer) => {
                self.names_event(changes, answer);
            }
            Event::HostPort(mac) => {
                self.host.iter_mut().for_each(|host| host.made(mac, &mut self.ports));
            }
            Event::NextHops(hops) => {
                if let Some(uplink) = &mut self.uplink {
                    uplink.next_hops_event(hops, &mut self.ports);
                }
            }
            Event::Manifests(reading) => {
                self.take_manifests(reading);
                self.ports.changed(Change::Objects);
            }
            // Taken before.
            Event::Stop => {}
        }
    }

    /// Advances what waits, and repeats failed attempts that are due.
    fn reconcile(&mut self) {
        while let Some((id, why)) = self.ports.next_gone() {
            self.lose_port(id, &why);
        }
        if Instant::now() >= self.next_check {
            self.next_check = Instant::now() + CHECK;
            self.liveness.check(&self.source, &self.shared);
            for index in self.ports.unguarded() {
                self.interface_event(&InterfaceEvent::ProgramLost(index));
            }
            let (view, node) = (self.control.view(), &self.shared.config.node_name);
            self.health_checks.reconcile(&view, node, &self.shared);
            self.ports.forget_losses();
            self.publish_addresses();
            self.publish_policies();
            self.look_everywhere();
            if let Source::ApiServer(api_server) = &self.source {
                let is_wanted = self.shared.config.node_readiness;
                api_server.report_ready(is_wanted && self.shared.is_ready());
            }
        }
        for duration in self.publications.pending.take(self.shared.switch.generation()) {
            let in_force = self.shared.durations.in_force.with_label_values::<&str>(&[]);
            in_force.observe(duration.as_secs_f64());
        }
        if self.kernel_rules.enforces_policies() {
            self.policy_log.in_force(self.shared.switch.generation());
        }
        let sessions = self.shared.switch.sessions();
        self.owners.settle(&self.control, || sessions.any_departed());
        self.kernel_addresses.reconcile(&self.ports);
        self.host.iter_mut().for_each(|host| host.reconcile(&mut self.ports));
        self.uplink.iter_mut().for_each(|uplink| uplink.reconcile(&mut self.ports));
        let (view, generation) = (self.control.view(), self.publications.generation);
        let is_listed = self.initial_sync.is_none();
        let (attachments, mut effects) = self.attachments();
        attachments.reconcile(&view, generation, is_listed, &mut effects);
        for (ticket, error) in self.ports.take_refused() {
            self.completed(Completion::Opened { ticket, result: Err(error) });
        }
        self.ports.bring_up();
    }

    fn request(&mut self, request: Request, reply: Sender<Answer>) {
        let own = self.own_addresses();
        let is_host_port = |interface: &str| {
            self.host.as_ref().is_some_and(|host| host.port.interface == interface)
        };
        let answer = match request {
            Request::AttachPod(_) if self.kernel_rules.enforces_alone() => {
                let why = "podgate runs with enforcer nftables: another CNI plugin attaches pods";
                ApiError::new(ErrorKind::NotReady, why).into()
            }
            Request::AttachPod(pod) if is_host_port(&pod.host_interface) => {
                let (pod, name, interface) = (&pod.namespace, &pod.name, &pod.host_interface);
                let text =
                    format!("attach pod {pod}/{name}: interface {interface} is the host port");
                ApiError::new(ErrorKind::Conflict, text).into()
            }
            Request::AttachPod(pod) => {
                let (attachments, mut effects) = self.attachments();
                return attachments.attach(pod, reply, &own, &mut effects);
            }
            Request::DetachPod(attachment) => {
                let (attachments, mut effects) = self.attachments();
                attachments.detach(&attachment, &mut effects)
            }
            Request::CheckPod(attachment) => {
                let is_listed = self.initial_sync.is_none();
                self.attachments.check(&attachment, &self.control, is_listed)
            }
            Request::ListPods => self.attachments.list(),
            _ => ApiError::new(ErrorKind::Internal, "the control loop has no such request").into(),
        };
        self.replies.send(reply, answer);
    }

    /// The attachments, and what they change.
    fn attachments(&mut self) -> (&mut Attachments, Effects<'_>) {
        let Self { attachments, control, ports, replies, .. } = self;
        (attachments, Effects { control, ports, replies })
    }

    /// Returns whether a snapshot is published that is not in force, or something waits for one.
    fn is_publishing(&self) -> bool {
        let waits = self.ports.is_waiting() || self.attachments.is_waiting();
        waits || self.publications.pending.is_waiting()
    }

    /// State of the kernel's configuration, by part.
    fn programming(&self) -> Vec<Programming> {
        let host = self.host.iter().map(|host| host.programmer.programming());
        let rules = self.kernel_rules.programming();
        host.chain(rules).chain([self.ports.programming()]).collect()
    }

    fn end(mut self) {
        self.kernel_rules.release();
        self.ports.end_flow_offload(FlowOffload::Off);
        self.ports.request(Operation::ReleaseUplink);
        // Ends the source's events.
        self.source = Source::Nothing;
        for writer in self.state_writer.take().into_iter().chain(self.history.take()) {
            writer.finish(&self.control);
        }
        let ending: Answer = ApiError::new(ErrorKind::NotReady, "podgate is ending").into();
        self.attachments.end(&ending);
        self.replies.flush();
        // The port itself ends with the workers: removing it would end the sessions of the kernel's
        // connections, which continue after a restart.
        if let Some(host) = self.host.as_ref().filter(|host| host.port.id().is_some()) {
            let interface = host.port.interface.clone();
            self.ports.request(Operation::ReleaseHostPort { interface });
        }
    }
}
