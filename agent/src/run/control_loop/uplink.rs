//! The uplink: the port towards other cluster nodes, who they are, and what is taken from an
//! interface that stays the kernel's as well.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::Address;
use control::{ClusterNode, View};
use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use dataplane::services::{Services, Way};
use dataplane::wire::Mac;
use dataplane::{PortId, Routes, Underlay};

use super::ports::log_port;
use super::{AGAIN, ControlLoop};
use crate::config::Masquerade;
use crate::run::StartError;
use crate::run::interfaces::InterfaceEvent;
use crate::run::pods::PodPort;
use linux_net::masquerade;
use renderer::{LeadsTo, NodePort, SWITCH_ADDRESSES, Surroundings, UPLINK, peers};

/// The port towards other cluster nodes.
pub(super) struct UplinkPort {
    pub(super) interface: String,
    pub(super) port: PodPort,
    mac: Mac,
    /// First steps towards other cluster nodes, by their endpoints.
    hops: HashMap<IpAddr, Hop>,
    /// First step towards the world.
    gateway: Option<Hop>,
    /// The routes as last made, and the cluster nodes they were made for.
    routes: Arc<Routes>,
    made_for: Option<Arc<Nodes>>,
    /// What the filter was last made of.
    filters: Option<(Arc<Services>, Option<Arc<ClusterNode>>)>,
    ask_again: Instant,
}

pub(super) type Nodes = BTreeMap<Arc<str>, Arc<ClusterNode>>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Hop {
    link: u32,
    neighbour: IpAddr,
    mac: Option<Mac>,
}

/// How often the kernel is asked for all next hops: it takes those for stale that only the switch
/// talks to.
const REFRESH: Duration = Duration::from_secs(15);
/// How soon again while one is missing.
const SOON: Duration = Duration::from_secs(1);
/// Addresses of the world (RFC 5737, RFC 3849): the way to them is the default route.
const WORLD: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

impl ControlLoop {
    /// Opens the uplink, if there is to be one. Until a filter is set it takes nothing.
    pub(in crate::run) fn set_up_uplink(&mut self) -> Result<(), StartError> {
        let failed = |error| StartError::Failed(format!("uplink: {error}"));
        let network = self.board.config.network.clone();
        let Some(mut interface) = network.uplink.clone() else { return Ok(()) };
        if network.finds_uplink() {
            let own = self.own_object().map_or_else(Vec::new, |node| node.addresses.clone());
            interface = self.interfaces.find_uplink(&own).map_err(failed)?;
        }
        let (port, mac) = self.open_uplink(&interface).map_err(failed)?;
        self.uplink = Some(UplinkPort {
            interface,
            port,
            mac,
            hops: HashMap::new(),
            gateway: None,
            routes: Arc::default(),
            made_for: None,
            filters: None,
            ask_again: Instant::now(),
        });
        self.publish();
        Ok(())
    }

    fn open_uplink(&mut self, interface: &str) -> Result<(PodPort, Mac), String> {
        self.room_for_queues(1)?;
        let opened = self.interfaces.open_uplink(interface)?;
        let port = self.serve(opened.port).inspect_err(|_| {
            // It has no filter yet; the first error is the one to tell.
            let _ = self.interfaces.release_uplink();
        })?;
        log_port(UPLINK, interface, &port);
        Ok((port, opened.mac))
    }

    /// The uplink went without being asked to; it is looked for again.
    pub(super) fn lose_uplink(&mut self, id: PortId, why: &str) {
        self.remove_port(id);
        if let Err(error) = self.interfaces.release_uplink() {
            log::debug!("uplink: {error}");
        }
        if let Some(uplink) = &mut self.uplink {
            let again_at = Instant::now() + AGAIN;
            uplink.port = PodPort::Failed { why: why.to_owned(), again_at };
            let interface = uplink.interface.clone();
            self.note_loss(UPLINK.to_owned(), interface, why);
        }
        self.publish();
    }

    pub(super) fn open_failed_uplink(&mut self) {
        let Some(UplinkPort { interface, port: PodPort::Failed { again_at, .. }, .. }) =
            &self.uplink
        else {
            return;
        };
        if Instant::now() < *again_at {
            return;
        }
        let interface = interface.clone();
        let opened = self.open_uplink(&interface);
        let Some(uplink) = &mut self.uplink else { return };
        match opened {
            Ok((port, mac)) => {
                (uplink.port, uplink.mac) = (port, mac);
                uplink.filters = None;
                uplink.ask_again = Instant::now();
                self.publish();
            }
            Err(why) => {
                uplink.port = PodPort::Failed { why, again_at: Instant::now() + AGAIN };
            }
        }
    }

    /// The uplink as a port of the snapshot.
    pub(super) fn uplink_port(&self) -> Option<NodePort> {
        let uplink = self.uplink.as_ref()?;
        let mac = uplink.gateway.and_then(|gateway| gateway.mac);
        Some(NodePort {
            mac,
            own_mac: Some(uplink.mac),
            mtu: uplink.port.mtu(),
            ..NodePort::new(uplink.port.id()?, LeadsTo::Uplink)
        })
    }

    /// What is around the cluster node, for the next snapshot.
    pub(super) fn surroundings(&mut self, view: &View) -> Surroundings {
        let config = &self.board.config;
        let services = self.services.services(view, &config.node_name);
        let network = &config.network;
        let mut surroundings = Surroundings {
            node_addresses: self.node_addresses(),
            services,
            translation_ports: Some(network.translation_ports.clone()),
            ..Surroundings::default()
        };
        let (node, direct) = (config.node_name.clone(), network.masquerade == Masquerade::Direct);
        let underlay = network.underlay.clone();
        if self.uplink.is_some() {
            surroundings.routes = self.routes(view, &node);
            surroundings.underlay = underlay;
            // Without a gateway the kernel knows best where the world is.
            surroundings.masquerade = direct
                && self.uplink.as_ref().is_some_and(|uplink| {
                    uplink.gateway.is_some_and(|gateway| gateway.mac.is_some())
                });
        }
        surroundings
    }

    /// Routes to the other cluster nodes, made anew if these or their next hops have changed.
    fn routes(&mut self, view: &View, node: &str) -> Arc<Routes> {
        let Some(uplink) = &mut self.uplink else { return Arc::default() };
        if uplink.made_for.as_ref().is_some_and(|known| Arc::ptr_eq(known, &view.nodes)) {
            return Arc::clone(&uplink.routes);
        }
        let mut hops = HashMap::new();
        let peers = peers(view, node, |endpoint| {
            let known = uplink.hops.get(&endpoint).copied();
            let hop = known.or_else(|| ask(&mut *self.interfaces, endpoint));
            hops.extend(hop.map(|hop| (endpoint, hop)));
            hop.and_then(|hop| hop.mac)
        });
        uplink.hops = hops;
        uplink.routes = Arc::new(Routes::new(peers));
        uplink.made_for = Some(Arc::clone(&view.nodes));
        Arc::clone(&uplink.routes)
    }

    /// Has the uplink take what the snapshot wants from it, if that may be different.
    pub(super) fn set_uplink_filter(&mut self, services: &Arc<Services>) {
        let Some(uplink) = &self.uplink else { return };
        if uplink.port.id().is_none() {
            return;
        }
        let own = self.own_object();
        let is_same = uplink
            .filters
            .as_ref()
            .is_some_and(|(known, node)| Arc::ptr_eq(known, services) && *node == own);
        if is_same {
            return;
        }
        let network = &self.board.config.network;
        let mut filter = UplinkFilter::default();
        if let Some(own) = &own {
            filter.node_addresses.extend(&own.addresses);
            match &network.underlay {
                Underlay::Overlay(vxlan) => filter.vxlan_port = Some(vxlan.port),
                _ => filter.pod_networks.extend(&own.pod_cidrs),
            }
        }
        let (first, last) = (network.translation_ports.start(), network.translation_ports.end());
        filter.masquerade_ports = Some((*first, *last));
        for (address, protocol, port, entry) in services.iter() {
            let is_inside = |it: &Address| SWITCH_ADDRESSES.contains(&it.to_ip());
            if entry.way == Way::Cluster || address.as_ref().is_some_and(is_inside) {
                continue;
            }
            let addresses = match address {
                Some(address) => vec![address.to_ip()],
                None => filter.node_addresses.iter().copied().collect(),
            };
            let service = |address| UplinkService { address, protocol, port };
            filter.services.extend(addresses.into_iter().map(service));
        }
        match self.interfaces.set_uplink_filter(&filter) {
            Ok(()) => {
                let made_of = Some((Arc::clone(services), own));
                self.uplink.iter_mut().for_each(|uplink| uplink.filters.clone_from(&made_of));
            }
            Err(error) => log::error!("uplink: {error}"),
        }
    }

    /// Has the kernel masquerade what pods send to the world, if it is to.
    pub(super) fn update_masquerade(&mut self) {
        if self.board.config.network.masquerade != Masquerade::Kernel || self.host.is_none() {
            return;
        }
        let view = self.control.view();
        let known = self.masquerade.as_ref();
        if known.is_some_and(|(nodes, _)| Arc::ptr_eq(nodes, &view.nodes)) {
            return;
        }
        let own = self.own_object().map_or_else(Vec::new, |node| node.pod_cidrs.clone());
        let cluster = view.nodes.values().flat_map(|node| &node.pod_cidrs).copied();
        let wanted = masquerade::Rules { pods: own, cluster: cluster.collect() };
        let is_same = self.masquerade.as_ref().is_some_and(|(_, rules)| *rules == wanted);
        let done = if is_same { Ok(()) } else { self.interfaces.masquerade(&wanted) };
        match done {
            Ok(()) => self.masquerade = Some((Arc::clone(&view.nodes), wanted)),
            Err(error) => log::error!("masquerade: {error}"),
        }
    }

    /// Takes what the kernel says about neighbours and routes.
    pub(super) fn path_event(&mut self, event: &InterfaceEvent) {
        let Some(uplink) = &mut self.uplink else { return };
        match event {
            InterfaceEvent::Neighbour(link, address, mac) => {
                // One that is gone is asked for again, and its last known address used meanwhile.
                let Some(mac) = mac else {
                    uplink.ask_again = Instant::now();
                    return;
                };
                let hops = uplink.hops.values_mut().chain(&mut uplink.gateway);
                let mut changed = false;
                for hop in hops.filter(|hop| hop.link == *link && hop.neighbour == *address) {
                    changed |= hop.mac.replace(*mac) != Some(*mac);
                }
                if changed {
                    uplink.made_for = None;
                    self.publish();
                }
            }
            InterfaceEvent::Routes | InterfaceEvent::Missed => uplink.ask_again = Instant::now(),
            InterfaceEvent::Gone(_) => {}
        }
    }

    /// Asks for next hops when it is time.
    pub(super) fn refresh_next_hops(&mut self) {
        let Some(uplink) = &mut self.uplink else { return };
        if Instant::now() < uplink.ask_again {
            return;
        }
        let mut changed = false;
        let endpoints = uplink.routes.peers().iter().map(|peer| peer.endpoint.to_ip());
        for endpoint in endpoints.collect::<Vec<_>>() {
            let Some(hop) = ask(&mut *self.interfaces, endpoint) else { continue };
            let known = uplink.hops.entry(endpoint).or_insert(hop);
            changed |= renew(known, hop);
        }
        let mut world = WORLD.iter().map(|text| text.parse().expect("an address"));
        if let Some(hop) = world.find_map(|address| ask(&mut *self.interfaces, address)) {
            changed |= uplink.gateway.is_none();
            changed |= renew(uplink.gateway.get_or_insert(hop), hop);
        }
        let missing = uplink.hops.values().any(|hop| hop.mac.is_none())
            || uplink.hops.len() < uplink.routes.peers().len();
        uplink.ask_again = Instant::now() + if missing { SOON } else { REFRESH };
        if changed {
            uplink.made_for = None;
            self.publish();
        }
    }

    fn own_object(&self) -> Option<Arc<ClusterNode>> {
        let view = self.control.view();
        view.nodes.get(self.board.config.node_name.as_str()).cloned()
    }
}

/// Takes over what the kernel says now; it may not know a MAC address any more that still is the
/// right one.
fn renew(known: &mut Hop, now: Hop) -> bool {
    let same_way = (known.link, known.neighbour) == (now.link, now.neighbour);
    let now = Hop { mac: now.mac.or(known.mac.filter(|_| same_way)), ..now };
    std::mem::replace(known, now) != now
}

fn ask(interfaces: &mut dyn crate::run::Interfaces, address: IpAddr) -> Option<Hop> {
    match interfaces.next_hop(address) {
        Ok(hop) => {
            Some(Hop { link: hop.link, neighbour: hop.neighbour, mac: hop.mac.map(|mac| mac.0) })
        }
        Err(error) => {
            log::debug!("uplink: {error}");
            None
        }
    }
}
