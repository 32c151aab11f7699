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
//! Its parts are reconcilers (`reconciler`): each has state of its own, receives signals of what happens, and
//! changes what all share, the `Effects`. In each round the loop takes events, publishes, lets those act that are
//! due, and publishes again.
//!
//! - `attachments`, `host_port`, `uplink`: each keeps its ports open, with a retry timer of its own,
//! - `ports`: the ports that workers serve, the requests to the interface thread, and flow offload,
//! - `input`, `source`: the source's state, and what its events change,
//! - `saving`: what the next process reads,
//! - `reports`, `warnings`: statuses of policies and Events about them,
//! - `node_policies`, `everywhere`: what this node publishes about policies, and what all of them do,
//! - `kernel_events`: completed operations, events of interfaces, lost ports,
//! - `kernel_addresses`: the kernel's addresses, and what other nodes learn of them,
//! - `kernel_rules`: the kernel's nftables rules, with a reconciler for each table,
//! - `socket_policies`: programs at pods' cgroups, which deny calls,
//! - `denials`: what these rules log,
//! - `unenforced`: what nftables makes nothing of,
//! - `publish`, `endpoints`: snapshots, and how often those follow services' endpoints,
//! - `bookkeeping`: the log of policies (`policy_log`), metrics, and the shared status (`publish_status`),
//! - `replies`: answers, held back until the status that they refer to is published,
//! - `names`: addresses of domain names, and answers of DNS that wait for their snapshot,
//! - `keys`: what encryption between nodes goes by,
//! - `health_checks`, `liveness`, `peers`: what others ask about the switch.

mod attachments;
mod bookkeeping;
mod denials;
mod endpoints;
mod everywhere;
mod faults;
mod health_checks;
mod host_firewall;
mod host_port;
mod input;
mod kernel_addresses;
mod kernel_events;
mod kernel_filter;
mod kernel_rules;
mod keys;
mod liveness;
mod masquerade;
mod memory;
mod names;
mod nftables;
mod node_policies;
mod peers;
mod policy_log;
mod ports;
mod publish;
mod publish_status;
mod reconciler;
mod redirects;
mod replies;
mod reports;
mod resets;
mod saving;
mod socket_policies;
mod source;
mod staged;
mod start;
mod unenforced;
mod uplink;
mod uplink_filter;
mod warnings;

pub(super) use publish_status::{HOST_FIREWALL, NFTABLES};
pub use socket_policies::load as load_socket_policies;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use local_api::{Answer, ApiError, ErrorKind, Request};
use snapshot::{NodePort, SnapshotMaker};

use super::events::Event;
use super::kernel::Completion;
use super::shared_status::FlowOffload;
use super::source::Source;
use attachments::Attachments;
use ports::Change;
use reconciler::{Effects, Reconciler, Signal};

/// State of the control loop: what its parts share, those that others name, and the rest.
pub(super) struct ControlLoop {
    effects: Effects,
    received: Receiver<Event>,
    /// Events received during the start.
    early: VecDeque<Event>,
    snapshots: SnapshotMaker,
    /// The ports of the last snapshot.
    node_ports: Arc<[NodePort]>,
    endpoint_pace: endpoints::EndpointPace,
    answers: names::Answers,
    kernel_rules: kernel_rules::KernelRules,
    kernel_addresses: kernel_addresses::KernelAddresses,
    host: Option<host_port::HostPort>,
    uplink: Option<uplink::UplinkPort>,
    attachments: Attachments,
    bookkeeping: bookkeeping::Bookkeeping,
    others: Vec<Box<dyn Reconciler + Send>>,
}

/// Interval of fetching the workers' reports.
const TICK: Duration = Duration::from_millis(100);
/// The same while an attachment waits for a snapshot to be in force.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Upper bound on the time for taking events before their effects are published.
const LONGEST_TAKING: Duration = Duration::from_millis(20);

impl ControlLoop {
    /// Runs the loop until [`Event::Stop`].
    pub(super) fn run(mut self) {
        while self.take_events() {
            self.end_initial_sync_if_late();
            self.answers.take_turns(&mut self.effects);
            self.publish_changes();
            self.answers.pass_on(self.effects.generation);
            self.reconcile();
            self.publish_changes();
            self.publish_programming();
            self.effects.replies.flush();
        }
        self.end();
    }

    /// Waits for events and handles them, for [`LONGEST_TAKING`] at most: a constant flow of events
    /// must not delay the next snapshot. Returns `false` at the end.
    fn take_events(&mut self) -> bool {
        self.effects.shared.beat();
        let is_short = self.is_publishing() || self.answers.have_turns();
        let tick = match (is_short, self.effects.control.has_endpoints()) {
            (true, _) => SHORT_TICK,
            (false, true) => self.endpoint_pace.wait(Instant::now()).min(TICK),
            (false, false) => TICK,
        };
        let mut next = match self.early.pop_front() {
            Some(event) => Ok(event),
            None => self.received.recv_timeout(tick),
        };
        self.bookkeeping.since = Instant::now();
        loop {
            match next {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(event) => self.handle_event(event),
                Err(RecvTimeoutError::Timeout) => break,
            }
            if self.bookkeeping.since.elapsed() >= LONGEST_TAKING {
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
            Event::Source(events, _slots) => {
                events.into_iter().for_each(|event| self.source_event(event));
                self.effects.ports.changed(Change::Objects);
            }
            Event::Request(request, reply) => self.request(request, reply),
            Event::SessionRules(pod, reply) => {
                let view = self.effects.control.view();
                let is_known = pod.as_ref().is_none_or(|pod| {
                    view.pods.contains_key(pod) || view.host_sockets.contains_key(pod)
                });
                let Effects { services, shared, .. } = &mut self.effects;
                let services = services.services(&view, &shared.config.node_name);
                let source = || (self.effects.control.session_rule_source(pod.as_ref()), services);
                // The client may have disconnected.
                let _ = reply.send(is_known.then(source));
            }
            // The thread that requested them may have ended.
            Event::Objects(reply) => {
                drop(reply.send(self.effects.control.enforced_objects().collect()));
            }
            Event::KeepLabels(reply) => {
                let directory = self.effects.shared.broker.directory();
                if !directory.keeps_labels() {
                    directory.keep_labels();
                    self.label_all();
                }
                let _ = reply.send(());
            }
            Event::Interface(event) => self.interface_event(&event),
            Event::Completed(all) => all.into_iter().for_each(|it| self.completed(it)),
            Event::Names(changes, answer) => {
                self.answers.names_event(changes, answer, &mut self.effects);
            }
            Event::HostPort(mac) => {
                self.host.iter_mut().for_each(|host| host.made(mac, &mut self.effects.ports));
            }
            Event::NextHops(hops) => {
                if let Some(uplink) = &mut self.uplink {
                    uplink.next_hops_event(hops, &mut self.effects.ports);
                }
            }
            Event::Manifests(reading) => {
                self.take_manifests(reading);
                self.effects.ports.changed(Change::Objects);
            }
            // Taken before.
            Event::Stop => {}
        }
    }

    /// Runs the reconcilers that are due.
    fn reconcile(&mut self) {
        while let Some((id, why)) = self.effects.ports.next_gone() {
            self.lose_port(id, &why);
        }
        let now = Instant::now();
        let (reconcilers, effects) = self.reconcilers();
        for it in reconcilers.filter(|it| it.is_due(now)) {
            it.on(&Signal::Due(now), effects);
        }
        for (ticket, error) in self.effects.ports.take_refused() {
            self.completed(Completion::Opened { ticket, result: Err(error) });
        }
        self.effects.ports.bring_up();
    }

    /// Passes a signal to all reconcilers.
    fn signal(&mut self, signal: &Signal<'_>) {
        let (reconcilers, effects) = self.reconcilers();
        reconcilers.for_each(|it| it.on(signal, effects));
    }

    /// The reconcilers in their order, and what they share.
    fn reconcilers(&mut self) -> (impl Iterator<Item = &mut dyn Reconciler>, &mut Effects) {
        let host = self.host.iter_mut().map(|it| it as &mut dyn Reconciler);
        let uplink = self.uplink.iter_mut().map(|it| it as &mut dyn Reconciler);
        let named: [&mut dyn Reconciler; 4] = [
            &mut self.kernel_rules,
            &mut self.bookkeeping,
            &mut self.kernel_addresses,
            &mut self.attachments,
        ];
        let others = self.others.iter_mut().map(|it| &mut **it as &mut dyn Reconciler);
        (named.into_iter().chain(host).chain(uplink).chain(others), &mut self.effects)
    }

    fn request(&mut self, request: Request, reply: Sender<Answer>) {
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
                return self.attachments.attach(pod, reply, &mut self.effects);
            }
            Request::DetachPod(attachment) => {
                self.attachments.detach(&attachment, &mut self.effects)
            }
            Request::CheckPod(attachment) => attachments::check(&attachment, &self.effects),
            Request::ListPods => attachments::list(&self.effects.pods),
            _ => ApiError::new(ErrorKind::Internal, "the control loop has no such request").into(),
        };
        self.effects.replies.send(reply, answer);
    }

    /// Returns whether a snapshot is published that is not in force, or something waits for one.
    fn is_publishing(&self) -> bool {
        let Effects { ports, pods, .. } = &self.effects;
        let mut waiting = pods.iter().filter_map(|attached| attached.waiting.as_ref());
        ports.is_waiting()
            || waiting.any(|waiting| waiting.published.is_some())
            || self.bookkeeping.is_waiting()
    }

    fn end(mut self) {
        self.effects.ports.end_flow_offload(FlowOffload::Off);
        // Ends the source's events.
        self.effects.input.from = Source::Nothing;
        self.signal(&Signal::End);
        self.effects.replies.flush();
    }
}
