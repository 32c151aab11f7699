//! Free frames: a list for each worker, backed by a shared one.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Frame, Memory};

/// Frames moved from the shared list to a worker's own one at a time.
const BATCH: usize = 64;
/// Most frames that a worker keeps: those of some vectors, so that a vector's frames are still in
/// the processor's cache when the next one takes them.
const MOST_KEPT: usize = 1024;

/// A worker's free frames, backed by a list that all workers share.
pub struct FreeList {
    memory: Arc<Memory>,
    /// The last one freed is taken first.
    own: Vec<Frame>,
    /// Frames in `own` from which on half of them go to the shared list.
    most: usize,
    shared: Arc<ArrayQueue<Frame>>,
}

impl FreeList {
    /// A list for one worker that holds `frames` of this memory for all of them.
    pub fn new(memory: &Arc<Memory>, frames: Vec<Frame>) -> Self {
        let shared = ArrayQueue::new(frames.len().max(1));
        for frame in frames {
            shared.push(frame).expect("room for every frame");
        }
        Self::over(memory, Arc::new(shared))
    }

    /// A list for another worker over the same frames.
    pub fn share(&self) -> Self {
        Self::over(&self.memory, Arc::clone(&self.shared))
    }

    fn over(memory: &Arc<Memory>, shared: Arc<ArrayQueue<Frame>>) -> Self {
        // Many workers must not keep all of them.
        let most = (shared.capacity() / 64).clamp(5 * BATCH, MOST_KEPT);
        Self { memory: Arc::clone(memory), own: Vec::with_capacity(most), most, shared }
    }

    /// A free frame, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.own.is_empty() {
            self.refill(BATCH);
        }
        self.own.pop()
    }

    /// Appends up to `count` free frames to `frames`.
    #[inline]
    pub fn take_many(&mut self, count: usize, frames: &mut Vec<Frame>) {
        if self.own.len() < count {
            self.refill(count.max(BATCH));
        }
        let from = self.own.len().saturating_sub(count);
        frames.extend(self.own.drain(from..));
    }

    #[cold]
    fn refill(&mut self, count: usize) {
        self.own.extend(std::iter::from_fn(|| self.shared.pop()).take(count));
    }

    /// Frees a frame and all further frames of its packet.
    #[inline]
    pub fn put(&mut self, mut frame: Frame) {
        if frame.others > 0 {
            self.memory.detach(&mut frame, |other| self.own.push(other));
        }
        self.own.push(frame);
        if self.own.len() >= self.most {
            self.share_surplus();
        }
    }

    /// Frees all of these.
    #[inline]
    pub fn put_all(&mut self, frames: &mut Vec<Frame>) {
        if frames.iter().any(|frame| frame.others > 0) {
            frames.drain(..).for_each(|frame| self.put(frame));
            return;
        }
        self.own.append(frames);
        if self.own.len() >= self.most {
            self.share_surplus();
        }
    }

    /// Moves the frames that have been free for longest to the shared list: the others are in the
    /// cache.
    #[cold]
    fn share_surplus(&mut self) {
        let surplus = self.own.len() - self.most / 2;
        for frame in self.own.drain(..surplus) {
            // The shared list has room for every frame there is.
            let _ = self.shared.push(frame);
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
