//! Whether the kernel still returns the frames of a queue.

/// Looks, one a second, without progress after which a queue is opened anew. A link that is down,
/// or a peer that takes nothing, delays frames by less: the kernel drops them.
const STANDSTILL: u32 = 10;

/// What one look sees. Counters run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Frames in the transmit ring, and with the kernel behind it.
    pub(super) sending: u32,
    /// Frames that came into the completion ring.
    pub(super) completed: u64,
    /// Frames in the fill ring.
    pub(super) posted: u32,
    /// Frames that came into the receive ring.
    pub(super) received: u64,
    /// Packets that the kernel dropped for want of a frame, or of a place in the receive ring.
    pub(super) missed: u64,
    /// Packets that the program in front of the queue had for it, if that counts them.
    pub(super) handed: u64,
}

/// The looks so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    last: Sample,
    /// Looks in a row in which no frame came back that was to be sent.
    unsent: u32,
    /// Looks since a frame was last received in which packets were missed, though there were frames
    /// for them.
    starved: u32,
    /// Looks since a frame was last received or missed in which the program had some.
    astray: u32,
}

impl Progress {
    /// Takes a look; returns why the queue is to be opened anew, if it is.
    pub(super) fn look(&mut self, now: Sample) -> Option<&'static str> {
        let last = std::mem::replace(&mut self.last, now);
        let stands = last.sending > 0 && now.sending > 0 && now.completed == last.completed;
        self.unsent = if stands { self.unsent + 1 } else { 0 };
        if now.received != last.received || now.posted == 0 {
            self.starved = 0;
        } else if now.missed != last.missed {
            self.starved += 1;
        }
        if (now.received, now.missed) != (last.received, last.missed) {
            self.astray = 0;
        } else if now.handed != last.handed {
            self.astray += 1;
        }
        let reasons = [
            (self.unsent, "no frame comes back that was to be sent"),
            (self.starved, "packets are missed, and the fill ring is full"),
            (self.astray, "packets that the XDP program redirects do not arrive"),
        ];
        reasons.into_iter().find(|(looks, _)| *looks >= STANDSTILL).map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The look, from 1, at which one of these samples is a reason to open the queue anew.
    fn fails_at(samples: impl IntoIterator<Item = Sample>) -> Option<(usize, &'static str)> {
        let mut progress = Progress::default();
        samples.into_iter().zip(1..).find_map(|(it, n)| progress.look(it).map(|why| (n, why)))
    }

    #[test]
    fn frames_that_never_come_back_are_noticed() {
        let stuck = Sample { sending: 2048, completed: 70, ..Sample::default() };
        let (at, why) = fails_at([stuck; 30]).unwrap();
        assert_eq!(at, 1 + STANDSTILL as usize);
        assert!(why.contains("comes back"), "{why}");
        // Some come back each second, or there are none to come.
        let slow = (0..100).map(|n| Sample { sending: 2048, completed: n, ..stuck });
        assert_eq!(fails_at(slow), None);
        assert_eq!(fails_at([Sample { sending: 0, ..stuck }; 100]), None);
    }

    #[test]
    fn a_pause_of_a_few_seconds_is_none() {
        let look = |n: u64| Sample { sending: 9, completed: n / 9, ..Sample::default() };
        assert_eq!(fails_at((0..200).map(look)), None);
    }

    #[test]
    fn a_receiver_that_stays_suspended_is_noticed() {
        let look = |n: u64| Sample { posted: 256, received: 1000, missed: n, ..Sample::default() };
        let (at, why) = fails_at((0..100).map(look)).unwrap();
        assert_eq!(at, 1 + STANDSTILL as usize);
        assert!(why.contains("missed"), "{why}");
        // Nothing arrives, or the switch is too slow and takes what it can, or has no frames.
        assert_eq!(fails_at([look(5); 100]), None);
        assert_eq!(fails_at((0..100).map(|n| Sample { received: n, ..look(n) })), None);
        assert_eq!(fails_at((0..100).map(|n| Sample { posted: 0, ..look(n) })), None);
    }

    /// As with vmxnet3, whose link was down.
    #[test]
    fn packets_that_a_driver_loses_behind_the_program_are_noticed() {
        let look = |n: u64| Sample { handed: n, received: 70, posted: 256, ..Sample::default() };
        let (at, why) = fails_at((0..100).map(look)).unwrap();
        assert_eq!(at, 1 + STANDSTILL as usize);
        assert!(why.contains("do not arrive"), "{why}");
        // They arrive, or are missed, or there are none.
        assert_eq!(fails_at((0..100).map(|n| Sample { received: n, ..look(n) })), None);
        assert_eq!(
            fails_at((0..100).map(|n| Sample { missed: n / 5, posted: 0, ..look(n) })),
            None
        );
        assert_eq!(fails_at([look(9); 100]), None);
    }
}
