//! A packet generator over AF_XDP: UDP frames that count themselves.

use std::error::Error;
use std::time::{Duration, Instant};

use dataplane::wire::Mac;

use crate::forwarder::SERVER_PORT;
use crate::rig::{End, mac, pin};

/// A stream to send.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The sender's MAC and IPv4 or IPv6 address.
    pub from: (Mac, String),
    /// The receiver's, and its port.
    pub to: (Mac, String, u16),
    /// Bytes of a frame as testers count them: with the 4 of its check sequence.
    pub size: usize,
    /// Flows, by their source ports from 1024 on.
    pub flows: u16,
    /// Frames a second; `None`: as fast as they go.
    pub rate: Option<f64>,
}

/// Result of a generator's run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    /// Frames that the interface took.
    pub frames: u64,
    /// Duration of the run.
    pub seconds: f64,
}

/// A receiver's view of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames of a stream.
    pub frames: u64,
    /// Numbers that were left out, up to the highest seen.
    pub lost: u64,
    /// Frames that came behind one with a higher number.
    pub reordered: u64,
}

/// Stands at the start of the payload; the frame's number follows.
const MARK: [u8; 4] = *b"pgen";
/// Frames handed over at a time.
const BURST: usize = 64;

/// Sends frames of this size from the one pod of a [`Rig`](crate::rig::Rig) to the other as fast as they
/// go; runs until it is killed.
///
/// # Errors
/// If the interface cannot be used.
pub fn generate(size: usize, mac_a: &str, mac_b: &str) -> Result<(), Box<dyn Error>> {
    pin(1)?;
    let mut end = End::open("eth0", 4096, 64)?;
    println!("sending");
    let stream = Stream {
        from: (mac(mac_a)?, "10.88.0.2".to_owned()),
        to: (mac(mac_b)?, "10.88.0.3".to_owned(), SERVER_PORT),
        size,
        flows: 64,
        rate: None,
    };
    stream.run(&mut end, None).map(drop)
}

impl Stream {
    /// Sends for so long, or until killed.
    pub fn run(&self, end: &mut End, duration: Option<Duration>) -> Result<Sent, Box<dyn Error>> {
        let template = self.template();
        let l4 = if self.to.1.contains(':') { 54 } else { 34 };
        let (mut count, mut batch) = (0_u64, Vec::with_capacity(BURST));
        let started = Instant::now();
        let mut passed = Duration::ZERO;
        while duration.is_none_or(|duration| passed < duration) {
            let due = self.rate.map_or(u64::MAX, |rate| (passed.as_secs_f64() * rate) as u64);
            while batch.len() < BURST
                && count < due
                && let Some(mut frame) = end.filled(&template)
            {
                let bytes = end.memory.bytes_mut(&mut frame);
                let source = 1024 + (count % u64::from(self.flows)) as u16;
                bytes[l4..l4 + 2].copy_from_slice(&source.to_be_bytes());
                bytes[l4 + 12..l4 + 20].copy_from_slice(&count.to_be_bytes());
                batch.push(frame);
                count += 1;
            }
            end.send(&mut batch)?;
            passed = started.elapsed();
        }
        let unsent = batch.len() as u64;
        batch.into_iter().for_each(|frame| end.free.put(frame));
        Ok(Sent { frames: count - unsent, seconds: passed.as_secs_f64() })
    }

    /// A frame without its source port and number. The checksum is left out where that is allowed
    /// (IPv4), and wrong elsewhere: no hop of the path reads it.
    fn template(&self) -> Vec<u8> {
        let v6 = self.to.1.contains(':');
        let headers = if v6 { 62 } else { 42 };
        let payload = self.size.saturating_sub(4 + headers).max(MARK.len() + 8);
        let bracket = |text: &str| if v6 { format!("[{text}]") } else { text.to_owned() };
        let from = format!("{}:1024", bracket(&self.from.1));
        let to = format!("{}:{}", bracket(&self.to.1), self.to.2);
        let mut frame = testkit::packet::udp(&from, &to)
            .from_mac(self.from.0)
            .to_mac(self.to.0)
            .payload(&[&MARK[..], &vec![0; payload - MARK.len()]].concat())
            .build();
        if !v6 {
            frame[40..42].fill(0);
        }
        frame
    }
}

impl Received {
    /// Counts a frame, if it is one of a stream.
    pub fn count(&mut self, bytes: &[u8]) {
        let Some(at) = [42, 62].into_iter().find(|at| bytes.get(*at..*at + 4) == Some(&MARK))
        else {
            return;
        };
        let Some(number) = bytes.get(at + 4..at + 12).and_then(|field| field.try_into().ok())
        else {
            return;
        };
        let number = u64::from_be_bytes(number);
        let next = self.frames + self.lost;
        self.frames += 1;
        match number.checked_sub(next) {
            Some(skipped) => self.lost += skipped,
            None => {
                self.reordered += 1;
                self.lost = self.lost.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(to: &str, size: usize) -> Stream {
        let from = if to.contains(':') { "fd00::1" } else { "10.0.0.1" };
        Stream {
            from: ([2, 0, 0, 0, 0, 1], from.to_owned()),
            to: ([2, 0, 0, 0, 0, 2], to.to_owned(), 9),
            size,
            flows: 1,
            rate: None,
        }
    }

    #[test]
    fn frames_have_the_size_asked_for() {
        assert_eq!(stream("10.0.0.2", 64).template().len(), 60);
        assert_eq!(stream("10.0.0.2", 1518).template().len(), 1514);
        assert_eq!(stream("fd00::2", 64).template().len(), 74, "the shortest that counts");
        for to in ["10.0.0.2", "fd00::2"] {
            dataplane::wire::parse(&stream(to, 64).template()).unwrap();
        }
    }

    #[test]
    fn losses_are_gaps_that_nothing_fills() {
        let mut template = stream("10.0.0.2", 64).template();
        let mut received = Received::default();
        for number in [0, 1, 2, 5, 4, 6, 9] {
            template[46..54].copy_from_slice(&u64::to_be_bytes(number));
            received.count(&template);
        }
        received.count(b"something else that is long enough to be read as a frame of a stream");
        assert_eq!(received, Received { frames: 7, lost: 3, reordered: 1 });
    }
}
