//! The uplink: the port towards other cluster nodes, the peers behind it, and the filter of an
//! interface that the kernel uses as well.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use acl::Address;
use control::{ClusterNode, View};
use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use dataplane::services::{Scope, Services};
use dataplane::wire::Mac;
use dataplane::{PortId, Routes, Underlay};

use super::ports::log_port;
use super::{AGAIN, ControlLoop};
use crate::config::Masquerade;
use crate::run::kernel::{Destination, Hop, InterfaceEvent, NextHops};
use crate::run::pods::PodPort;
use crate::run::{Event, StartError};
use renderer::{NextHop, NodeContext, NodePort, PortRole, SWITCH_ADDRESSES, UPLINK, peers};

/// The port towards other cluster nodes.
pub(super) struct UplinkPort {
    pub(super) interface: String,
    pub(super) port: PodPort,
    mac: Mac,
    next_hops: NextHops,
    /// Next hops towards other cluster nodes and the world.
    hops: HashMap<Destination, Hop>,
    /// The routes as computed last, and the cluster nodes they were computed for.
    routes: Arc<Routes>,
    made_for: Option<Arc<Nodes>>,
    /// Input of the filter set last.
    filters: Option<(Arc<Services>, Option<Arc<ClusterNode>>)>,
}

pub(super) type Nodes = BTreeMap<Arc<str>, Arc<ClusterNode>>;

impl ControlLoop {
    /// Opens the uplink, if it is configured. Until a filter is set it takes no packets.
    pub(in crate::run) fn set_up_uplink(&mut self) -> Result<(), StartError> {
        let failed = |error| StartError::Failed(format!("uplink: {error}"));
        let network = self.shared.config.network.clone();
        let Some(mut interface) = network.uplink.clone() else { return Ok(()) };
        if network.finds_uplink() {
            let own = self.own_object().map_or_else(Vec::new, |node| node.addresses.clone());
            interface = self.interfaces.find_uplink(&own).map_err(failed)?;
        }
        let (port, mac) = self.open_uplink(&interface).map_err(failed)?;
        let network = self.interfaces.host_network().map_err(failed)?;
        let events = self.events.clone();
        let report = move |hops| {
            // The loop may have ended.
            let _ = events.send(Event::NextHops(hops));
        };
        let next_hops = NextHops::start(network, report).map_err(StartError::thread)?;
        self.uplink = Some(UplinkPort {
            interface,
            port,
            mac,
            next_hops,
            hops: HashMap::new(),
            routes: Arc::default(),
            made_for: None,
            filters: None,
        });
        self.publish();
        Ok(())
    }

    fn open_uplink(&mut self, interface: &str) -> Result<(PodPort, Mac), String> {
        self.room_for_queues(1)?;
        let opened = self.interfaces.open_uplink(interface)?;
        let port = self.serve(opened.port).inspect_err(|_| {
            // It has no filter yet; the first error is the one to report.
            let _ = self.interfaces.release_uplink();
        })?;
        log_port(UPLINK, interface, &port);
        self.set_uplink_of_flow_offload(&port);
        Ok((port, opened.mac))
    }

    /// Handles the loss of the uplink; schedules a retry.
    pub(super) fn lose_uplink(&mut self, id: PortId, why: &str) {
        self.remove_port(id);
        if let Err(error) = self.interfaces.release_uplink() {
            tracing::debug!("uplink: {error}");
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
                uplink.next_hops.refresh();
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
        let mac = uplink.gateway();
        Some(NodePort {
            mac,
            own_mac: Some(uplink.mac),
            mtu: uplink.port.mtu(),
            ..NodePort::new(uplink.port.id()?, PortRole::Uplink)
        })
    }

    /// Returns the node context of the next snapshot.
    pub(super) fn node_context(&mut self, view: &View) -> NodeContext {
        let config = &self.shared.config;
        let services = self.services.services(view, &config.node_name);
        let network = &config.network;
        let mut node_context = NodeContext {
            node_addresses: self.node_addresses(),
            services,
            translation_ports: Some(network.translation_ports.clone()),
            ..NodeContext::default()
        };
        let (node, direct) = (config.node_name.clone(), network.masquerade == Masquerade::Direct);
        let underlay = network.underlay.clone();
        if self.uplink.is_some() {
            node_context.routes = self.routes(view, &node);
            node_context.underlay = underlay;
            // Without a gateway the kernel routes to the world.
            let gateway = self.uplink.as_ref().and_then(UplinkPort::gateway);
            node_context.masquerade = direct && gateway.is_some();
        }
        node_context
    }

    /// Returns the routes to the other cluster nodes; computes them again if these or their next
    /// hops changed.
    fn routes(&mut self, view: &View, node: &str) -> Arc<Routes> {
        let Some(uplink) = &mut self.uplink else { return Arc::default() };
        if uplink.made_for.as_ref().is_some_and(|known| Arc::ptr_eq(known, &view.nodes)) {
            return Arc::clone(&uplink.routes);
        }
        let hops = &uplink.hops;
        let peers = peers(view, node, |endpoint| {
            let hop = hops.get(&Destination::Peer(endpoint));
            hop.map_or_else(NextHop::default, |hop| NextHop {
                mac: hop.mac,
                is_neighbour: hop.neighbour == endpoint,
            })
        });
        uplink.routes = Arc::new(Routes::new(peers));
        let peers = uplink.routes.peers().iter().map(|peer| peer.endpoint.to_ip());
        uplink.next_hops.set_peers(peers.collect());
        uplink.made_for = Some(Arc::clone(&view.nodes));
        Arc::clone(&uplink.routes)
    }

    /// Sets the uplink's filter, if its input changed.
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
        let network = &self.shared.config.network;
        let mut filter = UplinkFilter::default();
        if let Some(own) = &own {
            filter.node_addresses.extend(&own.addresses);
            // Also with an overlay: packets for pods outside of tunnels are dropped by the switch;
            // the kernel would forward them.
            filter.pod_networks.extend(&own.pod_cidrs);
            if let Underlay::Overlay(vxlan) = &network.underlay {
                filter.vxlan_port = Some(vxlan.port);
            }
        }
        let (first, last) = (network.translation_ports.start(), network.translation_ports.end());
        filter.masquerade_ports = Some((*first, *last));
        for (address, protocol, port, entry) in services.iter() {
            let is_inside = |it: &Address| SWITCH_ADDRESSES.contains(&it.to_ip());
            if entry.scope == Scope::Cluster || address.as_ref().is_some_and(is_inside) {
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
            Err(error) => tracing::error!("uplink: {error}"),
        }
    }

    /// Applies new or changed next hops.
    pub(super) fn next_hops_event(&mut self, hops: Vec<(Destination, Hop)>) {
        let Some(uplink) = &mut self.uplink else { return };
        uplink.hops.extend(hops);
        uplink.made_for = None;
        self.publish();
    }

    /// Applies the kernel's events about neighbours and routes.
    pub(super) fn path_event(&mut self, event: &InterfaceEvent) {
        let Some(uplink) = &mut self.uplink else { return };
        match event {
            // The last known address is used until there is another one.
            InterfaceEvent::Neighbour(link, address, None) => {
                uplink.next_hops.lost(*link, *address);
            }
            InterfaceEvent::Neighbour(link, address, Some(mac)) => {
                let mut changed = false;
                for hop in uplink.hops.values_mut() {
                    if (hop.link, hop.neighbour) == (*link, *address) {
                        changed |= hop.mac.replace(*mac) != Some(*mac);
                    }
                }
                if changed {
                    uplink.made_for = None;
                    self.publish();
                }
            }
            InterfaceEvent::Routes | InterfaceEvent::Missed => uplink.next_hops.refresh(),
            InterfaceEvent::Gone(_) | InterfaceEvent::ProgramLost(_) => {}
        }
    }

    pub(super) fn own_object(&self) -> Option<Arc<ClusterNode>> {
        let view = self.control.view();
        view.nodes.get(self.shared.config.node_name.as_str()).cloned()
    }
}

impl UplinkPort {
    /// MAC address of the next hop towards the world.
    fn gateway(&self) -> Option<Mac> {
        self.hops.get(&Destination::World)?.mac
    }
}
