//! The fragmented datagrams of one port.

use std::collections::VecDeque;

use acl::Address;
use ahash::AHashMap;

use super::datagram::{Datagram, First};
use crate::Now;
use crate::packet::Packet;

/// Fragments of one port that are held.
pub(super) const MOST_OF_PORT: usize = 256;
/// Entries of senders with small shares that are passed over before one goes all the same.
const SECOND_CHANCES: usize = 8;

#[derive(Default)]
pub(super) struct PortTable {
    pub(super) entries: AHashMap<Datagram, Entry>,
    /// Their keys, oldest first.
    pub(super) order: VecDeque<Datagram>,
    /// Keys of those that hold fragments, oldest first. Keys of others may stand between.
    pub(super) holding: VecDeque<Datagram>,
    pub(super) senders: AHashMap<Address, Sender>,
    /// Fragments that are held.
    pub(super) held: usize,
}

pub(super) struct Entry {
    pub(super) first: Option<First>,
    /// Time at which the first fragment was decided about, or the first later one was held.
    pub(super) since: Now,
    pub(super) held: Vec<Packet>,
}

/// One sender's share of a port's table.
#[derive(Default)]
pub(super) struct Sender {
    pub(super) datagrams: usize,
    pub(super) held: usize,
}

impl PortTable {
    pub(super) fn entry(&mut self, datagram: Datagram, now: Now) -> &mut Entry {
        let Self { entries, order, senders, .. } = self;
        entries.entry(datagram).or_insert_with(|| {
            order.push_back(datagram);
            senders.entry(datagram.source).or_default().datagrams += 1;
            Entry { first: None, since: now, held: Vec::new() }
        })
    }

    /// Removes the oldest entry of a sender that has its share or more; with what it holds.
    pub(super) fn remove_oldest(&mut self) -> Option<(Datagram, Vec<Packet>)> {
        let share = self.order.len() / self.senders.len().max(1);
        let senders = &self.senders;
        let has_share = |datagram: &Datagram| {
            senders.get(&datagram.source).is_none_or(|sender| sender.datagrams >= share)
        };
        let oldest = pop(&mut self.order, has_share)?;
        let held = self.entries.remove(&oldest).map_or_else(Vec::new, |entry| entry.held);
        if let Some(sender) = self.senders.get_mut(&oldest.source) {
            sender.datagrams -= 1;
        }
        self.forget_idle(oldest.source);
        Some((oldest, held))
    }

    /// Takes what is held for the oldest datagram of a sender that has its share or more.
    pub(super) fn take_oldest_held(&mut self) -> Option<(Datagram, Vec<Packet>)> {
        self.oldest_held()?;
        let senders_holding = self.senders.values().filter(|sender| sender.held > 0).count();
        let share = self.held / senders_holding.max(1);
        let (entries, senders) = (&self.entries, &self.senders);
        let has_share = |datagram: &Datagram| {
            entries.get(datagram).is_some_and(|entry| !entry.held.is_empty())
                && senders.get(&datagram.source).is_none_or(|sender| sender.held >= share)
        };
        let oldest = pop(&mut self.holding, has_share)?;
        let held = self.take_held(&oldest);
        Some((oldest, held))
    }

    pub(super) fn take_held(&mut self, datagram: &Datagram) -> Vec<Packet> {
        let entry = self.entries.get_mut(datagram);
        entry.map_or_else(Vec::new, |entry| std::mem::take(&mut entry.held))
    }

    /// The oldest datagram with fragments that are held.
    pub(super) fn oldest_held(&mut self) -> Option<Datagram> {
        let entries = &self.entries;
        let is_over = |it: &mut Datagram| entries.get(it).is_none_or(|entry| entry.held.is_empty());
        while self.holding.pop_front_if(is_over).is_some() {}
        self.holding.front().copied()
    }

    /// Adds a datagram to those with fragments that are held.
    pub(super) fn hold(&mut self, datagram: Datagram) {
        if self.holding.len() >= 2 * MOST_OF_PORT {
            let entries = &self.entries;
            self.holding.retain(|it| entries.get(it).is_some_and(|entry| !entry.held.is_empty()));
        }
        self.holding.push_back(datagram);
    }

    /// Forgets a sender that takes nothing any more.
    pub(super) fn forget_idle(&mut self, sender: Address) {
        if self.senders.get(&sender).is_some_and(|it| it.datagrams == 0 && it.held == 0) {
            self.senders.remove(&sender);
        }
    }
}

/// Takes the oldest key that may go; after [`SECOND_CHANCES`] the next one, whatever it is.
fn pop(order: &mut VecDeque<Datagram>, may_go: impl Fn(&Datagram) -> bool) -> Option<Datagram> {
    for _ in 0..SECOND_CHANCES {
        let oldest = order.pop_front()?;
        if may_go(&oldest) {
            return Some(oldest);
        }
        order.push_back(oldest);
    }
    order.pop_front()
}
