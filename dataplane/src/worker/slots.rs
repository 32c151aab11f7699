//! The ports, or parts of ports, that one worker serves.

use std::sync::Arc;

use crate::counters::PortCounters;
use crate::exchange::{Exchange, Handoff};
use crate::packet::VECTOR;
use crate::port::Port;
use crate::{Frame, Memory, PortId};

/// One port, or this worker's part of it.
pub(super) struct Slot {
    pub(super) id: PortId,
    pub(super) port: Box<dyn Port>,
    pub(super) counters: Arc<PortCounters>,
    /// Frames that leave with this vector.
    pub(super) leaving: Vec<Frame>,
    /// Whether other workers have parts of the port too.
    pub(super) is_part: bool,
    epoch: u32,
    accepts_partial_checksums: bool,
}

impl Slot {
    /// Queues a frame for transmission with this vector; completes its checksum unless the port
    /// does.
    #[inline]
    pub(super) fn leave(&mut self, mut frame: Frame, memory: &Memory) {
        if !self.accepts_partial_checksums {
            memory.complete_checksum(&mut frame);
        }
        self.leaving.push(frame);
    }
}

/// All slots of a worker, by port number.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Index in `slots` of each port.
    places: Vec<u16>,
}

const NOWHERE: u16 = u16::MAX;

impl Slots {
    pub(super) fn add(
        &mut self,
        id: PortId,
        port: Box<dyn Port>,
        counters: Arc<PortCounters>,
        exchange: &Exchange,
    ) {
        let is_part = exchange.owners(id).count() > 1;
        let epoch = exchange.epoch(id);
        let accepts_partial_checksums = port.accepts_partial_checksums();
        let leaving = Vec::with_capacity(VECTOR);
        self.slots.push(Slot {
            id,
            port,
            counters,
            leaving,
            is_part,
            epoch,
            accepts_partial_checksums,
        });
        self.note_places();
    }

    pub(super) fn remove(&mut self, id: PortId) -> Option<Slot> {
        let slot = self.slots.swap_remove(self.place(id)?);
        self.note_places();
        Some(slot)
    }

    pub(super) fn take_all(&mut self) -> Vec<Slot> {
        self.places.clear();
        std::mem::take(&mut self.slots)
    }

    fn note_places(&mut self) {
        self.places.clear();
        for (n, slot) in self.slots.iter().enumerate() {
            let id = usize::from(slot.id.0);
            if self.places.len() <= id {
                self.places.resize(id + 1, NOWHERE);
            }
            self.places[id] = n as u16;
        }
    }

    #[inline]
    fn place(&self, id: PortId) -> Option<usize> {
        let place = *self.places.get(usize::from(id.0))?;
        (place != NOWHERE).then_some(usize::from(place))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn at(&mut self, n: usize) -> Option<&mut Slot> {
        self.slots.get_mut(n)
    }

    /// The slot of a port that is served here.
    #[inline]
    pub(super) fn of(&mut self, id: PortId) -> Option<&mut Slot> {
        let place = self.place(id)?;
        Some(&mut self.slots[place])
    }

    /// The slot of a hand-off's port; `None` if the port is no longer served here, or another one
    /// has its number.
    #[inline]
    pub(super) fn of_handoff(&mut self, handoff: &Handoff) -> Option<&mut Slot> {
        self.of(handoff.port).filter(|slot| slot.epoch == handoff.epoch)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut()
    }
}
