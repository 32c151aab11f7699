//! Live captures: copies of the packets that pass a port.
//!
//! ```text
//! worker ──▶ filter ──▶ copy into an empty slot ──▶ bounded queue ──▶ reader
//!               ▲                                                        │
//!               └────────────────────── empty slots ◀────────────────────┘
//! ```
//!
//! A worker never waits: without an empty slot it counts the packet as dropped. A port without a
//! capture costs a worker one test a burst.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crossbeam_queue::ArrayQueue;

use super::Direction;
use crate::graph::trace::Filter;
use crate::wire::{Headers, parse_into};
use crate::{Frame, Memory};

/// Initial capacity of a slot, in bytes: a frame of the usual MTU fits.
const USUAL_FRAME: usize = 1536;

/// A capture of one port, shared by the port's workers and its reader.
pub struct LiveCapture {
    filter: Filter,
    /// Bytes kept of a packet at most.
    snaplen: usize,
    empty: ArrayQueue<Box<CapturedPacket>>,
    full: ArrayQueue<Box<CapturedPacket>>,
    is_on: AtomicBool,
    dropped: AtomicU64,
}

/// A copy of a packet.
#[derive(Debug)]
pub struct CapturedPacket {
    /// Time at which the packet passed the port, since 1970.
    pub time: Duration,
    /// The packet's direction.
    pub direction: Direction,
    /// The packet's bytes, at most those of the snap length.
    pub bytes: Vec<u8>,
    /// Length of the packet.
    pub original_length: u32,
}

impl LiveCapture {
    /// A capture of packets that match the header terms of `filter`. It keeps up to `snaplen` bytes
    /// of each, and buffers up to `slots` packets.
    pub fn new(filter: Filter, slots: usize, snaplen: usize) -> Arc<Self> {
        let slots = slots.max(1);
        let empty = ArrayQueue::new(slots);
        for _ in 0..slots {
            let slot = CapturedPacket {
                time: Duration::ZERO,
                direction: Direction::In,
                bytes: Vec::with_capacity(snaplen.min(USUAL_FRAME)),
                original_length: 0,
            };
            // The queue has room for each of them.
            let _ = empty.push(Box::new(slot));
        }
        Arc::new(Self {
            filter,
            snaplen,
            empty,
            full: ArrayQueue::new(slots),
            is_on: AtomicBool::new(true),
            dropped: AtomicU64::new(0),
        })
    }

    /// Takes the next packet.
    pub fn take(&self) -> Option<Box<CapturedPacket>> {
        self.full.pop()
    }

    /// Returns a packet's slot.
    pub fn recycle(&self, packet: Box<CapturedPacket>) {
        // The queue has room for each of them.
        let _ = self.empty.push(packet);
    }

    /// Packets that matched while the buffer was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends the capture. Workers release it within a second.
    pub fn end(&self) {
        self.is_on.store(false, Ordering::Release);
    }

    /// Whether the capture has not ended.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Whether no worker holds the capture any more: its port is closed. `this` must be the reader's
    /// only reference.
    pub fn is_detached(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1
    }

    /// Copies packets that pass the port.
    #[cold]
    pub(crate) fn record(&self, memory: &Memory, frames: &[Frame], direction: Direction) {
        if frames.is_empty() || !self.is_on() {
            return;
        }
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for frame in frames.iter().filter(|frame| self.matches(memory, frame)) {
            let Some(mut slot) = self.empty.pop() else {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            (slot.time, slot.direction) = (time, direction);
            slot.original_length = frame.len() as u32;
            slot.bytes.clear();
            memory.append_to(frame, &mut slot.bytes, self.snaplen);
            if direction == Direction::Out
                && let Some(partial) = frame.partial_checksum()
                && slot.bytes.len() == frame.len()
            {
                partial.complete(&mut slot.bytes);
            }
            let _ = self.full.push(slot);
        }
    }

    fn matches(&self, memory: &Memory, frame: &Frame) -> bool {
        if self.filter == Filter::default() {
            return true;
        }
        let mut headers = Headers::NONE;
        // Packets that the parser refuses match by the fields that it has read.
        let _ = parse_into(memory.bytes(frame), frame.len(), &mut headers);
        self.filter.matches_headers(&headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreeList;
    use crate::capture::{Reader, Writer};
    use testkit::packet::{tcp, udp};

    fn record(capture: &LiveCapture, packets: &[Vec<u8>], direction: Direction) {
        let (memory, frames) = Memory::heap(2048, 64);
        let mut free = FreeList::new(&memory, frames);
        let frames: Vec<Frame> = packets
            .iter()
            .map(|packet| {
                let mut frame = free.take().unwrap();
                assert!(memory.fill(&mut frame, packet));
                frame
            })
            .collect();
        capture.record(&memory, &frames, direction);
    }

    #[test]
    fn both_directions_are_read_back_from_the_file() {
        let capture = LiveCapture::new(Filter::default(), 8, 100);
        record(&capture, &[vec![1; 60], vec![2; 1500]], Direction::In);
        record(&capture, &[vec![3; 60]], Direction::Out);
        let mut writer = Writer::new(Vec::new()).unwrap();
        while let Some(it) = capture.take() {
            let port = Some("default/a");
            let (bytes, length) = (&it.bytes, it.original_length);
            writer.write_directed(port, it.time, bytes, length, it.direction).unwrap();
            capture.recycle(it);
        }
        let bytes = writer.finish().unwrap();
        let records: Vec<_> =
            Reader::new("capture", &bytes[..]).unwrap().map(Result::unwrap).collect();
        let seen: Vec<_> = records
            .iter()
            .map(|it| (it.data[0], it.data.len(), it.original_length, it.direction))
            .collect();
        let (into, out) = (Some(Direction::In), Some(Direction::Out));
        assert_eq!(seen, [(1, 60, 60, into), (2, 100, 1500, into), (3, 60, 60, out)]);
        assert!(records.iter().all(|record| record.interface.as_deref() == Some("default/a")));
        assert!(records.is_sorted_by_key(|record| record.time));
    }

    #[test]
    fn a_full_buffer_drops_packets_and_counts_them() {
        let capture = LiveCapture::new(Filter::default(), 8, 64);
        let packets: Vec<Vec<u8>> = (0..20).map(|n| vec![n; 60]).collect();
        record(&capture, &packets, Direction::In);
        assert_eq!(capture.dropped(), 12);
        let first = capture.take().unwrap();
        assert_eq!(first.bytes, packets[0]);
        capture.recycle(first);
        record(&capture, &packets[..2], Direction::Out);
        assert_eq!(capture.dropped(), 13);
        assert_eq!(std::iter::from_fn(|| capture.take()).count(), 8);
    }

    #[test]
    fn the_filter_compares_headers() {
        let filter = Filter { port: Some(53), protocol: Some(17), ..Filter::default() };
        let capture = LiveCapture::new(filter, 8, 2000);
        let wanted = udp("10.1.0.2:5", "10.1.0.3:53").payload(&[7; 10]).build();
        let others = [
            udp("10.1.0.2:5", "10.1.0.3:54").payload(&[7; 10]).build(),
            tcp("10.1.0.2:5", "10.1.0.3:53").syn().build(),
            vec![0xff; 60],
        ];
        record(&capture, &[&others[..], std::slice::from_ref(&wanted)].concat(), Direction::In);
        assert_eq!(capture.take().unwrap().bytes, wanted);
        assert!(capture.take().is_none());
    }

    #[test]
    fn a_capture_that_has_ended_takes_no_packets() {
        let capture = LiveCapture::new(Filter::default(), 8, 64);
        capture.end();
        record(&capture, &[vec![1; 60]], Direction::In);
        assert!(capture.take().is_none() && capture.dropped() == 0);
    }
}
