//! Port numbers, and the assignment of queues to workers.

use std::ops::Range;
use std::sync::Arc;

use crate::PortId;
use crate::counters::PortCounters;
use crate::port::RingFrames;

/// The part of a port that one worker serves.
#[derive(Clone, Debug)]
pub struct PortPart {
    /// The worker.
    pub worker: usize,
    /// Range of the port's queues, in the order they were given in.
    pub queues: Range<usize>,
    /// Their counters.
    pub counters: Arc<PortCounters>,
}

/// All ports of a switch.
pub(super) struct Ports {
    /// By number.
    places: Vec<Place>,
    most: u16,
}

/// A port's number.
#[derive(Default)]
enum Place {
    /// No port's.
    #[default]
    Free,
    /// The number of the port with these parts.
    Served(Vec<PortPart>),
    /// A removed port, which workers may still have in this snapshot.
    Known(u64),
}

impl Place {
    fn parts(&self) -> &[PortPart] {
        match self {
            Self::Served(parts) => parts,
            Self::Free | Self::Known(_) => &[],
        }
    }
}

impl Ports {
    /// None yet; numbers are below `most`.
    pub(super) fn new(most: u16) -> Self {
        Self { places: Vec::new(), most }
    }

    /// The lowest free number, where every worker uses `in_force` or a later snapshot.
    pub(super) fn free(&self, in_force: u64) -> Option<PortId> {
        let is_free = |place: &Place| match place {
            Place::Free => true,
            Place::Served(_) => false,
            Place::Known(generation) => *generation < in_force,
        };
        let free = self.places.iter().position(is_free).unwrap_or(self.places.len());
        (free < usize::from(self.most)).then_some(PortId(free as u16))
    }

    /// Divides a port's queues among the workers that serve the fewest.
    pub(super) fn add(&mut self, id: PortId, queues: usize, workers: usize) -> Vec<PortPart> {
        let place = usize::from(id.0);
        if self.places.len() <= place {
            self.places.resize_with(place + 1, Place::default);
        }
        self.places[place] = Place::Free;
        let parts = self.spread(queues, workers);
        self.places[place] = Place::Served(parts.clone());
        parts
    }

    /// Adds a port that is served by those who serve `trunk`, through its queues.
    pub(super) fn add_member(&mut self, id: PortId, trunk: PortId) -> Vec<PortPart> {
        let part =
            |of: &PortPart| PortPart { worker: of.worker, queues: 0..0, counters: Arc::default() };
        let parts: Vec<PortPart> = self.parts(trunk).iter().map(part).collect();
        let place = usize::from(id.0);
        if self.places.len() <= place {
            self.places.resize_with(place + 1, Place::default);
        }
        self.places[place] = Place::Served(parts.clone());
        parts
    }

    fn spread(&self, queues: usize, workers: usize) -> Vec<PortPart> {
        let mut load = vec![0; workers];
        for part in self.places.iter().flat_map(Place::parts) {
            load[part.worker] += part.queues.len();
        }
        let mut workers: Vec<usize> = (0..workers).collect();
        workers.sort_by_key(|worker| load[*worker]);
        workers.truncate(queues);
        let count = workers.len();
        // The first ones, which serve fewer, get the remainder.
        let start = |n: usize| (n * queues).div_ceil(count.max(1));
        let part = |(n, worker)| PortPart {
            worker,
            queues: start(n)..start(n + 1),
            counters: Arc::default(),
        };
        workers.into_iter().enumerate().map(part).collect()
    }

    /// Removes a port that snapshots up to `published` contain; returns its parts.
    pub(super) fn remove(&mut self, id: PortId, published: u64) -> Vec<PortPart> {
        let Some(place) = self.places.get_mut(usize::from(id.0)) else { return Vec::new() };
        if !matches!(place, Place::Served(_)) {
            return Vec::new();
        }
        let gone = if published == 0 { Place::Free } else { Place::Known(published) };
        match std::mem::replace(place, gone) {
            Place::Served(parts) => parts,
            Place::Free | Place::Known(_) => Vec::new(),
        }
    }

    /// Frames that all ports have given to the kernel.
    pub(super) fn ring_frames(&self) -> RingFrames {
        let parts = self.places.iter().flat_map(Place::parts);
        parts
            .map(|part| part.counters.ring_frames())
            .fold(RingFrames::default(), |sum, it| sum + it)
    }

    /// The parts of a port.
    pub(super) fn parts(&self, id: PortId) -> &[PortPart] {
        self.places.get(usize::from(id.0)).map_or(&[], Place::parts)
    }
}
