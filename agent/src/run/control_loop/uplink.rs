//! The uplink: the port towards other nodes, and the next hops behind it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use control::{ClusterNode, View};
use dataplane::Routes;
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::services::Services;
use dataplane::wire::Mac;
use snapshot::{NextHop, NodePort, PortRole, UPLINK, peers};

use super::ports::{Change, Ports};
use super::reconciler::{Effects, Reconciler, Signal};
use super::uplink_filter;
use crate::config::Network;
use crate::run::error::StartError;
use crate::run::events::Event;
use crate::run::kernel::{
    Backoff, Destination, Hop, HostNetwork, InterfaceEvent, KernelError, NextHops, OpenError,
    Operation,
};
use crate::run::port::{ManagedPort, OpenPort, Owner};

/// Keeps the port towards other nodes open, its filter set, and the routes behind it.
pub(super) struct UplinkPort {
    pub(super) port: ManagedPort,
    mac: Mac,
    next_hops: NextHops,
    /// Next hops towards other nodes and the world.
    hops: HashMap<Destination, Hop>,
    /// The routes as computed last, and the nodes they were computed for.
    routes: Arc<Routes>,
    made_for: Option<Arc<Nodes>>,
    /// Input of the filter set last.
    filters: Option<(Arc<Services>, Option<Arc<ClusterNode>>)>,
    /// The filter itself, and the object of this node that it was made for.
    filter: UplinkFilter,
    own: Option<Arc<ClusterNode>>,
    /// When connections to services that are gone are looked for again.
    recheck: Option<Instant>,
    /// The retry timer of the filter.
    filter_retry: Backoff,
}

/// Interval of looks for connections to services that are gone.
const RECHECK: Duration = Duration::from_secs(30);

pub(super) type Nodes = BTreeMap<Arc<str>, Arc<ClusterNode>>;

impl UplinkPort {
    /// Requests the port. Until a filter is set it takes no packets.
    pub(super) fn start(
        interface: String,
        network: Box<dyn HostNetwork>,
        events: Sender<Event>,
        ports: &mut Ports,
    ) -> Result<Self, StartError> {
        let report = move |hops| {
            // The loop may have ended.
            let _ = events.send(Event::NextHops(hops));
        };
        let next_hops = NextHops::start(network, report)?;
        let mut port = ManagedPort::new(interface);
        ports.open(Owner::Uplink, &mut port, None);
        Ok(Self {
            port,
            mac: Mac::default(),
            next_hops,
            hops: HashMap::new(),
            routes: Arc::default(),
            made_for: None,
            filters: None,
            filter: UplinkFilter::default(),
            own: None,
            recheck: None,
            filter_retry: Backoff::default(),
        })
    }

    /// Handles the result of opening the port, whose own MAC address is `mac`.
    pub(super) fn opened(
        &mut self,
        result: Result<OpenPort, OpenError>,
        mac: Option<Mac>,
        ports: &mut Ports,
    ) {
        self.filters = None;
        match result {
            Ok(open) => {
                self.port.opened(open);
                self.mac = mac.unwrap_or_default();
                self.next_hops.refresh();
            }
            Err(error) => {
                // It may be open without being served.
                ports.request(Operation::ReleaseUplink);
                self.port.fail(&error.why.to_string(), Instant::now());
                ports.changed(Change::Status);
            }
        }
        self.port.log(UPLINK);
    }

    /// Handles the loss of the port: it is opened again.
    pub(super) fn lost(&mut self, why: &str, ports: &Ports) {
        ports.request(Operation::ReleaseUplink);
        self.port.fail(why, Instant::now());
        // A new interface of the same name has another number.
        self.port.index = None;
    }

    /// Opens a lost port without the usual delay.
    pub(super) fn hurry(&mut self) {
        self.port.retry.hurry(Instant::now());
    }

    /// Repeats failed attempts that are due.
    fn reconcile(&mut self, now: Instant, ports: &mut Ports) {
        if self.port.retry.is_due(now) {
            ports.open(Owner::Uplink, &mut self.port, None);
        }
        if self.filter_retry.is_due(now) || self.recheck.is_some_and(|at| at <= now) {
            self.filter_retry.stop();
            self.recheck = None;
            // The next snapshot sets the filter again.
            self.filters = None;
            ports.changed(Change::Snapshot);
        }
    }

    /// The port for a snapshot, whose packets get so many bytes longer behind it.
    pub(super) fn node_port(&self, overhead: u16) -> Option<NodePort> {
        let open = self.port.open()?;
        let port = NodePort::new(open.id, PortRole::Uplink);
        let mtu = open.mtu.saturating_sub(overhead);
        Some(NodePort { mac: self.gateway(), own_mac: Some(self.mac), mtu, ..port })
    }

    /// MAC address of the next hop towards the world.
    pub(super) fn gateway(&self) -> Option<Mac> {
        self.hops.get(&Destination::World)?.mac
    }

    /// Returns the routes to the other nodes, whose packets get so many bytes longer behind the
    /// port; computes them again if these nodes or their next hops changed.
    pub(super) fn routes(&mut self, view: &View, node: &str, overhead: u16) -> Arc<Routes> {
        if self.made_for.as_ref().is_some_and(|known| Arc::ptr_eq(known, &view.nodes)) {
            return Arc::clone(&self.routes);
        }
        let peers = peers(view, node, |endpoint| {
            let hop = self.hops.get(&Destination::Peer(endpoint));
            hop.map_or_else(NextHop::default, |hop| NextHop {
                mac: hop.mac,
                is_router: hop.neighbour != endpoint,
                mtu: hop.mtu.saturating_sub(overhead),
            })
        });
        self.routes = Arc::new(Routes::new(peers));
        let peers = self.routes.peers().iter().map(|peer| peer.endpoint.to_ip());
        self.next_hops.set_peers(peers.collect());
        self.made_for = Some(Arc::clone(&view.nodes));
        Arc::clone(&self.routes)
    }

    /// Requests the filter of the interface, if its input changed. What it takes stays the switch's
    /// while connections go on: ports of services that are gone, and everything where the node's
    /// own object is.
    fn set_filter(
        &mut self,
        services: &Arc<Services>,
        own: Option<Arc<ClusterNode>>,
        network: &Network,
        ports: &Ports,
    ) {
        let is_same = |(known, node): &(Arc<Services>, Option<Arc<ClusterNode>>)| {
            Arc::ptr_eq(known, services) && *node == own
        };
        if self.port.id().is_some() && !self.filters.as_ref().is_some_and(is_same) {
            if own.is_some() {
                self.own.clone_from(&own);
            }
            let mut filter = uplink_filter::filter(services, self.own.as_deref(), network);
            let keeps = uplink_filter::keep(&mut filter, &self.filter, || {
                uplink_filter::in_use(ports.switch().sessions())
            });
            self.recheck = keeps.then(|| Instant::now() + RECHECK);
            self.filter.clone_from(&filter);
            ports.request(Operation::SetUplinkFilter(filter));
            self.filters = Some((Arc::clone(services), own));
        }
    }

    /// Handles the result of setting the filter.
    pub(super) fn filter_set(&mut self, result: &Result<(), KernelError>) {
        if let Err(error) = result {
            tracing::error!("uplink: {error}");
            self.filter_retry.fail(Instant::now());
        }
    }

    /// Applies new or changed next hops.
    pub(super) fn next_hops_event(&mut self, hops: Vec<(Destination, Hop)>, ports: &mut Ports) {
        self.hops.extend(hops);
        self.made_for = None;
        ports.changed(Change::Snapshot);
    }

    /// Applies the kernel's events about neighbours and routes.
    fn kernel_event(&mut self, event: &InterfaceEvent, ports: &mut Ports) {
        match event {
            // The last known address is used until there is another one.
            InterfaceEvent::Neighbour(link, address, None) => {
                self.next_hops.lost(*link, *address);
            }
            InterfaceEvent::Neighbour(link, address, Some(mac)) => {
                let mut changed = false;
                for hop in self.hops.values_mut() {
                    if (hop.link, hop.neighbour) == (*link, *address) {
                        changed |= hop.mac.replace(*mac) != Some(*mac);
                    }
                }
                if changed {
                    self.made_for = None;
                    ports.changed(Change::Snapshot);
                }
            }
            InterfaceEvent::Routes | InterfaceEvent::Missed => self.next_hops.refresh(),
            InterfaceEvent::Gone(_) | InterfaceEvent::ProgramLost(_) => {}
        }
    }
}

impl Reconciler for UplinkPort {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Kernel(event) => self.kernel_event(event, &mut effects.ports),
            Signal::Due(now) => self.reconcile(*now, &mut effects.ports),
            // Only after the snapshot that handles these packets.
            Signal::Published(published) => {
                let (own, config) = (effects.own_object(), &effects.shared.config);
                self.set_filter(&published.services, own, &config.network, &effects.ports);
            }
            Signal::End => effects.ports.request(Operation::ReleaseUplink),
            _ => {}
        }
    }
}
