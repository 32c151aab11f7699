//! Starts the control loop, in an order in which nothing is ever open without its policies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use control::{Control, Scope};
use snapshot::{ServiceMaker, SnapshotMaker};
use socket_policy::SocketPolicy;

use super::attachments::Attachments;
use super::bookkeeping::Bookkeeping;
use super::endpoints::EndpointPace;
use super::everywhere::Everywhere;
use super::health_checks::HealthChecks;
use super::host_port::{self, HostPort};
use super::input::Input;
use super::kernel_addresses::KernelAddresses;
use super::kernel_rules::{self, KernelRules};
use super::keys::Keys;
use super::liveness::Liveness;
use super::memory::Memory;
use super::names::Answers;
use super::node_policies::Publication;
use super::peers::Peers;
use super::ports::{Change, Ports, PuntLink};
use super::reconciler::{Effects, Reconciler};
use super::replies::Replies;
use super::reports::Reports;
use super::saving::Saving;
use super::socket_policies::SocketPoliciesReconciler;
use super::uplink::UplinkPort;
use super::warnings::WarningSchedule;
use super::{ControlLoop, TICK};
use crate::config::{Enforcer, SocketPolicies};
use crate::run::error::StartError;
use crate::run::events::Event;
use crate::run::kernel::{Completion, HostNetwork, Interfaces, Operation, Programs};
use crate::run::names::PendingAnswer;
use crate::run::pods::Pods;
use crate::run::port::{ManagedPort, PortStage};
use crate::run::records::Records;
use crate::run::shared_status::SharedStatus;
use crate::run::source::{ClusterRecord, Reading, Source};

/// Timeout until a snapshot of the start is in force.
const IN_FORCE: Duration = Duration::from_secs(30);
/// Longest wait of the start for ports to open; later ones are served as they open.
const OPENING: Duration = Duration::from_secs(30);
/// Longest wait of the start for the kernel's configuration; retries continue afterwards.
const PROGRAMMING: Duration = Duration::from_secs(3);

/// The kernel's network, for the host port and for the uplink.
type Network = Option<Box<dyn HostNetwork>>;

impl ControlLoop {
    /// Puts the first snapshot in force on every worker. Then opens the ports of the host, of the
    /// uplink, and of the pods that an earlier process had attached.
    pub(in crate::run) fn start(
        shared: Arc<SharedStatus>,
        interfaces: Box<dyn Interfaces>,
        (source, readings): (Source, Vec<Reading>),
        (cluster, refused): (ClusterRecord, Option<String>),
        (events, received): (Sender<Event>, Receiver<Event>),
        answers: Sender<(u64, PendingAnswer)>,
        socket_policies: Result<Option<SocketPolicy>, String>,
    ) -> Result<Self, StartError> {
        let config = &shared.config;
        let asks = matches!(source, Source::ApiServer(_));
        let input = Input::new(source, config);
        let records = Records::open(&config.state_dir)
            .map_err(|error| StartError::Failed(format!("state-dir: {error}")))?;
        let mut control = Control::new(Scope::Node(config.node_name.as_str().into()));
        if config.enforcer == Enforcer::Nftables {
            control.list_peer_sets();
        }
        let network = &config.network;
        control.permit_external_ips(network.external_ips.clone(), network.service_networks.clone());
        control.reply_to_denials(config.denied_reply);
        control.stage_policies(config.default_stage);
        if config.host_network_policies {
            control.enforce_host_network();
        }
        let socket_policies = SocketPoliciesReconciler::start(&shared, socket_policies)?;
        if config.host_network_policies && socket_policies.is_some() {
            control.enforce_host_sockets(kernel_rules::failsafe(config, &input.info));
        }
        let kernel_rules = KernelRules::start(&shared, &input.info, &*interfaces)?;
        let network = |is_wanted: bool| match is_wanted {
            true => interfaces.host_network().map(Some),
            false => Ok(None),
        };
        let of_host = network(config.host_port)?;
        let of_uplink = network(config.network.uplink.is_some())?;
        let completions = events.clone();
        let report = move |all: Vec<Completion>| {
            // The loop may have ended.
            let _ = completions.send(Event::Completed(all));
        };
        let ports = Ports::start(Arc::clone(&shared), interfaces, report)?;
        let (saving, has_owners) = Saving::start(&shared, &input.from)?;
        let now = Instant::now();
        let mut others: Vec<Box<dyn Reconciler + Send>> = vec![
            Box::new(saving),
            Box::new(Reports::default()),
            Box::new(WarningSchedule::new(now)),
            Box::new(Publication::new(now)),
            Box::new(Everywhere::new(now)),
            Box::new(HealthChecks::default()),
            Box::new(Peers::default()),
            Box::new(Keys::new(now)),
            Box::new(Liveness::new(&shared.switch)),
            Box::new(Memory::new(config.memory_limit.map(|limit| limit.0))),
        ];
        // Closed until there are rules, a pod would start without what they allow.
        let is_closed = config.socket_policies == SocketPolicies::Closed;
        let socket_rules =
            socket_policies.as_ref().filter(|_| is_closed).map(|sockets| sockets.mailbox());
        others.extend(socket_policies.map(|it| Box::new(it) as _));
        let mut started = Self {
            received,
            early: VecDeque::new(),
            attachments: Attachments::new(records, config.attach_timeout),
            host: None,
            uplink: None,
            kernel_addresses: KernelAddresses::new(now),
            kernel_rules,
            answers: Answers::new(answers),
            snapshots: SnapshotMaker::default(),
            node_ports: Arc::default(),
            endpoint_pace: EndpointPace::new(Instant::now()),
            bookkeeping: Bookkeeping::new(&shared),
            others,
            effects: Effects {
                events,
                control,
                input,
                services: match config.host_port {
                    true => ServiceMaker::with_own_processes(),
                    false => ServiceMaker::default(),
                },
                pods: Pods::default(),
                uid_faults: Vec::new(),
                ports,
                replies: Replies::default(),
                gateways: Vec::new(),
                kernel_addresses: Vec::new(),
                has_kernel_rules: false,
                generation: 0,
                socket_rules,
                shared,
            },
        };
        if !has_owners && !readings.is_empty() {
            started.take_former();
        }
        readings.into_iter().for_each(|reading| started.take_manifests(reading));
        if asks {
            started.take_saved(cluster, refused);
        }
        // The kernel's rules do not see DNS: there names mean nothing.
        let Effects { shared, control, .. } = &mut started.effects;
        if shared.config.enforcer == Enforcer::AfXdp {
            shared.names.restore(control);
        }
        started.first_snapshot()?;
        if let Err(error) = started.open_ports(of_host, of_uplink) {
            started.effects.ports.request(Operation::ReleaseUplink);
            return Err(error);
        }
        Ok(started)
    }

    /// Puts the first snapshot in force on every worker, before there is any port.
    fn first_snapshot(&mut self) -> Result<(), StartError> {
        self.effects.ports.changed(Change::Snapshot);
        self.publish_changes();
        if self.effects.own_object().is_none()
            && matches!(self.effects.input.from, Source::Manifests(_))
        {
            let node = &self.effects.shared.config.node_name;
            tracing::warn!(
                "the manifests have no Node {node}: its addresses are unknown until it appears"
            );
        }
        self.wait_in_force("the workers did not take over the first snapshot")
    }

    fn open_ports(&mut self, of_host: Network, of_uplink: Network) -> Result<(), StartError> {
        self.effects.ports.start_flow_offload();
        self.kernel_addresses.read(&self.effects.ports);
        if let Some(network) = of_host {
            let Effects { shared, control, pods, .. } = &self.effects;
            let has_uplink = of_uplink.is_some();
            let wanted = host_port::wanted(&shared.config, &control.view(), pods, has_uplink);
            self.host = Some(HostPort::start(network, wanted, &mut self.effects)?);
        }
        if let Some(network) = of_uplink {
            self.start_uplink(network)?;
        }
        self.wait_for_ports();
        let failed = |what: &str, port: &ManagedPort| match &port.state {
            PortStage::Failed(why) => Err(StartError::Failed(format!("{what}: {why}"))),
            PortStage::Opening(_) | PortStage::Open(_) => Ok(()),
        };
        self.host.as_ref().map_or(Ok(()), |host| failed("host port", &host.port))?;
        self.uplink.as_ref().map_or(Ok(()), |uplink| failed("uplink", &uplink.port))?;
        self.publish_changes();
        if !self.kernel_rules.enforces_alone() {
            self.attachments.take_up(&mut self.effects)?;
            self.wait_for_ports();
            self.effects.ports.changed(Change::Snapshot);
            self.publish_changes();
            self.wait_in_force("the workers did not take over the pods")?;
            self.effects.ports.bring_up();
        }
        self.host.iter().for_each(|host| host.programmer.wait(PROGRAMMING));
        self.kernel_rules.wait(PROGRAMMING);
        Ok(())
    }

    fn start_uplink(&mut self, mut network: Box<dyn HostNetwork>) -> Result<(), StartError> {
        let config = &self.effects.shared.config.network;
        let Some(mut interface) = config.uplink.clone() else { return Ok(()) };
        if config.finds_uplink() {
            let own =
                self.effects.own_object().map_or_else(Vec::new, |node| node.addresses.clone());
            interface = network
                .find_uplink(&own)
                .map_err(|error| StartError::Failed(format!("uplink: {error}")))?;
        }
        let events = self.effects.events.clone();
        self.uplink = Some(UplinkPort::start(interface, network, events, &mut self.effects.ports)?);
        Ok(())
    }

    /// Waits until requested ports are open and the kernel's addresses are known.
    fn wait_for_ports(&mut self) {
        let deadline = Instant::now() + OPENING;
        loop {
            for (ticket, error) in self.effects.ports.take_refused() {
                self.completed(Completion::Opened { ticket, result: Err(error) });
            }
            let is_reading = self.kernel_addresses.is_reading();
            let is_starting = matches!(self.effects.ports.punt_link, PuntLink::Starting(_));
            let waits = is_reading || is_starting || !self.effects.ports.requests.is_empty();
            if !waits || Instant::now() >= deadline {
                return;
            }
            self.effects.shared.beat();
            match self.received.recv_timeout(TICK) {
                Ok(Event::Completed(all)) => all.into_iter().for_each(|it| self.completed(it)),
                Ok(event) => self.early.push_back(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn wait_in_force(&self, failure: &str) -> Result<(), StartError> {
        match self.effects.shared.switch.wait_in_force(self.effects.generation, IN_FORCE) {
            true => Ok(()),
            false => Err(StartError::Failed(failure.to_owned())),
        }
    }
}
