//! A map by address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::compact::CompactMap;

/// A map by address with a table for each family: an IPv4 address in a table of both would take the room of an IPv6 one.
#[derive(Debug)]
pub(super) struct ByAddress<T> {
    v4: CompactMap<Ipv4Addr, T>,
    v6: CompactMap<Ipv6Addr, T>,
}

impl<T> Default for ByAddress<T> {
    fn default() -> Self {
        Self { v4: CompactMap::default(), v6: CompactMap::default() }
    }
}

impl<T> ByAddress<T> {
    pub(super) fn get(&self, address: IpAddr) -> Option<&T> {
        match address {
            IpAddr::V4(address) => self.v4.get(&address),
            IpAddr::V6(address) => self.v6.get(&address),
        }
    }

    pub(super) fn get_mut(&mut self, address: IpAddr) -> Option<&mut T> {
        match address {
            IpAddr::V4(address) => self.v4.get_mut(&address),
            IpAddr::V6(address) => self.v6.get_mut(&address),
        }
    }

    pub(super) fn insert(&mut self, address: IpAddr, value: T) -> Option<T> {
        match address {
            IpAddr::V4(address) => self.v4.insert(address, value),
            IpAddr::V6(address) => self.v6.insert(address, value),
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr) -> Option<T> {
        match address {
            IpAddr::V4(address) => self.v4.remove(&address),
            IpAddr::V6(address) => self.v6.remove(&address),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &T)> {
        let v4 = self.v4.iter().map(|(address, value)| (IpAddr::V4(*address), value));
        v4.chain(self.v6.iter().map(|(address, value)| (IpAddr::V6(*address), value)))
    }
}
