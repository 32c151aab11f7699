//! Deletes conntrack's entries of addresses whose pods are gone.
//!
//! An entry records the initiator of a connection. A stale one applies to the next pod at the address: datagrams
//! towards that pod pass as replies.
//!
//! ```text
//!   ctnetlink ─ entries ─▶ an end in either tuple, translated or not, is departed ─▶ deleted
//! ```
//!
//! The messages are those of `linux/netfilter/nfnetlink_conntrack.h`.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

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
    let delete = || {
        let socket = raw_netlink::open(NETLINK_NETFILTER)?;
        let request_all = message(GET_ENTRY, NLM_F_REQUEST | NLM_F_DUMP, &[0; GENERIC]);
        let mut found = Vec::new();
        list(&socket, &request_all, NEW_ENTRY, |body| {
            found.extend(name_if_touched(body, addresses))
        })?;
        delete_each(&found, |entry| {
            request(&socket, &message(DELETE_ENTRY, NLM_F_REQUEST | NLM_F_ACK, entry))
        })
    };
    delete().map_err(|cause| Error::new("delete departed pods' connections from conntrack", cause))
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

/// Returns the family, original tuple, number and zone of an entry that touches `addresses`, as the body of a request.
fn name_if_touched(body: &[u8], addresses: &BTreeSet<IpAddr>) -> Option<Vec<u8>> {
    let (generic, attributes) = body.split_at_checked(GENERIC)?;
    let mut name = generic.to_vec();
    let mut is_touched = false;
    for it in NlasIterator::new(attributes).map_while(Result::ok) {
        if matches!(it.kind(), ORIGINAL | REPLY) {
            is_touched |= ends(it.value()).iter().any(|end| addresses.contains(end));
        }
        match it.kind() {
            ORIGINAL => name.extend(attribute(ORIGINAL | NESTED, it.value())),
            kind @ (ID | ZONE) => name.extend(attribute(kind, it.value())),
            _ => {}
        }
    }
    is_touched.then_some(name)
}

/// Source and destination of a tuple: the addresses in its `CTA_TUPLE_IP`.
fn ends(tuple: &[u8]) -> Vec<IpAddr> {
    const ADDRESSES: u16 = 1;
    let mut found = Vec::new();
    for nested in NlasIterator::new(tuple).map_while(Result::ok) {
        if nested.kind() != ADDRESSES {
            continue;
        }
        for it in NlasIterator::new(nested.value()).map_while(Result::ok) {
            let v4 = it.value().try_into().map(|octets: [u8; 4]| IpAddr::from(octets));
            let v6 = || it.value().try_into().map(|octets: [u8; 16]| IpAddr::from(octets));
            found.extend(v4.or_else(|_| v6()));
        }
    }
    found
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
        read_list(datagram, NEW_ENTRY, |body| found.extend(name_if_touched(body, addresses)))
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
