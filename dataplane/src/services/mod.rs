//! Services: virtual addresses and their backends.
//!
//! A connection to a service is mapped to a backend when it opens; its session translates every
//! packet after that. Policies evaluate the connection to the backend.

mod affinity;
mod maglev;
mod shared;

use std::sync::Arc;

use acl::Address;
use ahash::AHashMap;
use ipnet::IpNet;

pub use affinity::Affinities;
pub(crate) use affinity::Kept;

use crate::wire::Flow;
use maglev::Maglev;

/// An endpoint of a service. There may be many: the address has no alignment of its own, which would make 32 bytes
/// of 24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(Rust, packed(8))]
pub struct Backend {
    /// The endpoint's address.
    pub address: Address,
    /// Its port.
    pub port: u16,
}

/// Backends with a consistent choice among them. Equal lists share their table in the whole process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends(Arc<Table>);

/// A list of backends and its lookup table.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    list: Box<[Backend]>,
    /// Long lists of the same addresses, each at one port, share it.
    choice: Arc<Maglev>,
}

impl Backends {
    /// A choice among these; duplicates count once.
    pub fn new(mut list: Vec<Backend>) -> Self {
        list.sort_unstable();
        list.dedup();
        Self(shared::table(list))
    }

    /// The backend for a connection with this hash.
    #[inline]
    pub fn choose(&self, hash: u64) -> Option<Backend> {
        self.0.list.get(self.0.choice.choose(hash)).copied()
    }

    /// The places of the table of the choice, each with the number of a backend in the list; `None` if there are more
    /// than 255. A connection has the place of [`choice_hash`] in the upper half of its product with their number.
    pub fn places(&self) -> Option<&[u8]> {
        match (&self.0.list[..], &*self.0.choice) {
            ([], _) | (_, Maglev::Many(_)) => None,
            ([_], _) => Some(&[0]),
            (_, Maglev::Few(places)) => Some(places),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.list.is_empty()
    }

    /// All of them, in order.
    pub fn list(&self) -> &[Backend] {
        &self.0.list
    }
}

/// The hash by which a connection chooses its backend: the same on every node, and in the programs of flow offload. It
/// needs no key: choosing one's backend gains nothing.
pub fn choice_hash(flow: &Flow) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
        product as u64 ^ (product >> 64) as u64
    };
    let address = flow.source.bits();
    let ends = u64::from(flow.source_port) << 32
        | u64::from(flow.destination_port) << 16
        | u64::from(flow.protocol);
    let hash = mix(0x2545_f491_4f6c_dd1d, address as u64);
    mix(mix(mix(hash, (address >> 64) as u64), ends), flow.destination.bits() as u64)
}

/// One port of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// `ns/name:port`, for people.
    pub name: Arc<str>,
    /// For clients in the cluster, at the cluster address.
    pub internal: Backends,
    /// For clients in the cluster, at one of its other addresses.
    pub any: Backends,
    /// For clients outside the cluster.
    pub external: Backends,
    /// Seconds that a client keeps its backend (`sessionAffinity: ClientIP`).
    pub affinity_s: Option<u32>,
}

impl ServicePort {
    fn with_one_backend(&self, nth: usize) -> Self {
        let one = |backends: &Backends| {
            let list = backends.list();
            Backends::new(
                list.iter().cycle().skip(nth % list.len().max(1)).take(1).copied().collect(),
            )
        };
        Self {
            internal: one(&self.internal),
            any: one(&self.any),
            external: one(&self.external),
            affinity_s: None,
            ..self.clone()
        }
    }
}

/// The kind of address by which a client reaches a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Its cluster address.
    Cluster,
    /// An external or load-balancer address, or a node port.
    External,
}

/// The service of a destination.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The service's port.
    pub port: Arc<ServicePort>,
    /// The kind of address that the destination is.
    pub scope: Scope,
}

impl Entry {
    /// The backends for a client outside (or inside) the cluster.
    #[inline]
    pub fn backends(&self, outside: bool) -> &Backends {
        match (self.scope, outside) {
            (Scope::Cluster, _) => &self.port.internal,
            (Scope::External, false) => &self.port.any,
            (Scope::External, true) => &self.port.external,
        }
    }
}

/// All services, found by destination.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// By virtual address, protocol and port.
    entries: AHashMap<(Address, u8, u16), Entry>,
    /// Addresses of the entries, and whether they are exclusive to services.
    addresses: AHashMap<Address, bool>,
    /// The networks whose clients a destination admits; all, where it is not listed.
    sources: AHashMap<(Address, u8, u16), Arc<[IpNet]>>,
    /// By family (whether IPv6), protocol and port of the node's own addresses.
    node_ports: AHashMap<(bool, u8, u16), Entry>,
}

impl Services {
    /// Maps a virtual address to a service; the first entry wins.
    pub fn add(&mut self, address: Address, protocol: u8, port: u16, entry: Entry) {
        self.addresses.entry(address).or_insert(false);
        self.entries.entry((address, protocol, port)).or_insert(entry);
    }

    /// Restricts a destination to clients with addresses in `sources`.
    pub fn restrict(&mut self, address: Address, protocol: u8, port: u16, sources: Arc<[IpNet]>) {
        self.sources.entry((address, protocol, port)).or_insert(sources);
    }

    /// The networks whose clients a destination admits; `None` admits all.
    #[inline]
    pub fn sources(&self, address: Address, protocol: u8, port: u16) -> Option<&Arc<[IpNet]>> {
        match self.sources.is_empty() {
            true => None,
            false => self.sources.get(&(address, protocol, port)),
        }
    }

    /// Reserves a virtual address for services.
    pub fn claim(&mut self, address: Address) {
        self.addresses.insert(address, true);
    }

    /// Maps a port of the node's own addresses of a family to a service.
    pub fn add_node_port(&mut self, v6: bool, protocol: u8, port: u16, service: Arc<ServicePort>) {
        let entry = Entry { port: service, scope: Scope::External };
        self.node_ports.entry((v6, protocol, port)).or_insert(entry);
    }

    /// The services of these destinations alone, with one backend for each choice: the one at place
    /// `nth` of its list, counting round where the list is shorter.
    pub fn narrowed(&self, flows: &[Flow], nth: usize) -> Self {
        let mut narrowed = Self::default();
        for flow in flows {
            let Flow { destination, destination_port, protocol, .. } = *flow;
            let of = |entry: &Entry| Entry {
                port: Arc::new(entry.port.with_one_backend(nth)),
                scope: entry.scope,
            };
            if let Some(claimed) = self.addresses.get(&destination) {
                narrowed.addresses.insert(destination, *claimed);
            }
            let key = (destination, protocol, destination_port);
            narrowed.entries.extend(self.find(flow).map(|entry| (key, of(entry))));
            let sources = self.sources.get(&key).map(|sources| (key, Arc::clone(sources)));
            narrowed.sources.extend(sources);
            let key = (!destination.is_v4(), protocol, destination_port);
            narrowed.node_ports.extend(self.find_node_port(flow).map(|entry| (key, of(entry))));
        }
        narrowed
    }

    /// Whether there are no services.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Whether it is reserved for services.
    #[inline]
    pub fn is_claimed(&self, address: Address) -> bool {
        self.addresses.get(&address) == Some(&true)
    }

    /// Looks up the service of a virtual address.
    #[inline]
    pub fn find(&self, flow: &Flow) -> Option<&Entry> {
        self.entries.get(&(flow.destination, flow.protocol, flow.destination_port))
    }

    /// Looks up the service of a node port.
    #[inline]
    pub fn find_node_port(&self, flow: &Flow) -> Option<&Entry> {
        let v6 = !flow.destination.is_v4();
        self.node_ports.get(&(v6, flow.protocol, flow.destination_port))
    }

    /// Every destination with a service: protocol, port, and the address where it is not the
    /// node's own.
    pub fn iter(&self) -> impl Iterator<Item = (Option<Address>, u8, u16, &Entry)> {
        let by_address = self
            .entries
            .iter()
            .map(|((address, protocol, port), entry)| (Some(*address), *protocol, *port, entry));
        let by_node = self.node_ports();
        by_address.chain(by_node.map(|(_, protocol, port, entry)| (None, protocol, port, entry)))
    }

    /// Every port of the node's own addresses with a service: whether it is one of IPv6
    /// addresses, protocol and port.
    pub fn node_ports(&self) -> impl Iterator<Item = (bool, u8, u16, &Entry)> {
        let ports = self.node_ports.iter();
        ports.map(|((v6, protocol, port), entry)| (*v6, *protocol, *port, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_backend_at_a_time_visits_every_one_of_each_list() {
        let backend = |n: u16| Backend { address: Address::from_v4_bits(7), port: n };
        let of = |ports: &[u16]| Backends::new(ports.iter().map(|n| backend(*n)).collect());
        let port = ServicePort {
            internal: of(&[1, 2, 3]),
            any: of(&[4]),
            affinity_s: Some(9),
            ..ServicePort::default()
        };
        let at = Address::from_v4_bits(1);
        let mut services = Services::default();
        services.claim(at);
        services.add(at, 6, 80, Entry { port: Arc::new(port), scope: Scope::Cluster });
        let flow = Flow { destination: at, destination_port: 80, protocol: 6, ..Flow::default() };
        let other = Flow { destination_port: 81, ..flow };
        assert!(services.narrowed(&[other], 0).find(&flow).is_none());
        assert!(services.narrowed(&[other], 0).is_claimed(at));
        for nth in 0..5 {
            let narrowed = services.narrowed(&[flow], nth);
            assert!(narrowed.is_claimed(at));
            let port = &narrowed.find(&flow).unwrap().port;
            assert_eq!(port.internal.list(), [backend(nth as u16 % 3 + 1)]);
            assert_eq!(port.any.list(), [backend(4)]);
            assert!(port.external.is_empty() && port.affinity_s.is_none());
        }
    }
}
