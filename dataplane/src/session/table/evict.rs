//! Makes room for a connection whose owner has used its share: sessions of the same owner give up theirs.
//!
//! | order | sessions | how many at once |
//! |---|---|---|
//! | 1 | TCP that both ends have closed, or that was reset; answered questions to resolvers; what a policy denies | an eighth of those seen, 8 at most |
//! | 2 | without a reply | the same |
//! | 3 | all others but established TCP | one |
//! | 4 | established TCP, of local owners alone | one |
//!
//! Among those of one kind the longest idle go first. A packet cannot wait for a search of the whole table, so
//! the choice is among a sample: [`SAMPLE`] records from a position that advances through the table, or up to
//! [`SAMPLES`] times as many where the first have none of the owner. If no sample has one, the owner's
//! connections are refused for the rest of the second without another search, which bounds the cost of a flood.
//!
//! A remote owner stands for many senders; no flood of one of them ends an established connection of another.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Sessions;
use super::end::next_places;
use crate::session::owner::Owner;
use crate::session::{ConnectionState, Found};
use crate::wire::protocol;

/// Records of a sample.
const SAMPLE: u32 = 256;
/// Samples taken until one has sessions of the owner.
const SAMPLES: u32 = 4;
/// Sessions that give up their place at once.
const MOST: usize = 8;

/// Order in which sessions give up their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Closed,
    Unanswered,
    Idle,
    Established,
}

impl Order {
    fn of(protocol: u8, state: ConnectionState) -> Self {
        match protocol {
            _ if state.is_refused() => Self::Closed,
            protocol::TCP if state.is_over() => Self::Closed,
            protocol::TCP if state.is_opening() => Self::Unanswered,
            protocol::TCP if state.is_established() => Self::Established,
            protocol::TCP => Self::Idle,
            _ if state.is_settled(protocol) => Self::Closed,
            _ if state.is_answered() => Self::Idle,
            _ => Self::Unanswered,
        }
    }

    /// Number of sessions that may go, of so many.
    fn share(self, seen: usize) -> usize {
        match self {
            Self::Closed | Self::Unanswered => (seen / 8).clamp(1, MOST),
            Self::Idle | Self::Established => 1,
        }
    }
}

/// Sessions that gave up their place, by what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// TCP that was closed or reset, answered questions to resolvers, and what a policy denied.
    pub closed: u64,
    /// Without a reply.
    pub unanswered: u64,
    /// Idle, other than established TCP.
    pub idle: u64,
    /// Established TCP.
    pub established: u64,
}

/// State of the search for sessions that may go.
pub(super) struct Evictions {
    /// Place at which the next sample begins.
    hand: AtomicU32,
    /// By [`Order`].
    counts: [AtomicU64; 4],
    /// By owner, the second after the one in which samples were in vain.
    in_vain: Box<[AtomicU32]>,
}

impl Evictions {
    pub(super) fn new(owners: usize) -> Self {
        let in_vain = (0..owners).map(|_| AtomicU32::new(0)).collect();
        Self { hand: AtomicU32::new(0), counts: Default::default(), in_vain }
    }
}

/// The sessions of one sample that may go: of the first kind in order, the longest idle.
#[derive(Default)]
struct Candidates {
    order: Option<Order>,
    seen: usize,
    oldest: Vec<Found>,
}

impl Candidates {
    fn add(&mut self, order: Order, found: Found) {
        if self.order.is_some_and(|of| of < order) {
            return;
        }
        if self.order != Some(order) {
            *self = Self { order: Some(order), seen: 0, oldest: Vec::with_capacity(MOST + 1) };
        }
        self.seen += 1;
        let place = self.oldest.partition_point(|it| it.last_seen() <= found.last_seen());
        if place < MOST {
            self.oldest.insert(place, found);
            self.oldest.truncate(MOST);
        }
    }
}

impl Sessions {
    /// Sessions that gave up their place for another one of their owner.
    pub fn evicted(&self) -> Evicted {
        let [closed, unanswered, idle, established] =
            [0, 1, 2, 3].map(|n: usize| self.evictions.counts[n].load(Ordering::Relaxed));
        Evicted { closed, unanswered, idle, established }
    }

    /// Ends sessions of an owner whose share is used up; returns whether there were any.
    #[cold]
    pub(super) fn make_room(&self, owner: Owner, now_s: u32) -> bool {
        let in_vain = &self.evictions.in_vain[self.quotas.place(owner)];
        if in_vain.load(Ordering::Relaxed) == now_s.wrapping_add(1) {
            return false;
        }
        let mut candidates = Candidates::default();
        for _ in 0..SAMPLES {
            self.sample(owner, &mut candidates);
            if candidates.order.is_some_and(|order| order < Order::Established) {
                break;
            }
        }
        let Some(order) = candidates.order else {
            in_vain.store(now_s.wrapping_add(1), Ordering::Relaxed);
            return false;
        };
        let most = order.share(candidates.seen);
        candidates.oldest.iter().take(most).for_each(|found| self.close(found.id));
        let count = candidates.oldest.len().min(most) as u64;
        self.evictions.counts[order as usize].fetch_add(count, Ordering::Relaxed);
        true
    }

    fn sample(&self, owner: Owner, candidates: &mut Candidates) {
        let places = next_places(&self.evictions.hand, SAMPLE, self.free.end_of_used());
        let is_remote = self.quotas.is_remote(owner);
        for index in places {
            let record = &self.records[index as usize];
            let is_candidate = record.owner() == owner;
            let Some(entry) = is_candidate.then(|| record.read()).flatten() else { continue };
            let found = entry.found(index, true);
            let order = Order::of(found.protocol, found.state());
            if entry.owner() == owner && !(is_remote && order == Order::Established) {
                candidates.add(order, found);
            }
        }
    }
}
