//! The control loop: everything that changes the switch happens here, one thing after the other.

mod attach;
mod host_port;
mod kernel_filter;
mod masquerade;
mod ports;
mod redirects;
mod reports;
mod source;
mod telling;
mod uplink;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use control::{Control, Scope, View};
use dataplane::port::PortGone;
use dataplane::{PortId, Switch};

use super::board::{Board, LostPort};
use super::kernel::{InterfaceEvent, Interfaces, Programming};
use super::pods::{PodPort, Pods};
use super::records::Records;
use super::source::{API_SERVER, Saver, Source, SourceInfo};
use super::{Event, StartError};
use crate::config::Masquerade;
use local_api::{Answer, ApiError, AttachPod, ErrorKind, Request};
use renderer::{NodePort, PortRole, ServiceMaker, snapshot};

/// The loop's own state; nobody else touches it.
pub(super) struct ControlLoop {
    board: Arc<Board>,
    switch: Arc<Switch>,
    interfaces: Box<dyn Interfaces>,
    events: Sender<Event>,
    received: Receiver<Event>,
    control: Control,
    services: ServiceMaker,
    /// Tells for as long as the loop lives.
    source: Source,
    source_info: SourceInfo,
    /// What the API server reports before every kind is listed.
    initial_sync: Option<source::Initial>,
    saver: Option<Saver>,
    reports: reports::Reports,
    records: Records,
    pods: Pods,
    /// Attachments that nothing was done for yet.
    asked_for: VecDeque<(AttachPod, Sender<Answer>)>,
    host: Option<host_port::HostPort>,
    uplink: Option<uplink::UplinkPort>,
    masquerade: Option<masquerade::MasqueradeReconciler>,
    kernel_filter: Option<kernel_filter::KernelFilterReconciler>,
    /// The kernel's own addresses, and whether they may be others by now.
    kernel_addresses: Vec<IpAddr>,
    follows_addresses: bool,
    redirects: Option<redirects::RedirectReconciler>,
    /// Interfaces to switch on once this generation is in force.
    to_bring_up: Vec<(u64, String)>,
    /// Of the last snapshot published.
    generation: u64,
    /// Reports of workers that were fetched but not handled yet.
    gone: VecDeque<(PortId, PortGone)>,
    lost: VecDeque<LostPort>,
    /// Number of the last reading of the manifests.
    reading: u64,
    skipped: std::collections::BTreeMap<String, usize>,
    faults: source::Faults,
    workers: Vec<WorkerCheck>,
    next_check: Instant,
    /// When the source's thread was last found free.
    source_seen: Instant,
}

/// When a worker was last seen to go round.
struct WorkerCheck {
    rounds: u64,
    seen: Instant,
}

/// How often workers' reports are fetched.
const TICK: Duration = Duration::from_millis(100);
/// How long the loop rests while somebody waits for workers to take over a snapshot.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// How often it is looked whether workers go round, and failed ports are opened again.
const CHECK: Duration = Duration::from_secs(1);
/// A worker goes round at least four times a second.
const LONGEST_WORKER_ROUND: Duration = Duration::from_secs(5);
/// Reading manifests may take so long.
const LONGEST_READING: Duration = Duration::from_secs(30);
/// When a port that failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Events that come all the time are worked in at least this often.
const LONGEST_TAKING: Duration = Duration::from_millis(20);
/// Pods that are asked for at once are attached for so long at a time; others come in between.
const LONGEST_ATTACHING: Duration = Duration::from_millis(5);
/// Lost ports remembered for people.
const LOST: usize = 16;
/// How long one is remembered that does not come back.
const LOST_FOR: Duration = Duration::from_secs(600);

impl ControlLoop {
    pub(super) fn new(
        board: Arc<Board>,
        interfaces: Box<dyn Interfaces>,
        source: Source,
        (events, received): (Sender<Event>, Receiver<Event>),
    ) -> Result<Self, StartError> {
        let config = &board.config;
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
        let saver = if asks { Some(Saver::start(&config.state_dir)?) } else { None };
        let records = Records::open(&board.config.state_dir)
            .map_err(|error| StartError::Failed(format!("state-dir: {error}")))?;
        let switch = Arc::clone(&board.switch);
        let check = || WorkerCheck { rounds: 0, seen: Instant::now() };
        Ok(Self {
            control: Control::new(Scope::Node(board.config.node_name.as_str().into())),
            services: match board.config.host_port {
                true => ServiceMaker::with_own_processes(),
                false => ServiceMaker::default(),
            },
            workers: switch.counters().map(|_| check()).collect(),
            switch,
            board,
            interfaces,
            events,
            received,
            source,
            source_info,
            initial_sync: asks.then(source::Initial::default),
            saver,
            reports: reports::Reports::default(),
            records,
            pods: Pods::default(),
            asked_for: VecDeque::new(),
            host: None,
            uplink: None,
            masquerade: None,
            kernel_filter: None,
            kernel_addresses: Vec::new(),
            follows_addresses: true,
            redirects: None,
            to_bring_up: Vec::new(),
            generation: 0,
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
        let node = self.board.config.node_name.as_str();
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

    /// Goes round until the end.
    pub(super) fn run(mut self) {
        loop {
            self.board.beat();
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
            let mut told = false;
            let mut stop = false;
            let began = Instant::now();
            while let Some(event) = next {
                match event {
                    // Of several versions only the last matters.
                    Event::Manifests(reading) => manifests = Some(reading),
                    Event::Source(event, _slot) => {
                        self.source_event(event);
                        told = true;
                    }
                    Event::Request(request, reply) => self.request(request, reply),
                    Event::SessionRules(pod, reply) => {
                        let view = self.control.view();
                        let is_known = pod.as_ref().is_none_or(|pod| view.pods.contains_key(pod));
                        let source = || self.control.session_rule_source(pod.as_ref());
                        // Who has gone away meanwhile does not need the answer.
                        let _ = reply.send(is_known.then(source));
                    }
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
                // What is worked in is not to wait for what comes all the time.
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
                told = true;
            }
            told |= self.end_initial_sync_if_late();
            if told {
                self.commit();
            }
            self.attach_some();
            self.look_after_saving();
            self.write_reports();
            self.fetch_gone();
            if Instant::now() >= self.next_check {
                self.next_check = Instant::now() + CHECK;
                self.check_workers();
                self.open_failed_ports();
                self.forget_losses();
            }
            self.bring_up_ports();
            if self.follow_kernel_addresses() {
                self.publish();
            }
            self.reconcile_attachments();
            self.tell_programming();
        }
        self.end();
    }

    /// Works in what happened; a new snapshot follows if anything is different.
    fn commit(&mut self) {
        if self.control.commit().is_some() {
            self.follow_nodes();
            self.publish();
        } else {
            self.tell();
        }
    }

    /// Brings the host port in line with the cluster nodes, if these are others now.
    fn follow_nodes(&mut self) {
        let nodes = Arc::clone(&self.control.view().nodes);
        let made_for = self.host.as_ref().and_then(|host| host.made_for.as_ref());
        if made_for.is_some_and(|known| Arc::ptr_eq(known, &nodes)) {
            return;
        }
        self.update_host_port();
    }

    /// Works in what happened, and publishes although only ports may be different.
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
        let node = self.board.config.node_name.clone();
        let node_context = self.node_context(&view);
        let services = Arc::clone(&node_context.services);
        let snapshot = Arc::new(snapshot(&view, &node, node_context, self.generation, &ports));
        let departed = self.control.take_departed();
        self.switch.depart(departed.into_iter().map(Into::into));
        self.switch.publish(&snapshot);
        // What it now knows how to handle.
        self.set_uplink_filter(&services);
        self.program_kernel(&view);
        tracing::debug!("snapshot {} with {} ports", self.generation, ports.len());
        self.tell_with(snapshot);
    }

    /// Starts the threads that program the kernel. The host port's is started with the host port.
    pub(super) fn start_programming(&mut self) -> Result<(), StartError> {
        if !self.board.config.host_port {
            return Ok(());
        }
        let network = || self.interfaces.host_network().map_err(StartError::Failed);
        if self.board.config.network.masquerade == Masquerade::Kernel {
            self.masquerade = Some(masquerade::MasqueradeReconciler::start(network()?)?);
        }
        self.kernel_filter = Some(kernel_filter::KernelFilterReconciler::start(network()?)?);
        self.redirects = Some(redirects::RedirectReconciler::start(network()?)?);
        Ok(())
    }

    /// Waits until everything the kernel needs was tried once, so that the start ends with it.
    pub(super) fn wait_for_kernel(&self, timeout: Duration) {
        self.host.iter().for_each(|it| it.programmer.wait(timeout));
        self.masquerade.iter().for_each(|it| it.wait(timeout));
        self.kernel_filter.iter().for_each(|it| it.wait(timeout));
        self.redirects.iter().for_each(|it| it.wait(timeout));
    }

    /// Hands the kernel's side what follows from the objects; this never waits.
    fn program_kernel(&mut self, view: &View) {
        if let Some(masquerade) = &mut self.masquerade {
            masquerade.reconcile(view, &self.board.config.node_name);
        }
        if let (Some(filter), Some(_)) = (&mut self.kernel_filter, &self.host) {
            let config = &self.board.config;
            let has_uplink = self.uplink.is_some();
            filter.reconcile(view, &config.node_name, &config.network.underlay, has_uplink);
        }
        let own = self.own_addresses();
        if let (Some(redirects), Some(_)) = (&mut self.redirects, &self.host) {
            redirects.reconcile(self.services.redirects(), own);
        }
    }

    /// Has the host port looked at after interfaces or routes changed.
    fn verify_kernel(&self, event: &InterfaceEvent) {
        let concerns = matches!(
            event,
            InterfaceEvent::Gone(_) | InterfaceEvent::Routes | InterfaceEvent::Missed
        );
        if let Some(host) = self.host.as_ref().filter(|_| concerns) {
            host.programmer.verify();
        }
    }

    /// How far the kernel follows.
    fn programming(&self) -> Vec<Programming> {
        let host = self.host.iter().map(|it| it.programmer.programming());
        let masquerade = self.masquerade.iter().map(|it| it.programming());
        let redirects = self.redirects.iter().map(|it| it.programming());
        let filter = self.kernel_filter.iter().map(|it| it.programming());
        host.chain(masquerade).chain(filter).chain(redirects).collect()
    }

    /// The cluster node's addresses beyond those of its object.
    fn node_addresses(&self) -> Vec<IpAddr> {
        let gateways = self.host.iter().flat_map(|host| &host.config.gateways);
        let configured = self.board.config.node_addresses.iter().chain(gateways);
        configured.chain(&self.kernel_addresses).copied().collect()
    }

    /// All of the cluster node's addresses.
    fn own_addresses(&self) -> Vec<IpAddr> {
        let view = self.control.view();
        let object = view.nodes.get(self.board.config.node_name.as_str());
        let mut addresses = self.node_addresses();
        addresses.extend(object.iter().flat_map(|node| node.addresses.iter().copied()));
        addresses
    }

    fn request(&mut self, request: Request, reply: Sender<Answer>) {
        let answer = match request {
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
        // Who has gone away meanwhile does not need the answer.
        let _ = reply.send(answer);
    }

    /// A worker that does not go round any more takes its ports with it: `/healthz` says so.
    fn check_workers(&mut self) {
        let now = Instant::now();
        for (check, counters) in self.workers.iter_mut().zip(self.switch.counters()) {
            let rounds = counters.busy_rounds.value() + counters.idle_rounds.value();
            if rounds != check.rounds {
                *check = WorkerCheck { rounds, seen: now };
            }
        }
        let stalled = self.workers.iter().any(|check| now - check.seen > LONGEST_WORKER_ROUND);
        self.board.set_stalled(stalled);
        if self.source.responds() {
            self.source_seen = now;
        }
        self.board.set_source_stuck(now - self.source_seen > LONGEST_READING);
    }

    fn end(mut self) {
        if let Some(redirects) = self.redirects.take() {
            redirects.release();
        }
        if let Err(error) = self.interfaces.release_uplink() {
            tracing::warn!("uplink: {error}");
        }
        // Nobody is told anything more.
        self.source = Source::Nothing;
        if let Some(saver) = self.saver.take() {
            saver.finish(&self.control);
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
        // Its port ends with the workers: were it removed, the kernel's connections would be
        // forgotten, and not go on after a restart.
        if let Some(host) = &self.host
            && matches!(host.port, PodPort::Open { .. })
            && let Err(error) = self.interfaces.release_host_port(&host.config.switch_interface)
        {
            tracing::warn!("host port: {error}");
        }
    }
}
