//! Session quotas by owner.
//!
//! | part of the table | is for |
//! |---|---|
//! | three eighths (half, without an uplink) | guarantees, one for each local port |
//! | one eighth (nothing, without an uplink) | guarantees, one for each remote owner |
//! | half | whoever comes first |
//!
//! A local port owns the sessions that its pod opens. Every other sender, a pod of another cluster node
//! or a network outside of the cluster, has one of a fixed number of remote owners, chosen by a keyed
//! hash. Of the common half a remote owner has at most as much as is left free there: however many of
//! them want all of it, some of it stays for the next.

use std::sync::atomic::{AtomicU32, Ordering};

use acl::Address;

use super::Refusal;
use crate::PortId;

/// Whose quota a session counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub(in crate::session) u16);

/// Numbers from here on are remote owners'.
const REMOTE: u16 = 0x8000;
/// Remote owners of a large table.
const MOST_REMOTE: u32 = 256;
/// Sessions that a remote owner should be guaranteed at least: a small table has fewer owners.
const LEAST_GUARANTEE: u32 = 4;

impl Owner {
    /// No owner: a session of an earlier process, until its initiator's next packet.
    pub const NONE: Self = Self(u16::MAX);

    /// The pod, or kernel, behind a local port.
    pub const fn port(port: PortId) -> Self {
        if port.0 < REMOTE { Self(port.0) } else { Self::NONE }
    }
}

/// The part of a sender's address that one remote owner stands for: the whole address of a pod, the
/// network of a host outside of the cluster (which may have many addresses in it).
pub(super) fn remote_sender(address: Address, is_in_cluster: bool) -> Address {
    let host_bits = match address.is_v4() {
        _ if is_in_cluster => 0,
        true => 8,
        false => 64,
    };
    Address::from_bits(address.bits() >> host_bits << host_bits)
}

/// Sessions in use, by owner.
pub(super) struct Quotas {
    capacity: u32,
    used: AtomicU32,
    ports: Box<[AtomicU32]>,
    remote: Box<[AtomicU32]>,
    nobodys: AtomicU32,
    port_guarantee: AtomicU32,
    remote_guarantee: AtomicU32,
}

impl Quotas {
    pub(super) fn new(capacity: u32, ports: u16) -> Self {
        let counters = |count: u32| (0..count).map(|_| AtomicU32::new(0)).collect();
        let remote = (capacity / 8 / LEAST_GUARANTEE).clamp(1, MOST_REMOTE);
        Self {
            capacity,
            used: AtomicU32::new(0),
            ports: counters(u32::from(ports.max(1))),
            remote: counters(remote),
            nobodys: AtomicU32::new(0),
            port_guarantee: AtomicU32::new(capacity),
            remote_guarantee: AtomicU32::new(capacity),
        }
    }

    /// Divides what is guaranteed among `ports` ports and, if there is an uplink, remote owners.
    pub(super) fn divide(&self, ports: usize, has_uplink: bool) {
        let (for_ports, for_remote) = match has_uplink {
            true => (self.capacity / 8 * 3, self.capacity / 8),
            false => (self.capacity / 2, 0),
        };
        let each = (for_ports / ports.clamp(1, self.capacity as usize) as u32).max(1);
        self.port_guarantee.store(each, Ordering::Relaxed);
        self.remote_guarantee.store(for_remote / self.remote.len() as u32, Ordering::Relaxed);
    }

    /// The remote owner of a sender with this hash: of two, the one with fewer sessions. A sender is
    /// refused for the sake of others only if both of its owners are also theirs.
    pub(super) fn remote_owner(&self, hash: u64) -> Owner {
        let choice = |hash: u64| (hash % self.remote.len() as u64) as u16;
        let used = |n: &u16| self.remote[usize::from(*n)].load(Ordering::Relaxed);
        let choices = [choice(hash & 0xffff_ffff), choice(hash >> 32)];
        Owner(REMOTE | choices.into_iter().min_by_key(used).unwrap_or_default())
    }

    /// Counts one more session of an owner, if it may have one.
    pub(super) fn reserve(&self, owner: Owner) -> Result<(), Refusal> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        let own = self.of(owner).fetch_add(1, Ordering::Relaxed);
        let common = (self.capacity / 2).saturating_sub(used);
        let (guarantee, most) = match self.is_remote(owner) {
            true => (&self.remote_guarantee, common),
            false if common > 0 => (&self.port_guarantee, u32::MAX),
            false => (&self.port_guarantee, 0),
        };
        let refusal = match guarantee.load(Ordering::Relaxed).max(most) {
            _ if used >= self.capacity => Refusal::Full,
            most if own >= most => Refusal::Quota,
            _ => return Ok(()),
        };
        self.release(owner);
        Err(refusal)
    }

    /// Counts a session that is there already.
    pub(super) fn take_up(&self, owner: Owner) {
        self.used.fetch_add(1, Ordering::Relaxed);
        self.of(owner).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one session less.
    pub(super) fn release(&self, owner: Owner) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        self.of(owner).fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a session as another owner's.
    pub(super) fn change(&self, from: Owner, to: Owner) {
        self.of(to).fetch_add(1, Ordering::Relaxed);
        self.of(from).fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn used_by(&self, owner: Owner) -> u32 {
        self.of(owner).load(Ordering::Relaxed)
    }

    pub(super) fn used_by_remote(&self) -> u32 {
        self.remote.iter().map(|used| used.load(Ordering::Relaxed)).sum()
    }

    fn is_remote(&self, owner: Owner) -> bool {
        owner.0 & REMOTE != 0 && usize::from(owner.0 & !REMOTE) < self.remote.len()
    }

    fn of(&self, owner: Owner) -> &AtomicU32 {
        let n = usize::from(owner.0 & !REMOTE);
        let counters = if owner.0 & REMOTE == 0 { &self.ports } else { &self.remote };
        counters.get(n).unwrap_or(&self.nobodys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_outside_are_networks_and_those_inside_are_pods() {
        let v4 = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(remote_sender(v4("203.0.113.77"), false), v4("203.0.113.0"));
        assert_eq!(remote_sender(v4("203.0.113.77"), true), v4("203.0.113.77"));
        assert_eq!(remote_sender(v4("2001:db8:1:2:3::4"), false), v4("2001:db8:1:2::"));
    }

    #[test]
    fn guarantees_never_add_up_to_more_than_their_part() {
        for capacity in [1_u32, 7, 100, 1024, 262_144] {
            let quotas = Quotas::new(capacity, 16);
            for (ports, has_uplink) in [(1, true), (5, true), (16, true), (16, false)] {
                quotas.divide(ports, has_uplink);
                let of_ports = quotas.port_guarantee.load(Ordering::Relaxed) * ports as u32;
                let each = quotas.remote_guarantee.load(Ordering::Relaxed);
                let sum = of_ports + each * quotas.remote.len() as u32;
                assert!(sum <= (capacity / 2).max(ports as u32), "{capacity}, {ports}: {sum}");
            }
        }
    }
}
