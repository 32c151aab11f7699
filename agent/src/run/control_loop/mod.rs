//! The control loop: applies all changes to the switch, one after the other.

mod attach;
mod flow_offload;
mod health_checks;
mod host_firewall;
mod host_port;
mod kernel_filter;
mod masquerade;
mod nftables;
mod ports;
mod publish_status;
mod redirects;
mod reports;
mod source;
mod uplink;

pub(super) use publish_status::NFTABLES;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ::nftables::Failsafe;
use control::{Control, Scope, View};
use dataplane::port::PortGone;
use dataplane::{PortId, Switch, Underlay};

use super::durations::Published;
use super::kernel::{InterfaceEvent, Interfaces, Programming};
use super::pods::{PodPort, Pods};
use super::records::Records;
use super::shared_status::{FlowOffload, LostPort, SharedStatus};
use super::source::{API_SERVER, Source, SourceInfo, StateWriter};
use super::{Event, StartError};
use crate::config::{Enforcer, Masquerade};
use local_api::{Answer, ApiError, AttachPod, ErrorKind, Request};
use renderer::{NodePort, PortRole, ServiceMaker, snapshot};

/// State of the control loop.
pub(super) struct ControlLoop {
    shared: Arc<SharedStatus>,
    switch: Arc<Switch>,
    interfaces: Box<dyn Interfaces>,
    events: Sender<Event>,
    received: Receiver<Event>,
    control: Control,
    services: ServiceMaker,
    /// Sends events until it is dropped.
    source: Source,
    source_info: SourceInfo,
    /// What the API server reports before every kind is listed.
    initial_sync: Option<source::Initial>,
    state_writer: Option<StateWriter>,
    reports: reports::Reports,
    records: Records,
    pods: Pods,
    /// Requested attachments that were not started yet.
    asked_for: VecDeque<(AttachPod, Sender<Answer>)>,
    host: Option<host_port::HostPort>,
    uplink: Option<uplink::UplinkPort>,
    punt: Option<flow_offload::PuntPort>,
    masquerade: Option<masquerade::MasqueradeReconciler>,
    kernel_filter: Option<kernel_filter::KernelFilterReconciler>,
    nftables: Option<nftables::NftablesReconciler>,
    health_checks: health_checks::HealthChecks,
    host_firewall: Option<host_firewall::HostFirewallReconciler>,
    /// The kernel's own addresses, and whether they may have changed.
    kernel_addresses: Vec<IpAddr>,
    follows_addresses: bool,
    redirects: Option<redirects::RedirectReconciler>,
    /// Interfaces to switch on, with the generation that has to be in force before.
    to_bring_up: Vec<(u64, String)>,
    /// Generation of the last snapshot published.
    generation: u64,
    /// Snapshots that are not in force yet.
    published: Published,
    /// When the changes of this round began to be taken.
    round_began: Instant,
    /// Reports of workers that were fetched but not handled yet.
    gone: VecDeque<(PortId, PortGone)>,
    lost: VecDeque<LostPort>,
    /// Number of the last reading of the manifests.
    reading: u64,
    skipped: std::collections::BTreeMap<String, usize>,
    faults: source::Faults,
    workers: Vec<WorkerCheck>,
    next_check: Instant,
    /// When the source last responded.
    source_seen: Instant,
}

/// Progress of a worker.
struct WorkerCheck {
    rounds: u64,
    seen: Instant,
}

/// Interval of fetching the workers' reports.
const TICK: Duration = Duration::from_millis(100);
/// The same while an attachment waits for a snapshot to be in force.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Interval of liveness checks and port retries.
const CHECK: Duration = Duration::from_secs(1);
/// A worker without a round for this long has stalled; it makes four rounds a second when idle.
const LONGEST_WORKER_ROUND: Duration = Duration::from_secs(5);
/// A source that does not respond for this long is stuck.
const LONGEST_READING: Duration = Duration::from_secs(30);
/// Pause before a failed port is opened again.
const AGAIN: Duration = Duration::from_secs(5);
/// Upper bound on the time for taking events before their effects are published.
const LONGEST_TAKING: Duration = Duration::from_millis(20);
/// Upper bound on the time for starting attachments in one round.
const LONGEST_ATTACHING: Duration = Duration::from_millis(5);
/// Lost ports shown in `status`.
const LOST: usize = 16;
/// How long a lost port is shown that is not restored.
const LOST_FOR: Duration = Duration::from_secs(600);

impl ControlLoop {
    pub(super) fn new(
        shared: Arc<SharedStatus>,
        interfaces: Box<dyn Interfaces>,
        source: Source,
        (events, received): (Sender<Event>, Receiver<Event>),
    ) -> Result<Self, StartError> {
        let config = &shared.config;
        let mut source_info = SourceInfo::default();
        (source_info.kind, source_info.place) = match &source {
            Source::Nothing => ("nothing", String::new()),
            Source::Manifests(_) => {
                let paths = config.manifests.iter().map(|path| path.display().to_string());
                ("manifests", paths.collect::<Vec<_>>().join(", "))
            }
            Source::ApiServer(api_server) => (API_SERVER, api_server.server.clone()),
        };
        let asks = matches!(source, Source::ApiServer(_));
        let state_writer = if asks { Some(StateWriter::start(&config.state_dir)?) } else { None };
        let records = Records::open(&shared.config.state_dir)
            .map_err(|error| StartError::Failed(format!("state-dir: {error}")))?;
        let switch = Arc::clone(&shared.switch);
        let mut control = Control::new(Scope::Node(shared.config.node_name.as_str().into()));
        if shared.config.enforcer == Enforcer::Nftables {
            control.list_peer_sets();
        }
        let check = || WorkerCheck { rounds: 0, seen: Instant::now() };
        Ok(Self {
            control,
            services: match shared.config.host_port {
                true => ServiceMaker::with_own_processes(),
                false => ServiceMaker::default(),
            },
            workers: switch.counters().map(|_| check()).collect(),
            switch,
            shared,
            interfaces,
            events,
            received,
            source,
            source_info,
            initial_sync: asks.then(source::Initial::default),
            state_writer,
            reports: reports::Reports::default(),
            records,
            pods: Pods::default(),
            asked_for: VecDeque::new(),
            host: None,
            uplink: None,
            punt: None,
            masquerade: None,
            kernel_filter: None,
            nftables: None,
            health_checks: health_checks::HealthChecks::default(),
            host_firewall: None,
            kernel_addresses: Vec::new(),
            follows_addresses: true,
            redirects: None,
            to_bring_up: Vec::new(),
            generation: 0,
            published: Published::default(),
            round_began: Instant::now(),
            gone: VecDeque::new(),
            lost: VecDeque::new(),
            reading: 0,
            skipped: std::collections::BTreeMap::new(),
            faults: source::Faults::default(),
            next_check: Instant::now(),
            source_seen: Instant::now(),
        })
    }

    /// Puts the first snapshot in force on every worker, before there is any port.
    pub(super) fn first_snapshot(&mut self, patience: Duration) -> Result<(), StartError> {
        self.control.commit();
        let node = self.shared.config.node_name.as_str();
        let is_known = self.control.view().nodes.contains_key(node);
        if !is_known && matches!(self.source, Source::Manifests(_)) {
            tracing::warn!(
                "the manifests have no Node {node}: its addresses are unknown until it appears"
            );
        }
        self.publish();
        if self.switch.wait_in_force(self.generation, patience) {
            return Ok(());
        }
        Err(StartError::Failed("the workers did not take over the first snapshot".to_owned()))
    }

    /// Runs the loop until [`Event::Stop`].
    pub(super) fn run(mut self) {
        loop {
            self.shared.beat();
            let rest = match self.is_publishing() {
                _ if !self.asked_for.is_empty() => Duration::ZERO,
                true => SHORT_TICK,
                false => TICK,
            };
            let mut next = match self.received.recv_timeout(rest) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut manifests = None;
            let mut received = false;
            let mut stop = false;
            let began = Instant::now();
            self.round_began = began;
            while let Some(event) = next {
                match event {
                    // Only the newest reading counts.
                    Event::Manifests(reading) => manifests = Some(reading),
                    Event::Source(event, _slot) => {
                        self.source_event(event);
                        received = true;
                    }
                    Event::Request(request, reply) => self.request(request, reply),
                    Event::SessionRules(pod, reply) => {
                        let view = self.control.view();
                        let is_known = pod.as_ref().is_none_or(|pod| view.pods.contains_key(pod));
                        let source = || self.control.session_rule_source(pod.as_ref());
                        // The client may have disconnected.
                        let _ = reply.send(is_known.then(source));
                    }
                    // The thread that asked may have ended.
                    Event::Objects(reply) => drop(reply.send(self.control.objects().collect())),
                    Event::Interface(event) => {
                        self.follows_addresses |=
                            matches!(event, InterfaceEvent::Routes | InterfaceEvent::Missed);
                        self.path_event(&event);
                        self.interface_event(&event);
                        self.verify_kernel(&event);
                    }
                    Event::HostPort(mac) => self.host_port_event(mac),
                    Event::NextHops(hops) => self.next_hops_event(hops),
                    Event::Stop => stop = true,
                }
                // A constant flow of events must not delay the next snapshot.
                next = match began.elapsed() < LONGEST_TAKING {
                    true => self.received.try_recv().ok(),
                    false => None,
                };
            }
            if stop {
                break;
            }
            if let Some(reading) = manifests {
                self.take_manifests(reading);
                received = true;
            }
            received |= self.end_initial_sync_if_late();
            if received {
                self.commit();
            }
            self.attach_some();
            self.look_after_saving();
            self.write_reports();
            self.fetch_gone();
            if Instant::now() >= self.next_check {
                self.next_check = Instant::now() + CHECK;
                self.check_workers();
                self.check_flow_offload();
                self.open_failed_ports();
                let (view, node) = (self.control.view(), &self.shared.config.node_name);
                self.health_checks.reconcile(&view, node, &self.shared);
                self.forget_losses();
            }
            for duration in self.published.take(self.switch.generation()) {
                let in_force = self.shared.durations.in_force.with_label_values::<&str>(&[]);
                in_force.observe(duration.as_secs_f64());
            }
            self.bring_up_ports();
            if self.follow_kernel_addresses() {
                self.publish();
            }
            self.reconcile_attachments();
            self.publish_programming();
        }
        self.end();
    }

    /// Commits the events taken; publishes a snapshot if the view changed.
    fn commit(&mut self) {
        if self.control.commit().is_some() {
            self.follow_nodes();
            self.publish();
        } else {
            self.publish_status();
        }
    }

    /// Updates the host port if the cluster nodes changed.
    fn follow_nodes(&mut self) {
        let nodes = Arc::clone(&self.control.view().nodes);
        let made_for = self.host.as_ref().and_then(|host| host.made_for.as_ref());
        if made_for.is_some_and(|known| Arc::ptr_eq(known, &nodes)) {
            return;
        }
        self.update_host_port();
    }

    /// Commits, and publishes a snapshot also if only ports changed.
    fn commit_ports(&mut self) {
        self.control.commit();
        self.update_host_port();
        self.publish();
    }

    fn publish(&mut self) {
        self.follow_kernel_addresses();
        self.generation += 1;
        let view = self.control.view();
        let mut ports = Vec::new();
        if let Some(host) = &self.host
            && let PodPort::Open { id, mtu, .. } = host.port
        {
            let port = NodePort::new(id, PortRole::Host);
            ports.push(NodePort { mac: Some(host.mac), mtu, ..port });
        }
        for attached in self.pods.counting() {
            if let Some(id) = attached.port_id() {
                let role = PortRole::Pod(attached.key.clone(), attached.pod.addresses.clone());
                let mac = Some(attached.pod.mac.0);
                ports.push(NodePort {
                    mac,
                    mtu: attached.port.mtu(),
                    ..NodePort::named(id, role, Arc::clone(&attached.name))
                });
            }
        }
        ports.extend(self.uplink_port());
        let node = self.shared.config.node_name.clone();
        let node_context = self.node_context(&view);
        let services = Arc::clone(&node_context.services);
        let snapshot = Arc::new(snapshot(&view, &node, node_context, self.generation, &ports));
        let departed = self.control.take_departed();
        self.switch.depart(departed.into_iter().map(Into::into));
        self.prepare_flow_offload(&snapshot);
        self.switch.publish(&snapshot);
        self.published.add(self.generation, self.round_began);
        // Only after the snapshot that handles these packets.
        self.set_uplink_filter(&services);
        self.program_kernel(&view);
        self.health_checks.reconcile(&view, &node, &self.shared);
        tracing::debug!("snapshot {} with {} ports", self.generation, ports.len());
        self.publish_status_with(snapshot);
    }

    /// Starts the threads that program the kernel, except for the host port's.
    pub(super) fn start_programming(&mut self) -> Result<(), StartError> {
        if self.shared.config.enforcer == Enforcer::Nftables {
            let nftables = nftables::NftablesReconciler::start(&self.shared.config)?;
            nftables.reconcile(&self.control.view(), self.source_info.decides());
            self.nftables = Some(nftables);
        }
        let network = self.interfaces.host_network().map_err(StartError::Failed)?;
        let host_firewall = host_firewall::HostFirewallReconciler::start(network, self.failsafe())?;
        if self.source_info.decides() {
            host_firewall.reconcile(&self.control.view());
        }
        self.host_firewall = Some(host_firewall);
        if !self.shared.config.host_port {
            return Ok(());
        }
        let network = || self.interfaces.host_network().map_err(StartError::Failed);
        if self.shared.config.network.masquerade == Masquerade::Kernel {
            self.masquerade = Some(masquerade::MasqueradeReconciler::start(network()?)?);
        }
        self.kernel_filter = Some(kernel_filter::KernelFilterReconciler::start(network()?)?);
        self.redirects = Some(redirects::RedirectReconciler::start(network()?)?);
        Ok(())
    }

    /// Waits until every part of the kernel's configuration was tried once.
    pub(super) fn wait_for_kernel(&self, timeout: Duration) {
        self.host.iter().for_each(|it| it.programmer.wait(timeout));
        self.masquerade.iter().for_each(|it| it.wait(timeout));
        self.kernel_filter.iter().for_each(|it| it.wait(timeout));
        self.redirects.iter().for_each(|it| it.wait(timeout));
        self.nftables.iter().for_each(|it| it.wait(timeout));
    }

    /// Sets the desired state of the kernel's configuration; does not wait for it.
    fn program_kernel(&mut self, view: &Arc<View>) {
        if let Some(host_firewall) = &self.host_firewall
            && self.source_info.decides()
        {
            host_firewall.reconcile(view);
        }
        if let Some(nftables) = &self.nftables {
            nftables.reconcile(view, self.source_info.decides());
        }
        if let Some(masquerade) = &mut self.masquerade {
            masquerade.reconcile(view, &self.shared.config.node_name);
        }
        if let (Some(filter), Some(_)) = (&mut self.kernel_filter, &self.host) {
            let config = &self.shared.config;
            let has_uplink = self.uplink.is_some();
            filter.reconcile(view, &config.node_name, &config.network.underlay, has_uplink);
        }
        let own = self.own_addresses();
        if let (Some(redirects), Some(_)) = (&mut self.redirects, &self.host) {
            redirects.reconcile(self.services.redirects(), own);
        }
    }

    /// Schedules a check of the host port after interfaces or routes changed.
    fn verify_kernel(&self, event: &InterfaceEvent) {
        self.nftables.iter().for_each(|it| it.verify());
        let concerns = matches!(
            event,
            InterfaceEvent::Gone(_) | InterfaceEvent::Routes | InterfaceEvent::Missed
        );
        if let Some(host) = self.host.as_ref().filter(|_| concerns) {
            host.programmer.verify();
        }
    }

    /// The ports that host firewalls leave open: the API server's as the switch knows it, and those of
    /// tunnels, beside the fixed ones.
    fn failsafe(&self) -> Failsafe {
        let mut failsafe = Failsafe::default();
        if self.source_info.kind == API_SERVER {
            failsafe.tcp_out.insert(port_of(&self.source_info.place));
        }
        if let Underlay::Overlay(overlay) = &self.shared.config.network.underlay
            && self.shared.config.network.uplink.is_some()
        {
            failsafe.udp_in.insert(overlay.port);
            failsafe.udp_out.insert(overlay.port);
        }
        failsafe
    }

    /// State of the kernel's configuration, by part.
    fn programming(&self) -> Vec<Programming> {
        let host = self.host.iter().map(|it| it.programmer.programming());
        let masquerade = self.masquerade.iter().map(|it| it.programming());
        let redirects = self.redirects.iter().map(|it| it.programming());
        let filter = self.kernel_filter.iter().map(|it| it.programming());
        let nftables = self.nftables.iter().map(|it| it.programming());
        let firewall = self.host_firewall.iter().map(|it| it.programming());
        let ours = host.chain(masquerade).chain(filter).chain(redirects);
        ours.chain(nftables).chain(firewall).collect()
    }

    /// The cluster node's addresses beyond those of its object.
    fn node_addresses(&self) -> Vec<IpAddr> {
        let gateways = self.host.iter().flat_map(|host| &host.config.gateways);
        let configured = self.shared.config.node_addresses.iter().chain(gateways);
        configured.chain(&self.kernel_addresses).copied().collect()
    }

    /// All of the cluster node's addresses.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let view = self.control.view();
        let object = view.nodes.get(self.shared.config.node_name.as_str());
        let mut addresses = self.node_addresses();
        addresses.extend(object.iter().flat_map(|node| node.addresses.iter().copied()));
        addresses
    }

    fn request(&mut self, request: Request, reply: Sender<Answer>) {
        let answer = match request {
            Request::AttachPod(_) if self.nftables.is_some() => {
                let why = "podgate runs with enforcer nftables: another CNI plugin attaches pods";
                ApiError::new(ErrorKind::NotReady, why).into()
            }
            Request::AttachPod(pod) => {
                self.asked_for.push_back((pod, reply));
                return;
            }
            Request::DetachPod(attachment) => {
                self.attach_now(&attachment);
                self.detach(&attachment)
            }
            Request::CheckPod(attachment) => {
                self.attach_now(&attachment);
                self.check(&attachment)
            }
            Request::ListPods => {
                let settled = self.pods.iter().filter(|attached| attached.waiting.is_none());
                Answer::result(&settled.map(|attached| &attached.pod).collect::<Vec<_>>())
            }
            _ => ApiError::new(ErrorKind::Internal, "asked in the wrong place").into(),
        };
        // The client may have disconnected.
        let _ = reply.send(answer);
    }

    /// Reports workers that make no progress, and a source that is stuck, to `/healthz`.
    fn check_workers(&mut self) {
        let now = Instant::now();
        for (check, counters) in self.workers.iter_mut().zip(self.switch.counters()) {
            let rounds = counters.busy_rounds.value() + counters.idle_rounds.value();
            if rounds != check.rounds {
                *check = WorkerCheck { rounds, seen: now };
            }
        }
        let stalled = self.workers.iter().any(|check| now - check.seen > LONGEST_WORKER_ROUND);
        self.shared.set_stalled(stalled);
        if self.source.responds() {
            self.source_seen = now;
        }
        self.shared.set_source_stuck(now - self.source_seen > LONGEST_READING);
    }

    fn end(mut self) {
        if let Some(redirects) = self.redirects.take() {
            redirects.release();
        }
        self.end_flow_offload(FlowOffload::Off);
        if let Err(error) = self.interfaces.release_uplink() {
            tracing::warn!("uplink: {error}");
        }
        // Ends the source's events.
        self.source = Source::Nothing;
        if let Some(state_writer) = self.state_writer.take() {
            state_writer.finish(&self.control);
        }
        let ending: Answer = ApiError::new(ErrorKind::NotReady, "podgate is ending").into();
        for attached in self.pods.iter_mut() {
            if let Some(waiting) = attached.waiting.take() {
                waiting.answer(&ending);
            }
        }
        for (_, reply) in self.asked_for.drain(..) {
            let _ = reply.send(ending.clone());
        }
        // The port itself ends with the workers: removing it would end the sessions of the kernel's
        // connections, which continue after a restart.
        if let Some(host) = &self.host
            && matches!(host.port, PodPort::Open { .. })
            && let Err(error) = self.interfaces.release_host_port(&host.config.switch_interface)
        {
            tracing::warn!("host port: {error}");
        }
    }
}

/// The port in the URL of an API server.
fn port_of(url: &str) -> u16 {
    let authority = url.split("://").last().and_then(|rest| rest.split('/').next());
    let port = authority.and_then(|authority| authority.rsplit(':').next()?.parse().ok());
    port.unwrap_or(443)
}
