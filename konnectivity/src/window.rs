//! The receive window of one connection between two roles of this implementation.
//!
//! A connection begins with a quarter of its bound. The window grows while the reader empties its queue and is halved
//! while bytes stay in it, so that a fast reader is not limited by a long round trip. All busy connections share an
//! amount of memory in equal parts, which bounds the window of each.

use crate::memory::Shares;

/// The smallest share, in bytes.
const LEAST: usize = 64 << 10;

/// Counts the bytes that a receiver has consumed, and decides about credit for its sender.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes that the sender may have under way, those in the receiver's queue included.
    size: usize,
    most: usize,
    /// Bytes consumed since the last credit.
    consumed: usize,
    /// The second in which bytes were consumed last; see [`Shares`].
    busy: u64,
}

impl Window {
    /// The first window of a connection that may hold `most` bytes at a time.
    pub(crate) fn initial(most: usize) -> usize {
        most.div_ceil(4)
    }

    /// The window of a connection that may hold `most` bytes at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { size: Self::initial(most), most, consumed: 0, busy: 0 }
    }

    /// Counts `bytes` that left the queue, in which `queued` remain. Returns the credit that is to be
    /// sent now, in bytes.
    pub(crate) fn consume(
        &mut self,
        bytes: usize,
        queued: usize,
        shares: &Shares,
    ) -> Option<usize> {
        let share = shares.of_busy(&mut self.busy, http2::millis());
        self.consume_with(bytes, queued, share)
    }

    /// Counts `bytes` that left the queue, in which `queued` remain, of a connection with this share of
    /// the memory. Returns the credit that is to be sent now, in bytes.
    fn consume_with(&mut self, bytes: usize, queued: usize, share: usize) -> Option<usize> {
        self.consumed += bytes;
        if self.consumed * 4 < self.size {
            return None;
        }
        let mut credit = std::mem::take(&mut self.consumed);
        let most = share.max(LEAST).min(self.most);
        let goal = if queued * 2 > self.size { most.div_ceil(2) } else { most };
        if goal < self.size {
            let less = credit.min(self.size - goal);
            self.size -= less;
            credit -= less;
        } else if queued == 0 {
            let more = credit.min(goal - self.size);
            self.size += more;
            credit += more;
        }
        (credit > 0).then_some(credit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LEAST, Window};

    const MUCH: usize = usize::MAX;

    #[test]
    fn a_reader_that_keeps_up_gets_the_whole_window() {
        let mut window = Window::new(1 << 20);
        let mut sent = Window::initial(1 << 20);
        for _ in 0..64 {
            sent += window.consume_with(64 << 10, 0, MUCH).unwrap_or_default();
        }
        let open = sent - 64 * (64 << 10);
        assert_eq!((window.size, open + window.consumed), (1 << 20, 1 << 20));
    }

    #[test]
    fn a_slow_reader_falls_back_to_a_half() {
        let mut window = Window::new(1 << 20);
        let mut open = Window::initial(1 << 20);
        for queued in [vec![0; 64], vec![1 << 20; 64]].concat() {
            open += window.consume_with(64 << 10, queued, MUCH).unwrap_or_default();
            open -= 64 << 10;
        }
        assert_eq!((window.size, open + window.consumed), ((1 << 20) / 2, (1 << 20) / 2));
    }

    #[test]
    fn windows_become_equal_when_others_are_busy() {
        let grown = |turns: usize| {
            let mut window = Window::new(1 << 20);
            for _ in 0..turns {
                window.consume_with(64 << 10, 0, MUCH);
            }
            window
        };
        for mut window in [grown(0), grown(4), grown(64)] {
            for _ in 0..64 {
                window.consume_with(64 << 10, 0, 160 << 10);
            }
            assert_eq!(window.size, 160 << 10);
            for _ in 0..64 {
                window.consume_with(64 << 10, 0, 1);
            }
            assert_eq!(window.size, LEAST);
        }
    }

    proptest! {
        /// The open window never passes the bound and never stays closed.
        #[test]
        fn the_window_stays_within_its_bounds(
            most in 1_usize..1 << 21,
            turns in prop::collection::vec(
                (1_usize..100_000, 0_usize..1 << 21, 1_usize..1 << 22), 1..200,
            ),
        ) {
            let mut window = Window::new(most);
            // Bytes the sender may still send, and those sent and not consumed.
            let (mut credit, mut queue) = (Window::initial(most), 0);
            for (bytes, queued, share) in turns {
                queue += std::mem::take(&mut credit);
                let bytes = bytes.min(queue);
                queue -= bytes;
                credit += window.consume_with(bytes, queued.min(queue), share).unwrap_or_default();
                prop_assert!(credit + queue <= most, "{credit} and {queue} of {most}");
            }
            // A reader that takes everything opens it again.
            credit += window.consume_with(std::mem::take(&mut queue), 0, MUCH).unwrap_or_default();
            prop_assert!(credit * 4 >= window.size, "{credit} of {}", window.size);
        }
    }
}
