//! Ports that a host firewall leaves open whatever its rules say.

use std::collections::BTreeSet;

use crate::model::{Direction, Protocol};

/// Ports that a firewall closes only if its object says `failsafePorts: Closed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failsafe {
    /// TCP ports of this node.
    pub tcp_in: BTreeSet<u16>,
    /// TCP ports that this node opens connections to.
    pub tcp_out: BTreeSet<u16>,
    /// UDP ports of this node.
    pub udp_in: BTreeSet<u16>,
    /// UDP ports that this node sends to.
    pub udp_out: BTreeSet<u16>,
}

const SSH: u16 = 22;
const API_SERVER: u16 = 6443;
const KUBELET: u16 = 10250;
/// DHCP's ports, of IPv4 and IPv6 (RFC 2131, RFC 9915).
const DHCP_CLIENTS: [u16; 2] = [68, 546];
const DHCP_SERVERS: [u16; 2] = [67, 547];

impl Default for Failsafe {
    /// The ports of ssh, the API server, kubelet and DHCP.
    fn default() -> Self {
        Self {
            tcp_in: [SSH, API_SERVER, KUBELET].into(),
            tcp_out: [API_SERVER, KUBELET].into(),
            udp_in: DHCP_CLIENTS.into(),
            udp_out: DHCP_SERVERS.into(),
        }
    }
}

impl Failsafe {
    /// The ports of one direction.
    pub fn ports(self, direction: Direction) -> impl Iterator<Item = (Protocol, u16)> {
        let Self { tcp_in, tcp_out, udp_in, udp_out } = self;
        let (tcp, udp) = match direction {
            Direction::Ingress => (tcp_in, udp_in),
            Direction::Egress => (tcp_out, udp_out),
        };
        let tcp = tcp.into_iter().map(|port| (Protocol::Tcp, port));
        tcp.chain(udp.into_iter().map(|port| (Protocol::Udp, port)))
    }

    /// Adds the UDP port of tunnels.
    pub fn add_tunnel(&mut self, port: u16) {
        self.udp_in.insert(port);
        self.udp_out.insert(port);
    }
}
