//! The host firewalls of nodes: what reaches a node itself, and what its own processes open.
//!
//! Firewalls that close the failsafe ports come first, then the failsafe ports are accepted, then come the
//! other firewalls, as nftables has them. A connection opens only if each permits it.

use std::collections::BTreeSet;
use std::sync::Arc;

use acl::{Key, Origin, Table};
use control::model::Direction;
use control::{HostAcl, View};
use dataplane::wire::Flow;
use nftables::Failsafe;

use super::Protocol;
use super::answer::{distinct, drop_default};

/// The origin of connections to failsafe ports, which a firewall closes only if it says so.
pub const FAILSAFE_PORT: &str = "failsafe-port";

/// Decision of the host firewalls of a node about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDecision {
    /// The node.
    pub node: Arc<str>,
    /// True if they permit the connection.
    pub permits: bool,
    /// Origins of the rules that decided.
    pub by: Vec<Origin>,
}

/// Decides about a connection that a node's own processes open, or that is opened to the node itself;
/// `None` if no firewall selects the node.
pub fn decide(
    view: &View,
    node: &Arc<str>,
    direction: Direction,
    flow: &Flow,
) -> Option<HostDecision> {
    let acls = view.host_acls.get(node)?;
    let (kept, strict): (Vec<&HostAcl>, Vec<&HostAcl>) = acls.iter().partition(|it| it.failsafe);
    let mut by = Vec::new();
    let decision = |permits, by| Some(HostDecision { node: Arc::clone(node), permits, by });
    let is_failsafe = failsafe(direction, flow.protocol).contains(&flow.destination_port);
    let stages = [(strict, false), (kept, is_failsafe)];
    for (acls, is_open) in stages {
        if is_open {
            by.push(Origin::other(FAILSAFE_PORT));
            break;
        }
        for acl in acls {
            let table = table(acl, direction);
            let found = table.lookup(&key(view, flow));
            let rule = found.and_then(|found| table.rules().get(found));
            let origin = rule.map(|rule| rule.origin.clone());
            if !found.is_some_and(|found| table.permits(found as u32)) {
                return decision(false, origin.into_iter().collect());
            }
            by.extend(origin);
        }
    }
    by = distinct(by.iter());
    drop_default(&mut by);
    decision(true, by)
}

/// The tables of the firewalls of a node for one direction.
pub fn tables<'a>(
    view: &'a View,
    node: Option<&Arc<str>>,
    direction: Direction,
) -> impl Iterator<Item = &'a Arc<Table>> {
    let acls = node.and_then(|node| view.host_acls.get(node)).into_iter().flatten();
    acls.map(move |acl| table(acl, direction))
}

/// The failsafe ports of one protocol. Those of tunnels are in no manifest.
pub fn failsafe(direction: Direction, protocol: u8) -> BTreeSet<u16> {
    let Failsafe { tcp_in, tcp_out, udp_in, udp_out } = Failsafe::default();
    let is_tcp = protocol == Protocol::Tcp.number(false);
    match (direction, is_tcp) {
        (Direction::Ingress, true) => tcp_in,
        (Direction::Egress, true) => tcp_out,
        _ if protocol != Protocol::Udp.number(false) => BTreeSet::new(),
        (Direction::Ingress, false) => udp_in,
        (Direction::Egress, false) => udp_out,
    }
}

fn table(acl: &HostAcl, direction: Direction) -> &Arc<Table> {
    match direction {
        Direction::Ingress => &acl.ingress,
        Direction::Egress => &acl.egress,
    }
}

fn key(view: &View, flow: &Flow) -> Key {
    Key {
        source: flow.source,
        destination: flow.destination,
        source_identity: view.addresses.lookup(flow.source),
        destination_identity: view.addresses.lookup(flow.destination),
        protocol: flow.protocol,
        source_port: flow.source_port,
        destination_port: flow.destination_port,
        ..Key::default()
    }
}
