//! Session quotas by owner.
//!
//! | part of the table | is for |
//! |---|---|
//! | three eighths (half, without an uplink) | guarantees, one for each local port |
//! | one eighth (nothing, without an uplink) | guarantees, one for each remote owner |
//! | half | whoever comes first |
//!
//! A local port owns the sessions that its pod opens. Every other sender, a pod of another node
//! or a network outside of the cluster, has one of a fixed number of remote owners, chosen by a keyed
//! hash. Of the common half a remote owner has at most as much as is left free there: however many of
//! them want all of it, some of it stays for the next.
//!
//! Each thread counts what it opens and ends by itself, so that threads do not take cache lines from
//! each other; the sum over the threads is what is used. It is formed only for a table that is
//! filling up: while less than a quarter is used, no owner can have reached a bound.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use super::Refusal;
use super::free::{LISTS, Own};
use crate::session::owner::{Owner, REMOTE};
use crate::sync::OwnLines;

/// Remote owners of a large table.
const MOST_REMOTE: u32 = 256;
/// Sessions that a remote owner should be guaranteed at least: a small table has fewer owners.
const LEAST_GUARANTEE: u32 = 4;

/// Sessions in use, by owner.
pub(super) struct Quotas {
    capacity: u32,
    ports: usize,
    remote: usize,
    port_guarantee: AtomicU32,
    remote_guarantee: AtomicU32,
    /// Counts of the threads, by the numbers of their lists of records.
    threads: Box<[Counts]>,
    /// Threads from this number on count nothing.
    counting: AtomicUsize,
    /// Sessions in use, but for what threads have not reported.
    reported: OwnLines<AtomicI32>,
}

/// One thread's part of the counts; it is below zero where the thread ends sessions that another one
/// opened. Written by the holder of the thread's list.
#[repr(align(128))]
struct Counts {
    unreported: AtomicI32,
    /// By owner: ports, remote owners, none.
    owners: Box<[AtomicI32]>,
}

/// A thread reports this difference at once.
const MOST_UNREPORTED: i32 = 32;

impl Quotas {
    pub(super) fn new(capacity: u32, ports: u16) -> Self {
        let (ports, remote) =
            (ports.max(1).into(), (capacity / 8 / LEAST_GUARANTEE).clamp(1, MOST_REMOTE) as usize);
        let counts = |_| Counts {
            unreported: AtomicI32::new(0),
            owners: (0..=ports + remote).map(|_| AtomicI32::new(0)).collect(),
        };
        Self {
            capacity,
            ports,
            remote,
            port_guarantee: AtomicU32::new(capacity),
            remote_guarantee: AtomicU32::new(capacity),
            threads: (0..LISTS).map(counts).collect(),
            counting: AtomicUsize::new(0),
            reported: OwnLines(AtomicI32::new(0)),
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
        self.remote_guarantee.store(for_remote / self.remote as u32, Ordering::Relaxed);
    }

    /// The remote owner of a sender with this hash: of two, the one with fewer sessions. A sender is
    /// refused for the sake of others only if both of its owners are also theirs.
    pub(super) fn remote_owner(&self, hash: u64) -> Owner {
        let choice = |hash: u64| Owner(REMOTE | (hash % self.remote as u64) as u16);
        let choices = [choice(hash & 0xffff_ffff), choice(hash >> 32)];
        choices.into_iter().min_by_key(|owner| self.used_by(*owner)).unwrap_or(Owner::NONE)
    }

    /// Whether an owner may have one more session.
    #[inline]
    pub(super) fn check(&self, owner: Owner) -> Result<(), Refusal> {
        let unreported = MOST_UNREPORTED * self.counting.load(Ordering::Relaxed) as i32;
        let at_most = self.reported.0.load(Ordering::Relaxed) + unreported;
        let is_below = |bound: u32| i64::from(at_most) < i64::from(bound);
        // While there is something left of the common half, ports are refused nothing. The check reads
        // what other threads count.
        let is_free =
            is_below(self.capacity / 4) || is_below(self.capacity / 2) && !self.is_remote(owner);
        if is_free { Ok(()) } else { self.check_exactly(owner) }
    }

    #[inline(never)]
    fn check_exactly(&self, owner: Owner) -> Result<(), Refusal> {
        let used = self.used();
        let common = (self.capacity / 2).saturating_sub(used);
        let (guarantee, most) = match self.is_remote(owner) {
            true => (&self.remote_guarantee, common),
            false if common > 0 => (&self.port_guarantee, u32::MAX),
            false => (&self.port_guarantee, 0),
        };
        match guarantee.load(Ordering::Relaxed).max(most) {
            _ if used >= self.capacity => Err(Refusal::Full),
            most if self.used_by(owner) >= most => Err(Refusal::Quota),
            _ => Ok(()),
        }
    }

    /// Counts one more session of an owner.
    #[inline]
    pub(super) fn charge(&self, own: &Own<'_>, owner: Owner) {
        self.count(own, owner, 1);
    }

    /// Counts one session less.
    #[inline]
    pub(super) fn release(&self, own: &Own<'_>, owner: Owner) {
        self.count(own, owner, -1);
    }

    /// Counts a session as another owner's.
    pub(super) fn change(&self, own: &Own<'_>, from: Owner, to: Owner) {
        self.count(own, to, 1);
        self.count(own, from, -1);
    }

    pub(super) fn used(&self) -> u32 {
        let unreported = self.counting().iter().map(|it| it.unreported.load(Ordering::Relaxed));
        (self.reported.0.load(Ordering::Relaxed) + unreported.sum::<i32>()).max(0) as u32
    }

    pub(super) fn used_by(&self, owner: Owner) -> u32 {
        self.sum(self.place(owner))
    }

    pub(super) fn used_by_remote(&self) -> u32 {
        (self.ports..self.ports + self.remote).map(|place| self.sum(place)).sum()
    }

    fn sum(&self, place: usize) -> u32 {
        let counts = self.counting().iter().map(|it| it.owners[place].load(Ordering::Relaxed));
        counts.sum::<i32>().max(0) as u32
    }

    fn counting(&self) -> &[Counts] {
        &self.threads[..self.counting.load(Ordering::Acquire)]
    }

    #[inline]
    fn count(&self, own: &Own<'_>, owner: Owner, by: i32) {
        let number = own.number();
        if number >= self.counting.load(Ordering::Relaxed) {
            self.counting.fetch_max(number + 1, Ordering::AcqRel);
        }
        let Counts { unreported, owners } = &self.threads[number];
        // The list is locked, so no other thread writes these counts.
        let add = |counter: &AtomicI32| {
            let sum = counter.load(Ordering::Relaxed) + by;
            counter.store(sum, Ordering::Relaxed);
            sum
        };
        add(&owners[self.place(owner)]);
        let sum = add(unreported);
        if sum.abs() >= MOST_UNREPORTED {
            self.reported.0.fetch_add(sum, Ordering::Relaxed);
            unreported.store(0, Ordering::Relaxed);
        }
    }

    /// Number of counters of owners; see [`Self::place`].
    pub(super) fn places(&self) -> usize {
        self.ports + self.remote + 1
    }

    #[inline]
    pub(super) fn is_remote(&self, owner: Owner) -> bool {
        owner.0 & REMOTE != 0 && usize::from(owner.0 & !REMOTE) < self.remote
    }

    /// The place of an owner among the counters.
    #[inline]
    pub(super) fn place(&self, owner: Owner) -> usize {
        let n = usize::from(owner.0 & !REMOTE);
        match owner.0 & REMOTE {
            0 if n < self.ports => n,
            REMOTE if n < self.remote => self.ports + n,
            _ => self.ports + self.remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantees_never_add_up_to_more_than_their_part() {
        for capacity in [1_u32, 7, 100, 1024, 262_144] {
            let quotas = Quotas::new(capacity, 16);
            for (ports, has_uplink) in [(1, true), (5, true), (16, true), (16, false)] {
                quotas.divide(ports, has_uplink);
                let of_ports = quotas.port_guarantee.load(Ordering::Relaxed) * ports as u32;
                let each = quotas.remote_guarantee.load(Ordering::Relaxed);
                let sum = of_ports + each * quotas.remote as u32;
                assert!(sum <= (capacity / 2).max(ports as u32), "{capacity}, {ports}: {sum}");
            }
        }
    }
}
