//! Deletes entries of conntrack that outlive their reason.
//!
//! An entry records the initiator of a connection, and its translation. A stale one applies to the
//! next pod at the address: datagrams towards that pod pass as replies. Datagrams of a process keep
//! the endpoint, or the lack of one, that the first of them found.
//!
//! ```text
//!   ctnetlink ─ entries ─┬▶ an end in either tuple, translated or not, is departed ─┬▶ deleted
//!                        └▶ UDP, and leads elsewhere than the rules would by now  ──┘
//! ```
//!
//! The messages are those of `linux/netfilter/nfnetlink_conntrack.h`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::conntrack::{DELETE_ENTRY, GET_ENTRY, NEW_ENTRY, ORIGINAL, REPLY};
use super::error::Error;
use super::raw_netlink::{self, GENERIC, attribute, list, message, request};

/// `CTA_ID` and `CTA_ZONE`.
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// Deletes the conntrack entries that touch any of these addresses, in the calling thread's network namespace: as
/// source or destination of either tuple, and so behind a translation too. Returns the number of deleted entries.
///
/// # Errors
/// Fails if the kernel has no `nf_conntrack_netlink`, or refuses a request.
pub fn delete_connections(addresses: &BTreeSet<IpAddr>) -> Result<usize, Error> {
    if addresses.is_empty() {
        return Ok(0);
    }
    delete_where(|original, reply| touches(addresses, original, reply))
        .map_err(|cause| Error::new("delete departed pods' connections from conntrack", cause))
}

/// Deletes the UDP entries whose datagrams, for the first address, are led to the second one, if
/// `is_stale` says so of both. Returns the number of deleted entries.
///
/// # Errors
/// As [`delete_connections`].
pub(super) fn delete_flows(
    is_stale: impl Fn(SocketAddr, SocketAddr) -> bool,
) -> Result<usize, Error> {
    let deleted = delete_where(|original, reply| {
        let ends = original.destination().zip(reply.source());
        original.protocol == libc::IPPROTO_UDP as u8
            && ends.is_some_and(|(of, to)| is_stale(of, to))
    });
    deleted.map_err(|cause| Error::new("delete stale flows to services from conntrack", cause))
}

fn touches(addresses: &BTreeSet<IpAddr>, original: &Tuple, reply: &Tuple) -> bool {
    [original, reply].iter().flat_map(|it| &it.addresses).any(|end| addresses.contains(end))
}

/// Deletes the entries that `test` chooses by both tuples.
fn delete_where(test: impl Fn(&Tuple, &Tuple) -> bool) -> io::Result<usize> {
    let socket = raw_netlink::open(NETLINK_NETFILTER)?;
    let request_all = message(GET_ENTRY, NLM_F_REQUEST | NLM_F_DUMP, &[0; GENERIC]);
    let mut found = Vec::new();
    list(&socket, &request_all, NEW_ENTRY, |body| found.extend(name_if(body, &test)))?;
    delete_each(&found, |entry| {
        request(&socket, &message(DELETE_ENTRY, NLM_F_REQUEST | NLM_F_ACK, entry))
    })
}

/// Returns the number of deleted entries, or an error if one was refused, which does not stop the others.
fn delete_each(
    entries: &[Vec<u8>],
    mut delete: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<usize> {
    let (mut deleted, mut refused) = (0, None);
    for entry in entries {
        match delete(entry) {
            Ok(()) => deleted += 1,
            // It ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(deleted), Err)
}

/// Returns the family, original tuple, number and zone of an entry that `test` chooses, as the body
/// of a request.
fn name_if(body: &[u8], test: impl Fn(&Tuple, &Tuple) -> bool) -> Option<Vec<u8>> {
    let (generic, attributes) = body.split_at_checked(GENERIC)?;
    let mut name = generic.to_vec();
    let [mut original, mut reply] = [const { Tuple::NONE }; 2];
    for it in NlasIterator::new(attributes).map_while(Result::ok) {
        match it.kind() {
            ORIGINAL => original = Tuple::read(it.value()),
            REPLY => reply = Tuple::read(it.value()),
            _ => {}
        }
        match it.kind() {
            ORIGINAL => name.extend(attribute(ORIGINAL | NESTED, it.value())),
            kind @ (ID | ZONE) => name.extend(attribute(kind, it.value())),
            _ => {}
        }
    }
    test(&original, &reply).then_some(name)
}

/// A tuple, as far as it could be read.
struct Tuple {
    /// Source and destination.
    addresses: Vec<IpAddr>,
    protocol: u8,
    /// Of source and destination; 0 if the protocol has none.
    ports: [u16; 2],
}

impl Tuple {
    const NONE: Self = Self { addresses: Vec::new(), protocol: 0, ports: [0; 2] };

    /// Reads `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`.
    fn read(tuple: &[u8]) -> Self {
        const ADDRESSES: u16 = 1;
        const PROTOCOL: u16 = 2;
        let mut read = Self::NONE;
        for nested in NlasIterator::new(tuple).map_while(Result::ok) {
            for it in NlasIterator::new(nested.value()).map_while(Result::ok) {
                match (nested.kind(), it.kind(), it.value()) {
                    (ADDRESSES, _, value) => {
                        let v4 = value.try_into().map(|octets: [u8; 4]| IpAddr::from(octets));
                        let v6 = || value.try_into().map(|octets: [u8; 16]| IpAddr::from(octets));
                        read.addresses.extend(v4.or_else(|_| v6()));
                    }
                    (PROTOCOL, 1, [number]) => read.protocol = *number,
                    (PROTOCOL, end @ (2 | 3), [high, low]) => {
                        read.ports[usize::from(end == 3)] = u16::from_be_bytes([*high, *low]);
                    }
                    _ => {}
                }
            }
        }
        read
    }

    fn source(&self) -> Option<SocketAddr> {
        self.addresses.first().map(|address| SocketAddr::new(*address, self.ports[0]))
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.addresses.get(1).map(|address| SocketAddr::new(*address, self.ports[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::raw_netlink::{DONE, ERROR, read_list};
    use super::*;

    fn read_entries(
        datagram: &[u8],
        addresses: &BTreeSet<IpAddr>,
        found: &mut Vec<Vec<u8>>,
    ) -> io::Result<bool> {
        read_list(datagram, NEW_ENTRY, |body| {
            found.extend(name_if(body, |original, reply| touches(addresses, original, reply)));
        })
    }

    #[test]
    fn a_tuple_is_read_with_its_ports() {
        let ports = [attribute(1, &[17]), attribute(2, &[0x12, 0x34]), attribute(3, &[0, 53])];
        let addresses = [attribute(1, &[10, 0, 0, 1]), attribute(2, &[10, 96, 0, 1])].concat();
        let nested = |kind, value: &[u8]| attribute(kind | NESTED, value);
        let tuple = Tuple::read(&[nested(1, &addresses), nested(2, &ports.concat())].concat());
        assert_eq!(tuple.protocol, 17);
        assert_eq!(tuple.source(), Some("10.0.0.1:4660".parse().unwrap()));
        assert_eq!(tuple.destination(), Some("10.96.0.1:53".parse().unwrap()));
    }

    #[test]
    fn a_refused_deletion_keeps_no_other_entry() {
        let entries = [vec![1], vec![2], vec![3]];
        let with = |errors: [i32; 3]| {
            let mut asked = Vec::new();
            let result = delete_each(&entries, |entry| {
                asked.push(entry[0]);
                match errors[asked.len() - 1] {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            });
            assert_eq!(asked, [1, 2, 3]);
            result.map_err(|error| error.raw_os_error())
        };
        assert_eq!(with([0, libc::ENOENT, 0]), Ok(2), "it ended meanwhile");
        // As the kernel answers about a flow that a flow table forwards.
        assert_eq!(with([libc::EBUSY, 0, 0]), Err(Some(libc::EBUSY)));
    }

    fn tuple(kind: u16, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let addresses = [attribute(1, &from), attribute(2, &to)].concat();
        attribute(kind | NESTED, &attribute(1 | NESTED, &addresses))
    }

    #[test]
    fn entries_are_found_by_every_end_of_both_tuples() {
        let original = tuple(ORIGINAL, [10, 0, 0, 1], [10, 96, 0, 1]);
        let reply = tuple(REPLY, [10, 0, 0, 2], [192, 0, 2, 1]);
        let id = attribute(ID, &7_u32.to_be_bytes());
        let status = attribute(3, &[0; 4]);
        let generic = [libc::AF_INET as u8, 0, 0, 0];
        let body = [&generic[..], &original, &reply, &status, &id].concat();
        let mut datagram = message(NEW_ENTRY, 0, &body);
        datagram.extend(message(DONE, 0, &[0; 4]));
        let found = |address: &str| {
            let mut found = Vec::new();
            assert!(
                !read_entries(&datagram, &[address.parse().unwrap()].into(), &mut found).unwrap()
            );
            found
        };
        let name = [&generic[..], &original, &id].concat();
        for end in ["10.0.0.1", "10.96.0.1", "10.0.0.2", "192.0.2.1"] {
            assert_eq!(found(end), std::slice::from_ref(&name), "{end}");
        }
        assert!(found("10.0.0.3").is_empty());
        for length in 0..datagram.len() {
            let all = ["10.0.0.1".parse().unwrap()].into();
            let _ = read_entries(&datagram[..length], &all, &mut Vec::new());
        }
        let refused = message(ERROR, 0, &(-libc::EPERM).to_ne_bytes());
        let error = read_entries(&refused, &BTreeSet::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
