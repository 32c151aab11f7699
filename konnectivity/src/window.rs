//! The receive window of one connection between two roles of this implementation.
//!
//! A connection begins with a quarter of its bound. A reader that empties its queue gets a larger
//! window, since its bytes do not stay here; one that leaves bytes behind gets a smaller one. So
//! many slow readers together hold little memory, and a fast one is not held up by a long round
//! trip.

/// Counts what a receiver has consumed and decides what its sender may send.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes that the sender may have under way, those in the receiver's queue included.
    size: usize,
    least: usize,
    most: usize,
    /// Bytes consumed since the last credit.
    consumed: usize,
}

impl Window {
    /// The first window of a connection that may hold `most` bytes at a time.
    pub(crate) fn initial(most: usize) -> usize {
        most.div_ceil(4)
    }

    /// The window of a connection that may hold `most` bytes at a time.
    pub(crate) fn new(most: usize) -> Self {
        let size = Self::initial(most);
        Self { size, least: size, most, consumed: 0 }
    }

    /// Counts `bytes` that left the queue, in which `queued` remain. Returns the credit that is
    /// to be sent now, in bytes.
    pub(crate) fn consume(&mut self, bytes: usize, queued: usize) -> Option<usize> {
        self.consumed += bytes;
        if self.consumed * 4 < self.size {
            return None;
        }
        let mut credit = std::mem::take(&mut self.consumed);
        if queued == 0 {
            let more = credit.min(self.most - self.size);
            self.size += more;
            credit += more;
        } else if queued * 2 > self.size {
            let less = credit.min(self.size - self.least);
            self.size -= less;
            credit -= less;
        }
        (credit > 0).then_some(credit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Window;

    #[test]
    fn a_reader_that_keeps_up_gets_the_whole_window() {
        let mut window = Window::new(1 << 20);
        let mut sent = Window::initial(1 << 20);
        for _ in 0..64 {
            sent += window.consume(64 << 10, 0).unwrap_or_default();
        }
        let open = sent - 64 * (64 << 10);
        assert_eq!((window.size, open + window.consumed), (1 << 20, 1 << 20));
    }

    #[test]
    fn a_slow_reader_falls_back_to_a_quarter() {
        let mut window = Window::new(1 << 20);
        let mut open = Window::initial(1 << 20);
        for queued in [vec![0; 64], vec![1 << 20; 64]].concat() {
            open += window.consume(64 << 10, queued).unwrap_or_default();
            open -= 64 << 10;
        }
        assert_eq!((window.size, open + window.consumed), ((1 << 20) / 4, (1 << 20) / 4));
    }

    proptest! {
        /// The open window never passes the bound and never stays closed.
        #[test]
        fn the_window_stays_within_its_bounds(
            most in 1_usize..1 << 21,
            turns in prop::collection::vec((1_usize..100_000, 0_usize..1 << 21), 1..200),
        ) {
            let mut window = Window::new(most);
            // Bytes the sender may still send, and those sent and not consumed.
            let (mut credit, mut queue) = (Window::initial(most), 0);
            for (bytes, queued) in turns {
                queue += std::mem::take(&mut credit);
                let bytes = bytes.min(queue);
                queue -= bytes;
                credit += window.consume(bytes, queued.min(queue)).unwrap_or_default();
                prop_assert!(credit + queue <= most, "{credit} and {queue} of {most}");
            }
            // A reader that takes everything opens it again.
            credit += window.consume(std::mem::take(&mut queue), 0).unwrap_or_default();
            prop_assert!(credit * 4 >= window.size, "{credit} of {}", window.size);
        }
    }
}
