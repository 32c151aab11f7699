//! Frames of closed queues in zero-copy mode.
//!
//! close(2) of a socket returns before the kernel has released the queue's pool (`xp_put_pool`
//! leaves that to a work queue), so the NIC may still write into frames that were posted. A pool is
//! gone when its queue can be bound again: until then the frames are nobody's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::posted::PostedFrames;

/// An interface by its number, and a queue of it.
pub(super) type Place = (u32, u32);

/// Frames that wait for their queue to be bound again.
#[derive(Default)]
pub(super) struct Aside(Mutex<Vec<(Place, PostedFrames)>>);

impl Aside {
    /// Keeps the frames of a queue that was closed.
    pub(super) fn keep(&self, place: Place, frames: PostedFrames) {
        self.kept().push((place, frames));
    }

    /// Takes the frames of earlier sockets of a queue that was bound.
    pub(super) fn take(&self, place: Place) -> Vec<PostedFrames> {
        self.kept().extract_if(.., |(of, _)| *of == place).map(|(_, frames)| frames).collect()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Place, PostedFrames)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Buffers;
    use crate::{FreeList, Memory};

    #[test]
    fn frames_come_back_when_their_own_queue_is_bound_again() {
        let (memory, frames) = Memory::heap(2048, 4);
        let mut free = FreeList::new(&memory, frames);
        let aside = Aside::default();
        for place in [(7, 0), (7, 1), (7, 0)] {
            let mut posted = PostedFrames::none(4);
            posted.give(free.take().unwrap().into_index());
            aside.keep(place, posted);
        }
        let left = |free: &mut FreeList| std::iter::from_fn(|| free.take()).collect::<Vec<_>>();
        assert_eq!(left(&mut free).len(), 1, "the others are nobody's");
        let mut buffers = Buffers { memory: &memory, free: &mut free };
        for (place, count) in [((8, 0), 0), ((7, 0), 2), ((7, 0), 0), ((7, 1), 1)] {
            aside.take(place).into_iter().for_each(|posted| posted.take_all(&mut buffers));
            assert_eq!(left(buffers.free).len(), count, "{place:?}");
        }
    }
}
