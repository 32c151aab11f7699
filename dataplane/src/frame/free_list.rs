//! Free frames: a list for each worker, backed by a shared one.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Frame, Memory};

/// Frames moved between a worker's own list and the shared one at a time.
const BATCH: usize = 64;

/// A worker's free frames, backed by a list that all workers share.
pub struct FreeList {
    memory: Arc<Memory>,
    own: Vec<Frame>,
    shared: Arc<ArrayQueue<Frame>>,
}

impl FreeList {
    /// A list for one worker that holds `frames` of this memory for all of them.
    pub fn new(memory: &Arc<Memory>, frames: Vec<Frame>) -> Self {
        let shared = ArrayQueue::new(frames.len().max(1));
        for frame in frames {
            shared.push(frame).expect("room for every frame");
        }
        let (memory, own) = (Arc::clone(memory), Vec::with_capacity(4 * BATCH));
        Self { memory, own, shared: Arc::new(shared) }
    }

    /// A list for another worker over the same frames.
    pub fn share(&self) -> Self {
        let (memory, own) = (Arc::clone(&self.memory), Vec::with_capacity(4 * BATCH));
        Self { memory, own, shared: Arc::clone(&self.shared) }
    }

    /// A free frame, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.own.is_empty() {
            self.own.extend(std::iter::from_fn(|| self.shared.pop()).take(BATCH));
        }
        self.own.pop()
    }

    /// Frees a frame and all further frames of its packet.
    #[inline]
    pub fn put(&mut self, mut frame: Frame) {
        if frame.others > 0 {
            self.memory.detach(&mut frame, |other| self.own.push(other));
        }
        self.own.push(frame);
        if self.own.len() >= 4 * BATCH {
            for frame in self.own.drain(2 * BATCH..) {
                // The shared list has room for every frame there is.
                let _ = self.shared.push(frame);
            }
        }
    }

    /// Moves the worker's own frames to the shared list.
    pub(crate) fn share_all(&mut self) {
        for frame in self.own.drain(..) {
            // The shared list has room for every frame there is.
            let _ = self.shared.push(frame);
        }
    }

    /// Free frames this worker can reach.
    pub fn len(&self) -> usize {
        self.own.len() + self.shared.len()
    }

    /// Whether no frame is free.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for FreeList {
    fn drop(&mut self) {
        self.share_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_frames_are_conserved_across_workers() {
        let (memory, frames) = Memory::heap(512, 1000);
        let mut one = FreeList::new(&memory, frames);
        let mut two = one.share();
        let taken: Vec<Frame> = std::iter::from_fn(|| one.take()).collect();
        assert_eq!(taken.len(), 1000);
        assert!(two.take().is_none());
        taken.into_iter().for_each(|frame| two.put(frame));
        drop(two);
        assert_eq!(one.len(), 1000);
    }
}
