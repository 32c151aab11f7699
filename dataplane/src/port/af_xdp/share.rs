//! The share of a port in the frames of a UMEM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::umem::RING;

/// Number of frames that a port keeps posted to the kernel.
///
/// They buffer what arrives between two rounds. Few are enough for an idle port, and there may be
/// hundreds of those. A busy port takes more from a reserve that the ports of a UMEM share, and
/// keeps them until it closes: the kernel returns frames only with packets.
pub(super) struct Share {
    level: u32,
    usual: u32,
    spare: Arc<AtomicU32>,
}

impl Share {
    pub(super) fn new(usual: u32, spare: Arc<AtomicU32>) -> Self {
        Self { level: usual, usual, spare }
    }

    /// The present number.
    #[inline]
    pub(super) fn level(&self) -> u32 {
        self.level
    }

    /// Doubles it, up to the size of a ring, as far as the reserve goes.
    #[cold]
    pub(super) fn grow(&mut self) {
        let wanted = self.level.min(RING - self.level);
        let take = |spare: u32| spare.checked_sub(wanted);
        if self.spare.fetch_update(Relaxed, Relaxed, take).is_ok() {
            self.level += wanted;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.spare.fetch_add(self.level - self.usual, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ports_share_what_is_spare() {
        let spare = Arc::new(AtomicU32::new(2048));
        let level_after = |share: &mut Share, times: usize| {
            (0..times).for_each(|_| share.grow());
            share.level
        };
        let mut one = Share::new(256, Arc::clone(&spare));
        let mut two = Share::new(256, Arc::clone(&spare));
        assert_eq!(level_after(&mut one, 2), 1024);
        assert_eq!(level_after(&mut two, 9), 1024);
        // 512 are left.
        assert_eq!(level_after(&mut one, 1), 1024);
        drop(two);
        assert_eq!(level_after(&mut one, 9), RING);
        drop(one);
        assert_eq!(spare.load(Relaxed), 2048);
    }

    #[test]
    fn a_share_ends_at_the_size_of_a_ring() {
        let spare = Arc::new(AtomicU32::new(10_000));
        let mut share = Share::new(1500, Arc::clone(&spare));
        share.grow();
        share.grow();
        assert_eq!((share.level, spare.load(Relaxed)), (RING, 10_000 - 548));
    }
}
