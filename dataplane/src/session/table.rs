//! The session table: records, the index that finds them, and who may have how many.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;

use super::record::{Record, judged_word, life_word};
use super::{Found, SessionId, TcpState, Timeouts};
use crate::PortId;
use crate::cpu;
use crate::wire::{Flow, protocol};

/// Slots of a bucket: one cache line.
const SLOTS: usize = 8;
/// Buckets a session may be in. Half-full buckets of eight overflow rarely, eight in a row never.
const PROBES: usize = 8;
/// Locks that makers of sessions spread over.
const STRIPES: usize = 1024;

/// Why a session was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No record, or no place in the index, is left.
    Full,
    /// The port has used its guarantee and the shared half is taken.
    Quota,
}

#[repr(align(64))]
#[derive(Default)]
struct Bucket([AtomicU64; SLOTS]);

/// The sessions of a switch, shared by its workers.
pub struct Sessions {
    records: Box<[Record]>,
    buckets: Box<[Bucket]>,
    /// A bit for each bucket that was once too full for a session of its own, so that most
    /// packets without a session look into one bucket only.
    overflowed: Box<[AtomicU64]>,
    stripes: Box<[Mutex<()>]>,
    free: Mutex<Free>,
    used: AtomicU32,
    used_by: Box<[AtomicU32]>,
    guarantee: AtomicU32,
    timeouts: Timeouts,
    hasher: RandomState,
}

struct Free {
    returned: Vec<u32>,
    /// Records from here on have never been used.
    fresh: u32,
}

impl Sessions {
    /// A table for `capacity` sessions opened from `ports` ports (numbers below that).
    pub fn new(capacity: u32, ports: u16, timeouts: Timeouts) -> Arc<Self> {
        let capacity = capacity.max(1);
        let buckets = (2 * capacity as usize / SLOTS).next_power_of_two().max(PROBES);
        Arc::new(Self {
            records: (0..capacity).map(|_| Record::free()).collect(),
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            overflowed: (0..buckets.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            free: Mutex::new(Free { returned: Vec::new(), fresh: 0 }),
            used: AtomicU32::new(0),
            used_by: (0..ports.max(1)).map(|_| AtomicU32::new(0)).collect(),
            guarantee: AtomicU32::new(capacity),
            timeouts,
            hasher: RandomState::new(),
        })
    }

    /// How many sessions fit.
    pub fn capacity(&self) -> u32 {
        self.records.len() as u32
    }

    /// How many there are.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// How many of them a port opened.
    pub fn used_by(&self, port: PortId) -> u32 {
        self.payer(port).load(Ordering::Relaxed)
    }

    /// Divides half of the table into guarantees for `ports` ports.
    pub fn set_ports(&self, ports: usize) {
        let guarantee = (self.records.len() / (2 * ports.max(1))).max(1);
        self.guarantee.store(guarantee as u32, Ordering::Relaxed);
    }

    /// A hash that is the same for both directions of a connection, keyed at random.
    #[inline]
    pub fn hash(&self, flow: &Flow) -> u64 {
        let source = (flow.source, flow.source_port);
        let destination = (flow.destination, flow.destination_port);
        let (low, high) =
            if source <= destination { (source, destination) } else { (destination, source) };
        let rest = u64::from(low.1) << 32 | u64::from(high.1) << 16 | u64::from(flow.protocol);
        self.hasher.hash_one((low.0.bits(), high.0.bits(), rest))
    }

    /// Asks for the cache line where the search for this hash begins.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        cpu::prefetch(self.first_bucket(hash));
    }

    /// Asks for the session that this hash most likely leads to; the bucket should have arrived.
    #[inline]
    pub fn prefetch_session(&self, hash: u64) {
        let tag = tag(hash);
        let slots = &self.first_bucket(hash).0;
        let found = slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        if let Some(value) = found.into_iter().find(|value| value >> 32 == tag)
            && let Some(record) = self.records.get((value as u32).wrapping_sub(1) as usize)
        {
            cpu::prefetch(record);
        }
    }

    /// The live session that `flow` is a packet of.
    #[inline]
    pub fn find(&self, hash: u64, flow: &Flow, now_s: u32) -> Option<Found> {
        self.find_any(hash, flow).filter(|found| !self.is_idle(found, now_s))
    }

    /// Makes a session for `flow`, or finds the one another packet made meanwhile.
    ///
    /// `payer` is the port that opens it; `out_port` is where its packets leave.
    pub fn open(
        &self,
        hash: u64,
        flow: &Flow,
        opening: &Opening,
        now_s: u32,
    ) -> Result<SessionId, Refusal> {
        let stripe = &self.stripes[hash as usize % STRIPES];
        // Nothing under the lock can fail half-way, so a poisoned lock protects nothing.
        let _guard = stripe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.find_any(hash, flow) {
            if !self.is_idle(&found, now_s) {
                return Ok(found.id);
            }
            self.close(hash, found.id);
        }
        if self.used() >= self.capacity() {
            return Err(Refusal::Full);
        }
        let payer = self.payer(opening.payer);
        if payer.load(Ordering::Relaxed) >= self.guarantee.load(Ordering::Relaxed)
            && self.used() >= self.capacity() / 2
        {
            return Err(Refusal::Quota);
        }
        let index = self.take_free().ok_or(Refusal::Full)?;
        let judged = judged_word(opening.generation, opening.out_port, PortId::NONE);
        let life = life_word(now_s, TcpState::default().after(opening.tcp_flags, true));
        let sequence = self.records[index as usize].open(flow, opening.payer, judged, life);
        let value = tag(hash) << 32 | u64::from(index + 1);
        let placed = self.probes(hash).any(|bucket| {
            let placed = self.buckets[bucket].0.iter().any(|slot| {
                slot.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            if !placed {
                // Before a session can be in the next one, it must be looked for there.
                self.overflowed[bucket / 64].fetch_or(1 << (bucket % 64), Ordering::AcqRel);
            }
            placed
        });
        if !placed {
            self.records[index as usize].close(sequence);
            self.give_back(index);
            return Err(Refusal::Full);
        }
        self.used.fetch_add(1, Ordering::Relaxed);
        payer.fetch_add(1, Ordering::Relaxed);
        Ok(SessionId { index, sequence })
    }

    /// Notes that a packet of the session passed.
    #[inline]
    pub fn touch(&self, found: &Found, tcp_flags: u8, now_s: u32) {
        let state = match found.flow.protocol {
            protocol::TCP => found.state().after(tcp_flags, found.forward),
            _ => TcpState::default(),
        };
        self.records[found.id.index as usize].set_life(found.life, life_word(now_s, state));
    }

    /// Stamps the session with the generation that allowed it again, and the output port of the
    /// direction it was judged in; the other direction's is looked up at its next packet.
    #[inline]
    pub fn stamp(&self, found: &Found, generation: u64, out_port: PortId) {
        let (forward, reverse) = match (found.forward, found.is_of(generation)) {
            (true, true) => (out_port, PortId(found.judged as u16)),
            (false, true) => (PortId((found.judged >> 16) as u16), out_port),
            (true, false) => (out_port, PortId::NONE),
            (false, false) => (PortId::NONE, out_port),
        };
        let new = judged_word(generation, forward, reverse);
        self.records[found.id.index as usize].set_judged(found.judged, new);
    }

    /// Ends a session.
    pub fn end(&self, found: &Found) {
        self.close(self.hash(&found.flow), found.id);
    }

    /// Ends idle sessions among `count` records from `from` on; returns where to go on.
    pub fn sweep(&self, from: u32, count: u32, now_s: u32) -> u32 {
        let capacity = self.capacity();
        let end = from.saturating_add(count).min(capacity);
        for index in from..end {
            if let Some((found, _)) = self.records[index as usize].read(index)
                && self.is_idle(&found, now_s)
            {
                self.end(&found);
            }
        }
        if end == capacity { 0 } else { end }
    }

    /// Ends all sessions that `port` opened, once it opens no more: whoever gets its number next
    /// has all of its room, and a port that is gone takes nobody else's.
    pub fn end_of(&self, port: PortId) {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).fresh;
        for index in 0..used {
            if let Some((found, payer)) = self.records[index as usize].read(index)
                && payer == port
            {
                self.end(&found);
            }
        }
    }

    /// The sessions there are, as a picture taken while they change.
    pub fn iter(&self) -> impl Iterator<Item = Found> + '_ {
        let numbered = self.records.iter().enumerate();
        numbered.filter_map(|(index, record)| record.read(index as u32).map(|(found, _)| found))
    }

    fn close(&self, hash: u64, id: SessionId) {
        let record = &self.records[id.index as usize];
        let payer = record.read(id.index).map(|(_, payer)| payer);
        if !record.close(id.sequence) {
            return;
        }
        let value = tag(hash) << 32 | u64::from(id.index + 1);
        let mut slots = self.buckets_in_use(hash).flat_map(|bucket| &self.buckets[bucket].0);
        slots.any(|slot| {
            slot.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        self.used.fetch_sub(1, Ordering::Relaxed);
        if let Some(payer) = payer {
            self.payer(payer).fetch_sub(1, Ordering::Relaxed);
        }
        self.give_back(id.index);
    }

    /// The session that `flow` is a packet of, be it idle.
    #[inline]
    fn find_any(&self, hash: u64, flow: &Flow) -> Option<Found> {
        let tag = tag(hash);
        for bucket in self.buckets_in_use(hash) {
            for slot in &self.buckets[bucket].0 {
                let value = slot.load(Ordering::Acquire);
                if value >> 32 != tag {
                    continue;
                }
                let index = (value as u32).wrapping_sub(1);
                let Some(record) = self.records.get(index as usize) else { continue };
                let Some((mut found, _)) = record.read(index) else { continue };
                if found.flow != *flow {
                    if found.flow != flow.reversed() {
                        continue;
                    }
                    found.forward = false;
                }
                return Some(found);
            }
        }
        None
    }

    #[inline]
    fn is_idle(&self, found: &Found, now_s: u32) -> bool {
        let idle_s = now_s.saturating_sub(found.last_seen());
        idle_s > self.timeouts.seconds(found.flow.protocol, found.state())
    }

    /// The buckets that a session of this hash may be put into, in order.
    #[inline]
    fn probes(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mask = self.buckets.len() - 1;
        // Odd, so that no bucket comes twice.
        let step = (hash >> 32) as usize | 1;
        (0..PROBES).map(move |n| (hash as usize).wrapping_add(n * step) & mask)
    }

    /// The buckets that may hold one: each after the first only if the one before overflowed.
    #[inline]
    fn buckets_in_use(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mut goes_on = true;
        self.probes(hash).take_while(move |bucket| {
            let this_one = goes_on;
            goes_on = this_one && self.has_overflowed(*bucket);
            this_one
        })
    }

    #[inline]
    fn has_overflowed(&self, bucket: usize) -> bool {
        self.overflowed[bucket / 64].load(Ordering::Acquire) >> (bucket % 64) & 1 == 1
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    fn payer(&self, port: PortId) -> &AtomicU32 {
        &self.used_by[usize::from(port.0).min(self.used_by.len() - 1)]
    }

    fn take_free(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.pop().or_else(|| {
            let index = free.fresh;
            (index < self.capacity()).then(|| {
                free.fresh += 1;
                index
            })
        })
    }

    fn give_back(&self, index: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).returned.push(index);
    }
}

/// What a new session starts with.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The port that opens the connection and whose share it counts against.
    pub payer: PortId,
    /// Where the opener's packets leave.
    pub out_port: PortId,
    /// The generation that allowed it.
    pub generation: u64,
    /// TCP flags of the opening packet, or 0.
    pub tcp_flags: u8,
}

/// Never 0, so that an empty slot matches nobody.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash >> 32) | 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp_flags::{ACK, FIN, RST, SYN};

    fn flow(n: u32) -> Flow {
        Flow {
            source: acl::Address::from_v4_bits(0x0a01_0002),
            destination: acl::Address::from_v4_bits(0x0a02_0000 + (n >> 16)),
            source_port: n as u16,
            destination_port: 80,
            protocol: protocol::TCP,
        }
    }

    fn opening(port: u16) -> Opening {
        Opening { payer: PortId(port), out_port: PortId(9), generation: 1, tcp_flags: SYN }
    }

    fn open(sessions: &Sessions, flow: &Flow, port: u16) -> Result<SessionId, Refusal> {
        sessions.open(sessions.hash(flow), flow, &opening(port), 0)
    }

    fn find(sessions: &Sessions, flow: &Flow, now_s: u32) -> Option<Found> {
        sessions.find(sessions.hash(flow), flow, now_s)
    }

    #[test]
    fn both_directions_find_the_session() {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        open(&sessions, &flow(1), 0).unwrap();
        let forward = find(&sessions, &flow(1), 0).unwrap();
        let reverse = find(&sessions, &flow(1).reversed(), 0).unwrap();
        assert!(forward.forward && !reverse.forward);
        assert_eq!(forward.id, reverse.id);
        assert_eq!((forward.out_port(), reverse.out_port()), (PortId(9), PortId::NONE));
        assert!(find(&sessions, &flow(2), 0).is_none());
    }

    #[test]
    fn output_ports_belong_to_one_generation() {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        open(&sessions, &flow(1), 0).unwrap();
        let back = flow(1).reversed();
        sessions.stamp(&find(&sessions, &back, 0).unwrap(), 1, PortId(4));
        assert_eq!(find(&sessions, &flow(1), 0).unwrap().out_port(), PortId(9));
        assert_eq!(find(&sessions, &back, 0).unwrap().out_port(), PortId(4));
        sessions.stamp(&find(&sessions, &back, 0).unwrap(), 2, PortId(5));
        let forward = find(&sessions, &flow(1), 0).unwrap();
        assert!(forward.is_of(2) && forward.out_port() == PortId::NONE);
    }

    #[test]
    fn a_connection_lives_as_long_as_its_state_says() {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        open(&sessions, &flow(1), 0).unwrap();
        let see = |flags, flow: &Flow| {
            sessions.touch(&find(&sessions, flow, 0).unwrap(), flags, 0);
        };
        assert!(find(&sessions, &flow(1), 121).is_none(), "no handshake yet");
        see(SYN | ACK, &flow(1).reversed());
        see(ACK, &flow(1));
        assert!(find(&sessions, &flow(1), 24 * 3600).is_some(), "established");
        see(FIN | ACK, &flow(1));
        assert!(!find(&sessions, &flow(1), 0).unwrap().state().is_over());
        assert!(find(&sessions, &flow(1), 121).is_none(), "closing");
        see(RST, &flow(1).reversed());
        assert!(find(&sessions, &flow(1), 0).unwrap().state().is_over());
    }

    #[test]
    fn idle_sessions_are_swept_and_their_room_used_again() {
        let sessions = Sessions::new(100, 1, Timeouts::default());
        for n in 0..100 {
            open(&sessions, &flow(n), 0).unwrap();
        }
        assert_eq!(open(&sessions, &flow(100), 0), Err(Refusal::Full));
        let mut at = sessions.sweep(0, 60, 1000);
        assert_eq!((at, sessions.used()), (60, 40));
        at = sessions.sweep(at, 60, 1000);
        assert_eq!((at, sessions.used(), sessions.used_by(PortId(0))), (0, 0, 0));
        for n in 0..100 {
            open(&sessions, &flow(1000 + n), 0).unwrap();
        }
    }

    #[test]
    fn a_full_table_finds_every_session() {
        let sessions = Sessions::new(1000, 1, Timeouts::default());
        sessions.set_ports(1);
        let open: Vec<u32> = (0..1000).filter(|n| open(&sessions, &flow(*n), 0).is_ok()).collect();
        assert_eq!(open.len(), 1000.min(sessions.used() as usize));
        assert!(open.iter().all(|n| find(&sessions, &flow(*n), 0).is_some()));
        assert!((1000..3000).all(|n| find(&sessions, &flow(n), 0).is_none()));
    }

    #[test]
    fn a_flood_leaves_every_other_port_its_guarantee() {
        let sessions = Sessions::new(1000, 10, Timeouts::default());
        sessions.set_ports(10);
        let flood = (0..5000).filter(|n| open(&sessions, &flow(*n), 0).is_ok()).count();
        assert_eq!(flood, 500, "the shared half");
        for port in 1..10 {
            for n in 0..50 {
                let flow = flow(0x1_0000 * u32::from(port) + n);
                open(&sessions, &flow, port).unwrap();
            }
            let flow = flow(0x1_0000 * u32::from(port) + 50);
            assert_eq!(open(&sessions, &flow, port), Err(Refusal::Quota));
        }
    }

    #[test]
    fn a_port_that_is_gone_takes_no_room() {
        let sessions = Sessions::new(1000, 2, Timeouts::default());
        for n in 0..100 {
            open(&sessions, &flow(n), (n % 2) as u16).unwrap();
        }
        sessions.end_of(PortId(0));
        assert_eq!((sessions.used(), sessions.used_by(PortId(0))), (50, 0));
        assert_eq!(sessions.used_by(PortId(1)), 50);
        assert!(find(&sessions, &flow(0), 0).is_none() && find(&sessions, &flow(1), 0).is_some());
    }

    #[test]
    fn workers_that_race_for_a_session_get_the_same_one() {
        let sessions = Sessions::new(4096, 1, Timeouts::default());
        let opened: Vec<Vec<SessionId>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let sessions = &sessions;
                    scope.spawn(move || {
                        let seen = |n| if worker % 2 == 0 { flow(n) } else { flow(n).reversed() };
                        (0..1000).map(|n| open(sessions, &seen(n), 0).unwrap()).collect()
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(opened.iter().all(|ids| *ids == opened[0]));
        assert_eq!(sessions.used(), 1000);
    }
}
