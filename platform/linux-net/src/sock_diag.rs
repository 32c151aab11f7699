//! Sockets of the calling thread's network namespace: listed, and ended (sock_diag(7)).
//!
//! The messages are those of `linux/inet_diag.h`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::error::Error;
use super::raw_netlink::{self, message, request};

/// States of net/tcp_states.h; a UDP socket is established or closed.
pub(super) const ESTABLISHED: u8 = 1;
pub(super) const CLOSE: u8 = 7;
pub(super) const LISTEN: u8 = 10;
/// `TIME_WAIT` and `NEW_SYN_RECV` have no socket of a process.
const WITHOUT_PROCESS: u32 = 1 << 6 | 1 << 12;

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY`.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// Lengths of `struct inet_diag_sockid` and `struct inet_diag_msg`.
const ID: usize = 48;
const MESSAGE: usize = 72;
/// `INET_DIAG_CGROUP_ID`.
const CGROUP: u16 = 21;

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSocket {
    pub(super) state: u8,
    /// Its own end; an IPv4-mapped address as one of IPv4.
    pub local: SocketAddr,
    /// The other end, unspecified where it is not connected.
    pub remote: SocketAddr,
    /// The cgroup in which it was opened, as the inode of its folder. `None` if the kernel does not say.
    pub cgroup: Option<u64>,
    /// Address family and `struct inet_diag_sockid`, by which the kernel knows it.
    pub(super) name: (u8, [u8; ID]),
}

impl OpenSocket {
    /// A connected socket with these ends, which the kernel does not know.
    pub fn connected(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { state: ESTABLISHED, local, remote, cgroup: None, name: (0, [0; ID]) }
    }

    /// Returns whether the socket accepts connections, or datagrams of any sender.
    pub fn is_listening(&self) -> bool {
        self.state == LISTEN || self.state == CLOSE
    }
}

/// The sockets of an IP protocol (TCP or UDP) in the calling thread's network namespace.
///
/// # Errors
/// Fails if the kernel has no `sock_diag`.
pub fn open_sockets(protocol: u8) -> Result<Vec<OpenSocket>, Error> {
    list(protocol, !WITHOUT_PROCESS).map_err(|cause| Error::new("list the sockets", cause))
}

/// Ends a connection of this protocol: with TCP the process gets ECONNABORTED and the peer a reset; a UDP socket loses its
/// peer. Returns whether the socket was still there.
///
/// # Errors
/// Fails if the kernel does not end sockets (`CONFIG_INET_DIAG_DESTROY`) or refuses.
pub fn end_socket(protocol: u8, socket: &OpenSocket) -> Result<bool, Error> {
    let end = || {
        let (family, id) = &socket.name;
        let netlink = raw_netlink::open(NETLINK_SOCK_DIAG)?;
        let body = body(*family, protocol, !0, id);
        match request(&netlink, &message(DESTROY, NLM_F_REQUEST | NLM_F_ACK, &body)) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    };
    end().map_err(|cause| Error::new("end a socket", cause))
}

/// The sockets of a protocol in these states, a bit mask.
pub(super) fn list(protocol: u8, states: u32) -> io::Result<Vec<OpenSocket>> {
    let netlink = raw_netlink::open(NETLINK_SOCK_DIAG)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let body = body(family as u8, protocol, states, &[0; ID]);
        let request = message(BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, &body);
        raw_netlink::list(&netlink, &request, BY_FAMILY, |body| found.extend(socket(body)))?;
    }
    Ok(found)
}

/// `struct inet_diag_req_v2`; its name is empty for a list.
fn body(family: u8, protocol: u8, states: u32, name: &[u8; ID]) -> Vec<u8> {
    let mut body = vec![family, protocol, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(name);
    body
}

/// The socket of a `struct inet_diag_msg`: family and state, then `struct inet_diag_sockid`, and attributes behind it.
fn socket(body: &[u8]) -> Option<OpenSocket> {
    let (family, state) = (*body.first()?, *body.get(1)?);
    let id = *body.get(4..)?.first_chunk()?;
    let port = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let address = |at: usize| match i32::from(family) {
        libc::AF_INET => Some(IpAddr::from(*body.get(at..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => Some(IpAddr::from(*body.get(at..)?.first_chunk::<16>()?).to_canonical()),
        _ => None,
    };
    let local = SocketAddr::new(address(8)?, port(4)?);
    let remote = SocketAddr::new(address(24)?, port(6)?);
    let mut attributes = NlasIterator::new(body.get(MESSAGE..).unwrap_or_default());
    let cgroup = attributes.find_map(|it| it.ok().filter(|it| it.kind() == CGROUP));
    let cgroup = cgroup.and_then(|it| Some(u64::from_ne_bytes(*it.value().first_chunk()?)));
    Some(OpenSocket { state, local, remote, cgroup, name: (family, id) })
}

#[cfg(test)]
mod tests {
    use super::super::raw_netlink::{DONE, ERROR, attribute, read_list};
    use super::*;

    fn read(datagram: &[u8], found: &mut Vec<OpenSocket>) -> io::Result<bool> {
        read_list(datagram, BY_FAMILY, |body| found.extend(socket(body)))
    }

    #[test]
    fn sockets_are_read_from_a_list() {
        let mut body = vec![libc::AF_INET6 as u8, ESTABLISHED, 0, 0];
        body.extend([0, 80, 0x10, 0]);
        let mapped = "::ffff:192.0.2.1".parse::<std::net::Ipv6Addr>().unwrap();
        body.extend(mapped.octets());
        body.extend("::ffff:192.0.2.9".parse::<std::net::Ipv6Addr>().unwrap().octets());
        body.resize(72, 0);
        body.extend(attribute(8, &[0]));
        body.extend(attribute(CGROUP, &77_u64.to_ne_bytes()));
        let mut datagram = message(BY_FAMILY, 0, &body);
        let mut found = Vec::new();
        assert!(read(&datagram, &mut found).unwrap());
        let [only] = found[..] else { panic!("{found:?}") };
        assert_eq!(only.local, "192.0.2.1:80".parse().unwrap());
        assert_eq!(only.remote, "192.0.2.9:4096".parse().unwrap());
        assert_eq!((only.cgroup, only.is_listening()), (Some(77), false));
        datagram.extend(message(DONE, 0, &[0; 4]));
        assert!(!read(&datagram, &mut found).unwrap());
        for length in 0..datagram.len() {
            let _ = read(&datagram[..length], &mut Vec::new());
        }
        let refused = message(ERROR, 0, &(-libc::ENOENT).to_ne_bytes());
        let error = read(&refused, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_socket_is_found_by_its_ends_and_ended() {
        testkit::requires_root!();
        let namespace = testkit::Namespace::new("sock-diag");
        namespace.exec(["ip", "link", "set", "lo", "up"]);
        namespace.enter(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let own = client.local_addr().unwrap();
            let tcp = libc::IPPROTO_TCP as u8;
            let find = || open_sockets(tcp).unwrap().into_iter().find(|it| it.local == own);
            let found = find().unwrap();
            assert!(!found.is_listening() && found.cgroup.is_some(), "{found:?}");
            assert!(end_socket(tcp, &found).unwrap());
            let error = std::io::Read::read(&mut client, &mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
            assert!(!end_socket(tcp, &found).unwrap(), "it has ended");
            assert_eq!(find(), None);
        });
    }
}
