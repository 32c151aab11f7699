//! Free frames: a list for each worker, backed by a shared one of batches.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_queue::ArrayQueue;

use super::{Frame, Memory};

/// Frames that a worker gives to the shared list, or takes, at a time.
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
    shared: Arc<Shared>,
    /// An empty batch, to be filled next.
    spare: Vec<Frame>,
}

/// Free frames of all workers, in batches.
struct Shared {
    batches: ArrayQueue<Vec<Frame>>,
    /// Frames in them.
    frames: AtomicUsize,
    /// Lists for further batches.
    empty: ArrayQueue<Vec<Frame>>,
}

impl Shared {
    /// With room for so many frames, each of which may be a batch of its own.
    fn new(frames: usize) -> Self {
        let (batches, empty) = (ArrayQueue::new(frames.max(1)), ArrayQueue::new(BATCH));
        Self { batches, frames: AtomicUsize::new(0), empty }
    }

    /// Adds a batch; returns an empty one.
    fn give(&self, batch: Vec<Frame>) -> Vec<Frame> {
        self.frames.fetch_add(batch.len(), Relaxed);
        // There is room for every frame there is.
        let _ = self.batches.push(batch);
        self.empty.pop().unwrap_or_default()
    }

    /// A batch, in exchange for an empty one.
    fn take(&self, empty: Vec<Frame>) -> Option<Vec<Frame>> {
        if empty.capacity() > 0 {
            // Where there are enough of them, it is released.
            let _ = self.empty.push(empty);
        }
        let batch = self.batches.pop()?;
        self.frames.fetch_sub(batch.len(), Relaxed);
        Some(batch)
    }
}

impl FreeList {
    /// A list for one worker that holds `frames` of this memory for all of them.
    pub fn new(memory: &Arc<Memory>, frames: Vec<Frame>) -> Self {
        // Many workers must not keep all of them.
        let most = (frames.len() / 64).clamp(5 * BATCH, MOST_KEPT);
        let mut list = Self::over(memory, Arc::new(Shared::new(frames.len())), most);
        list.own = frames;
        list.share_all();
        list.own = Vec::with_capacity(most);
        list
    }

    /// A list for another worker over the same frames.
    pub fn share(&self) -> Self {
        Self::over(&self.memory, Arc::clone(&self.shared), self.most)
    }

    fn over(memory: &Arc<Memory>, shared: Arc<Shared>, most: usize) -> Self {
        let (own, spare) = (Vec::with_capacity(most), Vec::new());
        Self { memory: Arc::clone(memory), own, most, shared, spare }
    }

    /// A free frame, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        if self.own.is_empty() {
            self.refill(1);
        }
        self.own.pop()
    }

    /// Appends up to `count` free frames to `frames`.
    #[inline]
    pub fn take_many(&mut self, count: usize, frames: &mut Vec<Frame>) {
        if self.own.len() < count {
            self.refill(count);
        }
        let from = self.own.len().saturating_sub(count);
        frames.extend(self.own.drain(from..));
    }

    /// Takes batches until there are so many frames.
    #[cold]
    fn refill(&mut self, count: usize) {
        while self.own.len() < count
            && let Some(mut batch) = self.shared.take(std::mem::take(&mut self.spare))
        {
            self.own.append(&mut batch);
            self.spare = batch;
        }
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
        self.share_first(self.own.len() - self.most / 2);
    }

    /// Moves the worker's own frames to the shared list.
    pub(crate) fn share_all(&mut self) {
        self.share_first(self.own.len());
    }

    fn share_first(&mut self, count: usize) {
        let mut frames = self.own.drain(..count);
        while frames.len() > 0 {
            self.spare.reserve(BATCH);
            self.spare.extend(frames.by_ref().take(BATCH));
            self.spare = self.shared.give(std::mem::take(&mut self.spare));
        }
    }

    /// Free frames this worker can reach.
    pub fn len(&self) -> usize {
        self.own.len() + self.shared.frames.load(Relaxed)
    }

    /// Free frames that are this worker's alone.
    pub fn own(&self) -> usize {
        self.own.len()
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
