//! A port that does harm: it drops, damages, doubles and reorders, by chance and by a seed.
//!
//! For tests of what a network does to packets. Equal seeds and equal frames give equal harm.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use super::{Lent, Port, PortGone};
use crate::Frame;

/// How often something happens to a frame, each from 0 (never) to 1 (always).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// It vanishes.
    pub drop: f64,
    /// One bit of it is turned over.
    pub corrupt: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// It waits until another has overtaken it, or a round brings none that could.
    pub reorder: f64,
}

/// A port with faults in front of it.
pub struct Faulty {
    port: Box<dyn Port>,
    received: Direction,
    sent: Direction,
    /// What the port has received and is to be harmed.
    burst: Vec<Frame>,
    /// What is left to send.
    leaving: Vec<Frame>,
}

impl Faulty {
    /// Harms what `port` receives and sends, each by its own chances.
    pub fn new(port: Box<dyn Port>, received: Faults, sent: Faults, seed: u64) -> Self {
        Self {
            port,
            received: Direction::new(received, seed),
            sent: Direction::new(sent, !seed),
            burst: Vec::new(),
            leaving: Vec::new(),
        }
    }
}

impl Port for Faulty {
    fn receive(
        &mut self,
        lent: &mut Lent<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let result = self.port.receive(lent, most, &mut self.burst);
        self.received.harm(lent, &mut self.burst);
        let count = most.min(self.received.ready.len());
        frames.extend(self.received.ready.drain(..count));
        result
    }

    fn send(&mut self, lent: &mut Lent<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.sent.harm(lent, frames);
        self.leaving.extend(self.sent.ready.drain(..));
        let result = self.port.send(lent, &mut self.leaving);
        // What the port has no room for goes back to the caller, who knows what to do with it.
        frames.append(&mut self.leaving);
        result
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.port.readable()
    }

    fn is_sending(&self) -> bool {
        self.port.is_sending() || !self.sent.is_empty()
    }

    fn missed(&self) -> u64 {
        self.port.missed()
    }

    fn close(self: Box<Self>, lent: &mut Lent<'_>) {
        self.port.close(lent);
        for direction in [self.received, self.sent] {
            direction.ready.into_iter().chain(direction.held).for_each(|it| lent.free.put(it));
        }
    }
}

struct Direction {
    faults: Faults,
    chance: Chance,
    /// A frame that waits to be overtaken.
    held: Option<Frame>,
    ready: VecDeque<Frame>,
}

impl Direction {
    fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, chance: Chance(seed), held: None, ready: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.held.is_none() && self.ready.is_empty()
    }

    /// Moves frames to `ready`, less what happens to them.
    fn harm(&mut self, lent: &mut Lent<'_>, frames: &mut Vec<Frame>) {
        if frames.is_empty() {
            self.ready.extend(self.held.take());
        }
        for mut frame in frames.drain(..) {
            if self.chance.hits(self.faults.drop) {
                lent.free.put(frame);
                continue;
            }
            if self.chance.hits(self.faults.corrupt) && !frame.is_empty() {
                let bit = self.chance.next() as usize % (frame.len() * 8);
                lent.memory.bytes_mut(&mut frame)[bit / 8] ^= 1 << (bit % 8);
            }
            let copy = self.chance.hits(self.faults.duplicate);
            let copy = copy.then(|| lent.copy(&frame)).flatten();
            if self.chance.hits(self.faults.reorder) && self.held.is_none() {
                self.held = Some(frame);
                self.ready.extend(copy);
            } else {
                self.ready.push_back(frame);
                self.ready.extend(copy);
                self.ready.extend(self.held.take());
            }
        }
    }
}

/// Pseudo-random numbers (SplitMix64: Steele, Lea, Flood 2014).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn hits(&mut self, probability: f64) -> bool {
        // 53 bits are what a double keeps of a number below 1.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::memory::Wire;
    use crate::{FreeList, Memory};

    const FRAMES: usize = 256;

    /// What becomes of `count` numbered frames that are sent in, one round for every three.
    fn received(faults: Faults, seed: u64, count: u32) -> Vec<Vec<u8>> {
        let (memory, frames) = Memory::heap(512, FRAMES as u32);
        let mut free = FreeList::new(&memory, frames);
        let mut lent = Lent { memory: &memory, free: &mut free };
        let wire = Wire::default();
        let mut port = Faulty::new(wire.port(), faults, Faults::default(), seed);
        let mut seen = Vec::new();
        let mut round = |lent: &mut Lent<'_>| {
            let mut frames = Vec::new();
            port.receive(lent, 64, &mut frames).unwrap();
            for frame in frames {
                seen.push(lent.memory.bytes(&frame).to_vec());
                lent.free.put(frame);
            }
        };
        for n in 0..count {
            wire.send(numbered(n));
            if n % 3 == 2 {
                round(&mut lent);
            }
        }
        round(&mut lent);
        round(&mut lent);
        Box::new(port).close(&mut lent);
        assert_eq!(free.len(), FRAMES);
        seen
    }

    fn numbered(n: u32) -> Vec<u8> {
        [n.to_be_bytes(), (!n).to_be_bytes()].concat()
    }

    fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        frames.sort();
        frames
    }

    #[test]
    fn without_faults_it_is_the_port() {
        let all: Vec<_> = (0..100).map(numbered).collect();
        assert_eq!(received(Faults::default(), 1, 100), all);
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let all: Vec<_> = (0..1000).map(numbered).collect();
        let dropped = received(Faults { drop: 0.25, ..Faults::default() }, 1, 1000);
        assert!((650..850).contains(&dropped.len()), "{} of 1000 left", dropped.len());
        assert!(dropped.is_sorted() && dropped.iter().all(|frame| all.contains(frame)));

        let doubled = received(Faults { duplicate: 0.25, ..Faults::default() }, 1, 1000);
        assert!((1150..1350).contains(&doubled.len()), "{} of 1000 came", doubled.len());
        let mut once = doubled.clone();
        once.dedup();
        assert_eq!(once, all);

        let reordered = received(Faults { reorder: 0.25, ..Faults::default() }, 1, 1000);
        assert_ne!(reordered, all);
        assert_eq!(sorted(reordered), all);

        let corrupt = received(Faults { corrupt: 0.25, ..Faults::default() }, 1, 1000);
        let bits_off = |(mine, right): (&Vec<u8>, &Vec<u8>)| -> u32 {
            mine.iter().zip(right).map(|(a, b)| (a ^ b).count_ones()).sum()
        };
        let off: Vec<u32> = corrupt.iter().zip(&all).map(bits_off).collect();
        assert!(off.iter().all(|bits| *bits <= 1));
        assert!((150..350).contains(&off.iter().sum::<u32>()));
    }

    #[test]
    fn the_seed_decides() {
        let faults = Faults { drop: 0.1, corrupt: 0.1, duplicate: 0.1, reorder: 0.1 };
        assert_eq!(received(faults, 7, 300), received(faults, 7, 300));
        assert_ne!(received(faults, 7, 300), received(faults, 8, 300));
    }

    #[test]
    fn what_is_sent_is_harmed_too_and_never_lost_in_between() {
        let (memory, frames) = Memory::heap(512, FRAMES as u32);
        let mut free = FreeList::new(&memory, frames);
        let mut lent = Lent { memory: &memory, free: &mut free };
        let wire = Wire::default();
        let sent = Faults { reorder: 0.5, ..Faults::default() };
        let mut port = Faulty::new(wire.port(), Faults::default(), sent, 3);
        for n in 0..50 {
            let mut frames = vec![lent.filled(&numbered(n)).unwrap()];
            port.send(&mut lent, &mut frames).unwrap();
            assert!(frames.is_empty());
        }
        while port.is_sending() {
            port.send(&mut lent, &mut Vec::new()).unwrap();
        }
        let left: Vec<_> = std::iter::from_fn(|| wire.receive()).collect();
        assert!(!left.is_sorted());
        assert_eq!(sorted(left), (0..50).map(numbered).collect::<Vec<_>>());
    }
}
