//! Registers open connections of the network namespace's own sockets with conntrack.
//!
//! For a connection that it did not see open, conntrack takes the end that sends next as the initiator, and rules match
//! the wrong direction. So connections are registered before rules are loaded that make the kernel track connections.
//!
//! ```text
//!   sock_diag ─ sockets ─▶ direction: inbound where a socket listens at the port ─▶ ctnetlink ─ entries
//! ```
//!
//! The messages are those of `linux/netfilter/nfnetlink_conntrack.h`.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr as Endpoint};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::error::Error;
use super::raw_netlink::{self, GENERIC, answer, attribute, message, messages, request};
use super::sock_diag::{self, CLOSE, ESTABLISHED, LISTEN, OpenSocket};

/// A protocol whose connections are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Protocol {
    number: u8,
    /// State of a listening socket.
    listening: u8,
    /// Bit mask of the states of sockets with a connection.
    connected: u32,
    /// Lifetime of an entry until its connection's next packet, in seconds: the kernel's own.
    timeout: u32,
}

const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        number: libc::IPPROTO_TCP as u8,
        listening: LISTEN,
        // With FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK and CLOSING.
        connected: 1 << ESTABLISHED | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11,
        timeout: 432_000,
    },
    Protocol {
        number: libc::IPPROTO_UDP as u8,
        listening: CLOSE,
        connected: 1 << ESTABLISHED,
        timeout: 120,
    },
];

/// A connection from the end that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    from: Endpoint,
    to: Endpoint,
}

/// `NFNL_SUBSYS_CTNETLINK << 8` with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
pub(super) const NEW_ENTRY: u16 = 1 << 8;
pub(super) const GET_ENTRY: u16 = 1 << 8 | 1;
pub(super) const DELETE_ENTRY: u16 = 1 << 8 | 2;
/// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`.
pub(super) const ORIGINAL: u16 = 1;
pub(super) const REPLY: u16 = 2;

/// Registers the open TCP connections and connected UDP sockets of the calling thread's network namespace with
/// conntrack, each with its initiator: the remote end where a socket listens at the local port, else the local one.
/// Existing entries stay, unless they name the wrong initiator because tracking began while the connection was open.
/// Returns the number of new entries.
///
/// # Errors
/// Fails if the kernel has no `sock_diag` or no `nf_conntrack_netlink`, or refuses an entry.
pub fn track_open_connections() -> Result<usize, Error> {
    let failed = |what: &'static str| move |cause| Error::new(what, cause);
    let mut connections = Vec::new();
    for protocol in PROTOCOLS {
        let listed = sockets(protocol).map_err(failed("list the sockets"))?;
        connections.extend(directed(&listed, protocol).map(|it| (protocol, it)));
    }
    let register = || {
        let socket = raw_netlink::open(NETLINK_NETFILTER)?;
        let mut new = 0;
        for (protocol, connection) in &connections {
            match request(&socket, &entry(*protocol, connection)) {
                Ok(()) => new += 1,
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    if is_reversed(&socket, *protocol, connection)? {
                        request(&socket, &deletion(*protocol, connection))?;
                        request(&socket, &entry(*protocol, connection))?;
                        new += 1;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    };
    register().map_err(failed("register open connections with conntrack"))
}

/// The connections of these sockets, less those inside the host.
fn directed(sockets: &[OpenSocket], protocol: Protocol) -> impl Iterator<Item = Connection> {
    let is_listening = |it: &&OpenSocket| it.state == protocol.listening;
    let listening: HashSet<u16> =
        sockets.iter().filter(is_listening).map(|it| it.local.port()).collect();
    let connected = sockets.iter().filter(move |it| it.state != protocol.listening);
    connected.filter(|it| !it.remote.ip().is_loopback() && it.local.ip() != it.remote.ip()).map(
        move |it| match listening.contains(&it.local.port()) {
            true => Connection { from: it.remote, to: it.local },
            false => Connection { from: it.local, to: it.remote },
        },
    )
}

/// The sockets of a protocol that listen or are connected.
fn sockets(protocol: Protocol) -> io::Result<Vec<OpenSocket>> {
    sock_diag::list(protocol.number, protocol.connected | 1 << protocol.listening)
}

/// Returns whether conntrack takes the other end as the initiator of the connection, and does not translate it.
fn is_reversed(
    socket: &netlink_sys::Socket,
    protocol: Protocol,
    connection: &Connection,
) -> io::Result<bool> {
    let Connection { from, to } = *connection;
    socket.send(&message(GET_ENTRY, NLM_F_REQUEST, &name(protocol, from, to)), 0)?;
    let reversed = [(ORIGINAL, tuple(protocol, to, from)), (REPLY, tuple(protocol, from, to))];
    let is_it = |body: &[u8]| {
        let attributes = NlasIterator::new(body.get(GENERIC..).unwrap_or_default());
        let found: Vec<_> = attributes.map_while(Result::ok).collect();
        let has = |(kind, value): &(u16, Vec<u8>)| {
            found.iter().any(|it| it.kind() == *kind && it.value() == value)
        };
        reversed.iter().all(has)
    };
    // An error says that it ended meanwhile.
    let answer = answer(socket)?;
    Ok(messages(&answer).iter().any(|(kind, body)| *kind == NEW_ENTRY && is_it(body)))
}

/// The request to delete the entry of a connection.
fn deletion(protocol: Protocol, connection: &Connection) -> Vec<u8> {
    let name = name(protocol, connection.from, connection.to);
    message(DELETE_ENTRY, NLM_F_REQUEST | NLM_F_ACK, &name)
}

/// `struct nfgenmsg` and the original tuple.
fn name(protocol: Protocol, from: Endpoint, to: Endpoint) -> Vec<u8> {
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(nested(ORIGINAL, &tuple(protocol, from, to)));
    body
}

/// The request for a new entry.
fn entry(protocol: Protocol, connection: &Connection) -> Vec<u8> {
    // CTA_STATUS, CTA_PROTOINFO and CTA_TIMEOUT.
    const STATUS: u16 = 3;
    const STATE: u16 = 4;
    const TIMEOUT: u16 = 7;
    /// `IPS_SEEN_REPLY` and `IPS_ASSURED`, so that the entry is not among the first to make room;
    /// `IPS_CONFIRMED`, as any entry of the table.
    const ANSWERED: u32 = 1 << 1 | 1 << 2 | 1 << 3;
    let Connection { from, to } = *connection;
    let mut body = name(protocol, from, to);
    body.extend(nested(REPLY, &tuple(protocol, to, from)));
    body.extend(attribute(STATUS, &ANSWERED.to_be_bytes()));
    if i32::from(protocol.number) == libc::IPPROTO_TCP {
        body.extend(nested(STATE, &nested(1, &tcp_state())));
    }
    body.extend(attribute(TIMEOUT, &protocol.timeout.to_be_bytes()));
    message(NEW_ENTRY, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &body)
}

/// `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`.
fn tuple(protocol: Protocol, from: Endpoint, to: Endpoint) -> Vec<u8> {
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            [attribute(1, &from.octets()), attribute(2, &to.octets())].concat()
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            [attribute(3, &octets(from)), attribute(4, &octets(to))].concat()
        }
    };
    let ports = [
        attribute(1, &[protocol.number]),
        attribute(2, &from.port().to_be_bytes()),
        attribute(3, &to.port().to_be_bytes()),
    ];
    [nested(1, &addresses), nested(2, &ports.concat())].concat()
}

/// `CTA_PROTOINFO_TCP`: established, and of unknown windows in both directions.
fn tcp_state() -> Vec<u8> {
    const ESTABLISHED: u8 = 3;
    /// `IP_CT_TCP_FLAG_SACK_PERM` and `IP_CT_TCP_FLAG_BE_LIBERAL`, as flags and as their mask.
    const LIBERAL: [u8; 2] = [0x0a; 2];
    [attribute(1, &[ESTABLISHED]), attribute(4, &LIBERAL), attribute(5, &LIBERAL)].concat()
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | 1 << 15, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Protocol = PROTOCOLS[0];
    const UDP: Protocol = PROTOCOLS[1];

    fn ends(state: u8, local: &str, remote: &str) -> OpenSocket {
        let socket = OpenSocket::connected(local.parse().unwrap(), remote.parse().unwrap());
        OpenSocket { state, ..socket }
    }

    #[test]
    fn the_end_with_a_listener_did_not_open_the_connection() {
        let sockets = [
            ends(LISTEN, "[::]:80", "[::]:0"),
            ends(ESTABLISHED, "192.0.2.1:80", "192.0.2.9:4000"),
            ends(ESTABLISHED, "192.0.2.1:5000", "192.0.2.9:80"),
            ends(ESTABLISHED, "127.0.0.1:5001", "127.0.0.1:80"),
            ends(ESTABLISHED, "192.0.2.1:5003", "127.0.0.2:80"),
            ends(ESTABLISHED, "192.0.2.1:5002", "192.0.2.1:80"),
        ];
        let opened: Vec<String> =
            directed(&sockets, TCP).map(|it| format!("{} {}", it.from, it.to)).collect();
        assert_eq!(opened, ["192.0.2.9:4000 192.0.2.1:80", "192.0.2.1:5000 192.0.2.9:80"]);
        // A socket of UDP that is not connected takes datagrams of anyone.
        let sockets =
            [ends(CLOSE, "0.0.0.0:53", "0.0.0.0:0"), ends(1, "192.0.2.1:53", "192.0.2.9:9")];
        let opened: Vec<Connection> = directed(&sockets, UDP).collect();
        assert_eq!(opened[0].from, "192.0.2.9:9".parse().unwrap());
    }
}
