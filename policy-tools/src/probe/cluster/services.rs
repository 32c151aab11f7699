//! Services: the connections that one to a service's address may become.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::services::{Backends, Services};
use dataplane::wire::Flow;

use super::{Cluster, Connection};
use crate::probe::world::{Location, World};

impl Cluster {
    /// The connections that one to a service's address may become, with a name for each: every
    /// endpoint, and for a client outside every node that it may enter by. Any other
    /// connection comes back alone, without a name.
    pub(crate) fn alternatives(
        &mut self,
        world: &World,
        connection: &Connection,
    ) -> Vec<(Option<String>, Connection)> {
        let outside = connection.from.location == Location::Outside;
        let entries: Vec<Option<usize>> = match outside {
            true if world.service_at(connection.to).is_some() => {
                (0..self.sites.len()).map(Some).collect()
            }
            true => vec![self.node_of(world, connection.to)],
            false => vec![self.node_of(world, connection.from.address)],
        };
        let mut found = Vec::new();
        for entry in &entries {
            let name = entry.filter(|_| outside).map(|node| Arc::clone(&self.sites[node].name));
            let backends = entry.and_then(|node| {
                let here = self.backends(node, connection, outside);
                // A port of another node's address is that node's to translate, to which whoever is not on it is outside.
                here.or_else(|| {
                    let there = self.node_of(world, connection.to).filter(|it| *it != node)?;
                    self.backends(there, connection, true)
                })
            });
            let connection =
                |backend| Connection { entry: name.clone(), backend, ..connection.clone() };
            let Some(backends) = backends else {
                found.push((None, connection(0)));
                continue;
            };
            for (nth, backend) in backends.list().iter().enumerate() {
                let address = backend.address.to_ip();
                let mut label = match world.location(address) {
                    Location::Pod(key) => key.to_string(),
                    _ => address.to_string(),
                };
                if let Some(name) = name.as_ref().filter(|_| entries.len() > 1) {
                    label = format!("{label} via {name}");
                }
                found.push((Some(label), connection(nth)));
            }
        }
        if found.is_empty() {
            // No node has an endpoint: one answer is enough.
            let entry = entries.first().copied().flatten().filter(|_| outside);
            let entry = entry.map(|node| Arc::clone(&self.sites[node].name));
            found.push((None, Connection { entry, ..connection.clone() }));
        }
        found
    }

    /// Returns the choices of a service at a connection's destination, as a node sees it.
    pub(super) fn backends(
        &mut self,
        node: usize,
        connection: &Connection,
        outside: bool,
    ) -> Option<Backends> {
        let flow = Flow {
            source: connection.from.address.into(),
            destination: connection.to.into(),
            destination_port: connection.port,
            protocol: connection.protocol.number(connection.to.is_ipv6()),
            ..Flow::default()
        };
        let services = self.services(node);
        let entry = services.find(&flow).or_else(|| {
            let site = &self.sites[node];
            let own = self.view.nodes.get(&site.name);
            let is_own = own.is_some_and(|node| node.addresses.contains(&connection.to));
            services.find_node_port(&flow).filter(|_| is_own)
        })?;
        Some(entry.backends(outside).clone())
    }

    pub(super) fn services(&mut self, node: usize) -> Arc<Services> {
        let site = &mut self.sites[node];
        site.services.services(&self.view, &site.name)
    }

    /// The address and port that the kernel of a node sends its own processes' packets
    /// to: one of the switch's for services beside cluster addresses.
    pub(super) fn redirected(&mut self, node: usize, connection: &Connection) -> (IpAddr, u16) {
        let Connection { to, port, .. } = *connection;
        let protocol = connection.protocol.number(to.is_ipv6());
        self.services(node);
        let site = &self.sites[node];
        let redirects = site.services.redirects();
        let own = self.view.nodes.get(&site.name);
        let is_own = own.is_some_and(|own| own.addresses.contains(&to));
        let of_node =
            redirects.node_ports.iter().filter(|_| is_own).find(|(its, number, target)| {
                (*its, *number, target.is_ipv6()) == (protocol, port, to.is_ipv6())
            });
        let target = of_node.map(|(_, _, target)| target);
        let target = target.or_else(|| redirects.addresses.get(&(to, protocol, port)));
        target.map_or((to, port), |target| (target.ip(), target.port()))
    }
}
