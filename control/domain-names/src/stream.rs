//! DNS over TCP: one direction of a connection, as messages (RFC 7766, section 8).

/// Reassembles the messages of one direction of a connection.
///
/// Segments may come in any order, more than once and overlapping; of bytes that come twice the first
/// count.
#[derive(Debug)]
pub struct Stream {
    /// Sequence number of the byte behind those in `bytes`.
    next: u32,
    /// In order, from the start of a message on.
    bytes: Vec<u8>,
    /// Segments behind a gap, with their sequence numbers.
    ahead: Vec<(u32, Box<[u8]>)>,
    longest: usize,
}

/// More than a stream may keep, or a message that is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Most segments kept behind a gap.
const MOST_AHEAD: usize = 32;

impl Stream {
    /// A stream whose first byte has this sequence number, with messages of up to `longest` bytes.
    pub fn new(first: u32, longest: usize) -> Self {
        Self { next: first, bytes: Vec::new(), ahead: Vec::new(), longest }
    }

    /// Takes a segment's bytes. Each message that it completes goes to `each`, in order.
    ///
    /// # Errors
    /// Fails if the bounds are exceeded; the stream is unusable then.
    pub fn take(
        &mut self,
        sequence: u32,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Broken> {
        if bytes.is_empty() {
            return Ok(());
        }
        let distance = sequence.wrapping_sub(self.next) as i32;
        if distance > 0 {
            let kept: usize = self.ahead.iter().map(|(_, bytes)| bytes.len()).sum();
            if self.ahead.len() == MOST_AHEAD || kept + bytes.len() > self.longest {
                return Err(Broken);
            }
            self.ahead.push((sequence, bytes.into()));
            return Ok(());
        }
        self.append(sequence, bytes, &mut each)?;
        // Segments that are contiguous now.
        while let Some(at) =
            self.ahead.iter().position(|(at, _)| at.wrapping_sub(self.next) as i32 <= 0)
        {
            let (sequence, bytes) = self.ahead.swap_remove(at);
            self.append(sequence, &bytes, &mut each)?;
        }
        Ok(())
    }

    /// Appends the new bytes of a segment that begins at `next` or before.
    fn append(
        &mut self,
        sequence: u32,
        bytes: &[u8],
        each: &mut impl FnMut(&[u8]),
    ) -> Result<(), Broken> {
        let known = self.next.wrapping_sub(sequence) as usize;
        let Some(fresh) = bytes.get(known..) else { return Ok(()) };
        self.next = self.next.wrapping_add(fresh.len() as u32);
        self.bytes.extend_from_slice(fresh);
        let mut start = 0;
        while let [high, low, rest @ ..] = &self.bytes[start..] {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if length > self.longest {
                return Err(Broken);
            }
            let Some(message) = rest.get(..length) else { break };
            each(message);
            start += 2 + length;
        }
        self.bytes.drain(..start);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let frame = |it: &Vec<u8>| [&(it.len() as u16).to_be_bytes()[..], it].concat();
        messages.iter().flat_map(frame).collect()
    }

    #[test]
    fn a_message_longer_than_allowed_breaks_the_stream() {
        let mut stream = Stream::new(7, 100);
        let message = framed(&[vec![1; 101]]);
        assert_eq!(stream.take(7, &message, |_| panic!("no message")), Err(Broken));
    }

    #[test]
    fn what_waits_behind_a_gap_is_bounded() {
        let mut stream = Stream::new(0, 1000);
        for n in 0..MOST_AHEAD as u32 {
            assert_eq!(stream.take(10 + n, &[0], |_| ()), Ok(()));
        }
        assert_eq!(stream.take(100, &[0], |_| ()), Err(Broken));
        let mut stream = Stream::new(0, 1000);
        assert_eq!(stream.take(10, &[0; 1001], |_| ()), Err(Broken));
    }

    proptest! {
        /// However a stream is cut, repeated and reordered, its messages come out, each once and as
        /// soon as its last missing byte is there.
        #[test]
        fn messages_come_out_of_any_segments(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            cuts in prop::collection::vec(1..30_usize, 1..40),
            first in prop::sample::select(vec![0, 1000, u32::MAX - 20]),
            seed: u64,
        ) {
            let bytes = framed(&messages);
            let mut segments = Vec::new();
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < bytes.len() {
                let end = (at + cuts.next().unwrap()).min(bytes.len());
                // Some bytes of what follows, as a retransmission may bring.
                segments.push((at, end));
                segments.push((at, (end + 5).min(bytes.len())));
                at = end;
            }
            let mut rng = fastrand::Rng::with_seed(seed);
            // A window's worth out of order.
            for chunk in segments.chunks_mut(8) {
                rng.shuffle(chunk);
            }
            let mut stream = Stream::new(first, 4096);
            let mut found: Vec<Vec<u8>> = Vec::new();
            for (start, end) in segments {
                let sequence = first.wrapping_add(start as u32);
                prop_assert!(stream.take(sequence, &bytes[start..end], |it| found.push(it.to_vec())).is_ok());
            }
            prop_assert_eq!(found, messages);
        }
    }
}
