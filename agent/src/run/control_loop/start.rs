//! Starts the control loop, in an order in which nothing is ever open without its policies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use control::{Control, Scope};
use snapshot::ServiceMaker;
use socket_policy::SocketPolicy;

use super::attachments::Attachments;
use super::everywhere::Everywhere;
use super::host_port::{self, HostPort};
use super::kernel_addresses::KernelAddresses;
use super::kernel_rules::KernelRules;
use super::liveness::Liveness;
use super::names::Answers;
use super::node_policies::Publication;
use super::policy_log::PolicyLog;
use super::ports::{Change, Ports, PuntLink};
use super::socket_policies::SocketPoliciesReconciler;
use super::uplink::UplinkPort;
use super::warnings::WarningSchedule;
use super::{ControlLoop, TICK, source};
use crate::config::Enforcer;
use crate::run::error::StartError;
use crate::run::events::Event;
use crate::run::journal::Journal;
use crate::run::kernel::{Completion, HostNetwork, Interfaces, Operation, Programs};
use crate::run::names::PendingAnswer;
use crate::run::owners::Owners;
use crate::run::port::{ManagedPort, State};
use crate::run::records::Records;
use crate::run::shared_status::SharedStatus;
use crate::run::source::{API_SERVER, ClusterRecord, Reading, Source, SourceInfo, StateWriter};

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
        let state_writer = match source {
            Source::Nothing => None,
            _ => Some(StateWriter::start(&config.state_dir)?),
        };
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
            control.enforce_host_egress();
        }
        let kernel_rules = KernelRules::start(&shared, &source_info, &*interfaces)?;
        let network = |is_wanted: bool| match is_wanted {
            true => interfaces.host_network().map(Some).map_err(StartError::Failed),
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
        let (owners, has_owners) = Owners::open(&shared.config.state_dir);
        let history = Journal::of(&shared.config)
            .map(|it| StateWriter::start_history(&it.folder, it.history_bytes()))
            .transpose()?;
        let policy_log = PolicyLog::new(Arc::clone(&shared.policies));
        let mut started = Self {
            control,
            services: match shared.config.host_port {
                true => ServiceMaker::with_own_processes(),
                false => ServiceMaker::default(),
            },
            liveness: Liveness::new(&shared.switch),
            attachments: Attachments::new(records, shared.config.attach_timeout),
            shared,
            events,
            received,
            early: VecDeque::new(),
            source,
            source_info,
            initial_sync: asks.then(source::Initial::default),
            state_writer,
            history,
            cluster: None,
            owners,
            reports: Default::default(),
            warnings: WarningSchedule::new(Instant::now()),
            publication: Publication::new(Instant::now()),
            everywhere: Everywhere::new(Instant::now()),
            reading: 0,
            skipped: Default::default(),
            faults: Default::default(),
            ports,
            host: None,
            uplink: None,
            kernel_addresses: KernelAddresses::new(Instant::now()),
            kernel_rules,
            socket_policies,
            health_checks: Default::default(),
            publications: Default::default(),
            policy_log,
            status_publisher: Default::default(),
            snapshots: Default::default(),
            replies: Default::default(),
            answers: Answers::new(answers),
            next_check: Instant::now(),
        };
        if !has_owners && !readings.is_empty() {
            started.take_former();
        }
        readings.into_iter().for_each(|reading| started.take_manifests(reading));
        if asks {
            started.take_saved(cluster, refused);
        }
        started.restore_names();
        started.first_snapshot()?;
        if let Err(error) = started.open_ports(of_host, of_uplink) {
            started.ports.request(Operation::ReleaseUplink);
            return Err(error);
        }
        Ok(started)
    }

    /// Puts the first snapshot in force on every worker, before there is any port.
    fn first_snapshot(&mut self) -> Result<(), StartError> {
        self.ports.changed(Change::Snapshot);
        self.publish_changes();
        if self.own_object().is_none() && matches!(self.source, Source::Manifests(_)) {
            let node = &self.shared.config.node_name;
            tracing::warn!(
                "the manifests have no Node {node}: its addresses are unknown until it appears"
            );
        }
        self.wait_in_force("the workers did not take over the first snapshot")
    }

    fn open_ports(&mut self, of_host: Network, of_uplink: Network) -> Result<(), StartError> {
        self.ports.start_flow_offload();
        self.kernel_addresses.read(&self.ports);
        if let Some(network) = of_host {
            let pods = &self.attachments.pods;
            let has_uplink = of_uplink.is_some();
            let config = &self.shared.config;
            let wanted = host_port::wanted(config, &self.control.view(), pods, has_uplink);
            let events = self.events.clone();
            self.host = Some(HostPort::start(network, wanted, events, &mut self.ports)?);
        }
        if let Some(network) = of_uplink {
            self.start_uplink(network)?;
        }
        self.wait_for_ports();
        let failed = |what: &str, port: &ManagedPort| match &port.state {
            State::Failed(why) => Err(StartError::Failed(format!("{what}: {why}"))),
            State::Opening(_) | State::Open(_) => Ok(()),
        };
        self.host.as_ref().map_or(Ok(()), |host| failed("host port", &host.port))?;
        self.uplink.as_ref().map_or(Ok(()), |uplink| failed("uplink", &uplink.port))?;
        self.publish_changes();
        if !self.kernel_rules.enforces_alone() {
            let own = self.own_addresses();
            let (attachments, mut effects) = self.attachments();
            attachments.take_up(&own, &mut effects)?;
            self.wait_for_ports();
            self.ports.changed(Change::Snapshot);
            self.publish_changes();
            self.wait_in_force("the workers did not take over the pods")?;
            self.ports.bring_up();
        }
        self.host.iter().for_each(|host| host.programmer.wait(PROGRAMMING));
        self.kernel_rules.wait(PROGRAMMING);
        Ok(())
    }

    fn start_uplink(&mut self, mut network: Box<dyn HostNetwork>) -> Result<(), StartError> {
        let config = &self.shared.config.network;
        let Some(mut interface) = config.uplink.clone() else { return Ok(()) };
        if config.finds_uplink() {
            let own = self.own_object().map_or_else(Vec::new, |node| node.addresses.clone());
            interface = network
                .find_uplink(&own)
                .map_err(|error| StartError::Failed(format!("uplink: {error}")))?;
        }
        let events = self.events.clone();
        self.uplink = Some(UplinkPort::start(interface, network, events, &mut self.ports)?);
        Ok(())
    }

    /// Waits until requested ports are open and the kernel's addresses are known.
    fn wait_for_ports(&mut self) {
        let deadline = Instant::now() + OPENING;
        loop {
            for (ticket, error) in self.ports.take_refused() {
                self.completed(Completion::Opened { ticket, result: Err(error) });
            }
            let is_reading = self.kernel_addresses.is_reading();
            let is_starting = matches!(self.ports.punt_link, PuntLink::Starting(_));
            let waits = is_reading || is_starting || !self.ports.requests.is_empty();
            if !waits || Instant::now() >= deadline {
                return;
            }
            self.shared.beat();
            match self.received.recv_timeout(TICK) {
                Ok(Event::Completed(all)) => all.into_iter().for_each(|it| self.completed(it)),
                Ok(event) => self.early.push_back(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn wait_in_force(&self, failure: &str) -> Result<(), StartError> {
        match self.shared.switch.wait_in_force(self.publications.generation, IN_FORCE) {
            true => Ok(()),
            false => Err(StartError::Failed(failure.to_owned())),
        }
    }
}
