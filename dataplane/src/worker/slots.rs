//! The ports, or parts of ports, that one worker serves.

use std::sync::Arc;

use crate::capture::{Direction, LiveCapture};
use crate::counters::PortCounters;
use crate::exchange::{Exchange, Handoff};
use crate::packet::VECTOR;
use crate::port::{Port, Tag};
use crate::{Frame, Memory, PortId};

/// One port, or this worker's part of it.
pub(super) struct Slot {
    pub(super) id: PortId,
    pub(super) port: Box<dyn Port>,
    pub(super) counters: Arc<PortCounters>,
    /// Frames that leave with this vector.
    pub(super) queued: Vec<Frame>,
    /// Whether other workers have parts of the port too.
    pub(super) is_part: bool,
    /// Whether its frames are other ports', by their tags.
    pub(super) is_trunk: bool,
    /// Captures of the port's packets.
    pub(super) captures: Vec<Arc<LiveCapture>>,
    /// Rounds without a frame from it.
    pub(super) silent: u32,
    epoch: u32,
    accepts_partial_checksums: bool,
}

impl Slot {
    /// Copies the frames that leave with this vector to the captures.
    #[cold]
    pub(super) fn capture_leaving(&self, memory: &Memory) {
        self.captures.iter().for_each(|it| it.record(memory, &self.queued, Direction::Out));
    }
}

/// All slots of a worker, by port number.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Place in `slots` of each port; of a trunk's member, the trunk's.
    places: Vec<u16>,
    /// By the port's number.
    members: Vec<Option<Member>>,
}

/// A port whose frames are on a trunk.
struct Member {
    tag: Tag,
    trunk: PortId,
    epoch: u32,
    counters: Arc<PortCounters>,
    captures: Vec<Arc<LiveCapture>>,
}

impl Member {
    /// Copies a frame to the captures.
    #[inline]
    fn capture(&self, frame: &Frame, memory: &Memory, direction: Direction) {
        let frame = std::slice::from_ref(frame);
        self.captures.iter().for_each(|it| it.record(memory, frame, direction));
    }
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
        let queued = Vec::with_capacity(VECTOR);
        self.slots.push(Slot {
            id,
            port,
            counters,
            queued,
            is_part,
            is_trunk: false,
            captures: Vec::new(),
            silent: 0,
            epoch,
            accepts_partial_checksums,
        });
        self.note_places();
    }

    /// Adds a port whose frames are on a trunk that is served here.
    pub(super) fn add_member(
        &mut self,
        tag: Tag,
        trunk: PortId,
        counters: Arc<PortCounters>,
        exchange: &Exchange,
    ) {
        let (id, epoch) = (tag.port(), exchange.epoch(tag.port()));
        let place = usize::from(id.0);
        if self.members.len() <= place {
            self.members.resize_with(place + 1, || None);
        }
        self.members[place] = Some(Member { tag, trunk, epoch, counters, captures: Vec::new() });
        if let Some(slot) = self.of(trunk) {
            slot.is_trunk = true;
        }
        self.note_places();
    }

    /// Removes a trunk's member; `false` if the port is none.
    pub(super) fn remove_member(&mut self, id: PortId) -> bool {
        let member = self.members.get_mut(usize::from(id.0)).and_then(Option::take);
        if member.is_some() {
            self.note_places();
        }
        member.is_some()
    }

    /// The port that a frame came in at which the slot of `id` received: a trunk's member, whose tag
    /// is taken off, or `id` itself. `None` if the tag is no port's.
    #[inline]
    pub(super) fn ingress(
        &self,
        id: PortId,
        is_trunk: bool,
        frame: &mut Frame,
        memory: &Memory,
    ) -> Option<PortId> {
        if !is_trunk {
            return Some(id);
        }
        let tag = Tag::of(memory, frame)?;
        let member = self.members.get(usize::from(tag.port().0)).and_then(Option::as_ref);
        // The copy of a frame that came in at another port.
        if member.is_none() && frame.is_copy() {
            Tag::remove(memory, frame);
            return Some(tag.port());
        }
        let member = member?;
        if member.tag != tag || member.trunk != id {
            return None;
        }
        Tag::remove(memory, frame);
        member.capture(frame, memory, Direction::In);
        // The program that forwarded it has counted it.
        if !frame.is_copy() {
            member.counters.received.add(1);
            member.counters.received_bytes.add(frame.len() as u64);
        }
        Some(tag.port())
    }

    /// Enqueues a frame for a port with this vector; returns it if the port is not served here.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        id: PortId,
        mut frame: Frame,
        memory: &Memory,
    ) -> Result<(), Frame> {
        let Some(place) = self.place(id) else { return Err(frame) };
        if self.slots[place].id != id {
            let Some(Some(member)) = self.members.get(usize::from(id.0)) else {
                return Err(frame);
            };
            member.capture(&frame, memory, Direction::Out);
            member.tag.write(memory, &mut frame);
            member.counters.sent.add(1);
            member.counters.sent_bytes.add(frame.len() as u64);
        }
        self.enqueue_at(place, std::iter::once(frame), memory);
        Ok(())
    }

    /// The place of a port that is served here and is no trunk's member; for
    /// [`Self::enqueue_at`].
    #[inline]
    pub(super) fn place_of(&self, id: PortId) -> Option<usize> {
        self.place(id).filter(|place| self.slots[*place].id == id)
    }

    /// Queues frames for transmission with this vector by the port at a place; completes their
    /// checksums unless the port does.
    #[inline]
    pub(super) fn enqueue_at(
        &mut self,
        place: usize,
        frames: impl Iterator<Item = Frame>,
        memory: &Memory,
    ) {
        let slot = &mut self.slots[place];
        let from = slot.queued.len();
        slot.queued.extend(frames);
        if !slot.accepts_partial_checksums {
            slot.queued[from..].iter_mut().for_each(|frame| memory.complete_checksum(frame));
        }
    }

    pub(super) fn remove(&mut self, id: PortId) -> Option<Slot> {
        let place = self.place_of(id)?;
        let slot = self.slots.swap_remove(place);
        self.note_places();
        Some(slot)
    }

    pub(super) fn take_all(&mut self) -> Vec<Slot> {
        self.places.clear();
        self.members.clear();
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
        for (id, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let trunk = self.places.get(usize::from(member.trunk.0)).copied().unwrap_or(NOWHERE);
            if self.places.len() <= id {
                self.places.resize(id + 1, NOWHERE);
            }
            self.places[id] = trunk;
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

    /// The captures of a port that is served here.
    pub(super) fn captures(&mut self, id: PortId) -> Option<&mut Vec<Arc<LiveCapture>>> {
        let place = self.place(id)?;
        if self.slots[place].id == id {
            return Some(&mut self.slots[place].captures);
        }
        let member = self.members.get_mut(usize::from(id.0))?.as_mut()?;
        Some(&mut member.captures)
    }

    /// Releases the captures that have ended.
    pub(super) fn release_captures(&mut self) {
        let members = self.members.iter_mut().flatten().map(|member| &mut member.captures);
        let slots = self.slots.iter_mut().map(|slot| &mut slot.captures);
        slots.chain(members).for_each(|captures| captures.retain(|it| it.is_on()));
    }

    /// Whether the port that a packet was handed over for is served here still, and no other one has
    /// its number now.
    #[inline]
    pub(super) fn serves(&self, handoff: &Handoff) -> bool {
        let Some(place) = self.place(handoff.port) else { return false };
        let slot = &self.slots[place];
        let member = || self.members.get(usize::from(handoff.port.0))?.as_ref();
        let epoch = match slot.id == handoff.port {
            true => Some(slot.epoch),
            false => member().map(|member| member.epoch),
        };
        epoch == Some(handoff.epoch)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut()
    }
}
