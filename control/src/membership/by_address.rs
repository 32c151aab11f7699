//! A map by address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::RandomState;

/// A map by address with a table for each family: an IPv4 address in a table of both would take the room of an IPv6 one.
#[derive(Debug)]
pub(super) struct ByAddress<T> {
    v4: HashMap<Ipv4Addr, T, RandomState>,
    v6: HashMap<Ipv6Addr, T, RandomState>,
}

impl<T> Default for ByAddress<T> {
    fn default() -> Self {
        Self { v4: HashMap::default(), v6: HashMap::default() }
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &T)> {
        let v4 = self.v4.iter().map(|(address, value)| (IpAddr::V4(*address), value));
        v4.chain(self.v6.iter().map(|(address, value)| (IpAddr::V6(*address), value)))
    }

    /// Makes room for so many addresses of either family in all.
    pub(super) fn expect(&mut self, v4: usize, v6: usize) {
        self.v4.reserve(v4.saturating_sub(self.v4.len()));
        self.v6.reserve(v6.saturating_sub(self.v6.len()));
    }
}
