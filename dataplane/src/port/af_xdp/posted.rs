//! Frames posted to the rings of a socket.

use super::umem::FRAME_SIZE;
use crate::Frame;
use crate::port::Buffers;

/// The frames in a socket's rings: a bit for each frame of the UMEM.
///
/// Whatever descriptors the kernel returns, a frame's handle is recreated only if it was consumed
/// here.
pub(super) struct PostedFrames {
    bits: Box<[u64]>,
}

impl PostedFrames {
    pub(super) fn none(frames: u32) -> Self {
        Self { bits: vec![0; frames.div_ceil(64) as usize].into() }
    }

    /// Records a frame whose handle was just consumed.
    #[inline]
    pub(super) fn give(&mut self, index: u32) {
        self.bits[index as usize / 64] |= 1 << (index % 64);
    }

    /// The frame of a descriptor that the kernel returned; `None` if it was not posted.
    #[inline]
    pub(super) fn take(
        &mut self,
        buffers: &Buffers<'_>,
        address: u64,
        length: u32,
    ) -> Option<Frame> {
        let (index, start) = (address / FRAME_SIZE as u64, address % FRAME_SIZE as u64);
        let word = self.bits.get_mut(index as usize / 64)?;
        let bit = 1_u64 << (index % 64);
        let was_posted = *word & bit != 0;
        *word &= !bit;
        let start = start as usize;
        let length = (length as usize).min(FRAME_SIZE - start);
        // SAFETY: the bit states that the handle was consumed for a ring; it is cleared now.
        was_posted.then(|| unsafe { buffers.memory.reclaim(index as u32, start, length) })
    }

    /// Frees all frames.
    pub(super) fn take_all(self, buffers: &mut Buffers<'_>) {
        for (word, bits) in self.bits.iter().enumerate() {
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                // SAFETY: the bit states that the handle was consumed for a ring, and the rings are
                // gone.
                buffers.free.put(unsafe { buffers.memory.reclaim(word as u32 * 64 + bit, 0, 0) });
            }
        }
    }
}
