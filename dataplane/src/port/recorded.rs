//! A port whose frames are written to a capture as they pass.
//!
//! ```text
//!   the port ──▶ receive, send ──▶ copies in a bounded buffer ──▶ a thread ──▶ pcapng
//! ```
//!
//! The worker copies each frame into an empty slot and never waits: where there is no empty slot,
//! because the file cannot keep up, the frame passes unrecorded and is counted.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crossbeam_queue::ArrayQueue;

use super::{Buffers, Port, PortGone};
use crate::Frame;
use crate::capture::{Direction, Writer};

/// How long the writing thread rests when there is nothing to write.
const REST: Duration = Duration::from_millis(2);

/// A capture that is being written. Ending it (or dropping it) writes what is in the buffer.
pub struct Recording {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Frames in the capture.
    pub written: u64,
    /// Frames that passed while the buffer was full.
    pub missed: u64,
}

struct Shared {
    empty: ArrayQueue<Box<Slot>>,
    full: ArrayQueue<Box<Slot>>,
    /// Bytes of a frame that are kept at most.
    snap: usize,
    is_on: AtomicBool,
    written: AtomicU64,
    missed: AtomicU64,
}

struct Slot {
    port: Arc<str>,
    direction: Direction,
    time: Duration,
    bytes: Vec<u8>,
    original_length: u32,
}

impl Recording {
    /// Starts to write to `output`. The buffer has room for `slots` frames, of each of which at
    /// most `snap` bytes are kept.
    ///
    /// # Errors
    /// If `output` cannot be written to, or no thread can be started.
    pub fn start(
        output: impl Write + Send + 'static,
        slots: usize,
        snap: usize,
    ) -> io::Result<Self> {
        let slots = slots.max(1);
        let shared = Arc::new(Shared {
            empty: ArrayQueue::new(slots),
            full: ArrayQueue::new(slots),
            snap,
            is_on: AtomicBool::new(true),
            written: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        });
        for _ in 0..slots {
            let slot = Slot {
                port: "".into(),
                direction: Direction::In,
                time: Duration::ZERO,
                bytes: Vec::with_capacity(snap),
                original_length: 0,
            };
            // There is room for each of them.
            let _ = shared.empty.push(Box::new(slot));
        }
        let mut writer = Writer::new(output)?;
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("recording".into()).spawn(move || {
            let result = theirs.write_all(&mut writer);
            theirs.is_on.store(false, Ordering::Release);
            result.and_then(|()| writer.finish().map(drop))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Records what `port` receives and sends from now on, under `name`.
    pub fn of(&self, port: Box<dyn Port>, name: &str) -> Box<dyn Port> {
        Box::new(RecordedPort { port, name: name.into(), shared: Arc::clone(&self.shared) })
    }

    /// Ends the recording; the ports go on without.
    ///
    /// # Errors
    /// If the capture could not be written; it then holds what was written before.
    pub fn end(mut self) -> io::Result<Recorded> {
        self.finish()?;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Recorded { written: count(&self.shared.written), missed: count(&self.shared.missed) })
    }

    fn finish(&mut self) -> io::Result<()> {
        self.shared.is_on.store(false, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.thread().unpark();
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl Shared {
    fn write_all(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        loop {
            let goes_on = self.is_on.load(Ordering::Acquire);
            while let Some(slot) = self.full.pop() {
                let (name, length) = (Some(&*slot.port), slot.original_length);
                writer.write_directed(name, slot.time, &slot.bytes, length, slot.direction)?;
                self.written.fetch_add(1, Ordering::Relaxed);
                let _ = self.empty.push(slot);
            }
            if !goes_on {
                return Ok(());
            }
            std::thread::park_timeout(REST);
        }
    }

    fn record(
        &self,
        buffers: &Buffers<'_>,
        frames: &[Frame],
        port: &Arc<str>,
        direction: Direction,
    ) {
        if frames.is_empty() || !self.is_on.load(Ordering::Acquire) {
            return;
        }
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for frame in frames {
            let Some(mut slot) = self.empty.pop() else {
                self.missed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            slot.port.clone_from(port);
            (slot.direction, slot.time) = (direction, time);
            slot.original_length = frame.len() as u32;
            slot.bytes.clear();
            buffers.memory.append_to(frame, &mut slot.bytes, self.snap);
            let _ = self.full.push(slot);
        }
    }
}

struct RecordedPort {
    port: Box<dyn Port>,
    name: Arc<str>,
    shared: Arc<Shared>,
}

impl Port for RecordedPort {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let start = frames.len();
        let result = self.port.receive(buffers, most, frames);
        self.shared.record(buffers, &frames[start..], &self.name, Direction::In);
        result
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        // Frames the port turns out to have no room for are in the capture as well: the switch
        // sent them.
        self.shared.record(buffers, frames, &self.name, Direction::Out);
        self.port.send(buffers, frames)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.port.readable()
    }

    fn is_sending(&self) -> bool {
        self.port.is_sending()
    }

    fn missed(&self) -> u64 {
        self.port.missed()
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.port.close(buffers);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::capture::Reader;
    use crate::port::memory::Wire;
    use crate::{FreeList, Memory};

    /// An output that tests read, and may hold up.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Rig {
        memory: Arc<Memory>,
        free: FreeList,
        wire: Wire,
        port: Box<dyn Port>,
    }

    impl Rig {
        fn new(recording: &Recording) -> Self {
            let (memory, frames) = Memory::heap(2048, 64);
            let wire = Wire::default();
            let port = recording.of(wire.port(), "default/a");
            let free = FreeList::new(&memory, frames);
            Self { memory, free, wire, port }
        }

        /// Sends a frame in and back out.
        fn pass(&mut self, bytes: &[u8]) {
            let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
            let mut frames = Vec::new();
            self.wire.send(bytes);
            self.port.receive(&mut buffers, 64, &mut frames).unwrap();
            self.port.send(&mut buffers, &mut frames).unwrap();
            assert_eq!(self.wire.receive().unwrap(), bytes);
        }
    }

    #[test]
    fn what_passes_stands_in_the_capture() {
        let output = Output::default();
        let recording = Recording::start(output.clone(), 64, 100).unwrap();
        let mut rig = Rig::new(&recording);
        rig.pass(&[1; 60]);
        rig.pass(&[2; 1500]);
        assert_eq!(recording.end().unwrap(), Recorded { written: 4, missed: 0 });
        rig.pass(&[3; 60]);
        let bytes = output.0.lock().unwrap().clone();
        let records: Vec<_> =
            Reader::new("recording", &bytes[..]).unwrap().map(Result::unwrap).collect();
        let seen: Vec<_> =
            records.iter().map(|it| (it.data[0], it.data.len(), it.original_length)).collect();
        assert_eq!(seen, [(1, 60, 60), (1, 60, 60), (2, 100, 1500), (2, 100, 1500)]);
        assert!(records.iter().all(|record| record.interface.as_deref() == Some("default/a")));
        assert!(records.is_sorted_by_key(|record| record.time));
    }

    #[test]
    fn a_file_that_cannot_keep_up_costs_records_and_holds_nobody_up() {
        let output = Output::default();
        let recording = Recording::start(output.clone(), 8, 64).unwrap();
        let mut rig = Rig::new(&recording);
        let held_up = output.0.lock().unwrap();
        for n in 0..100 {
            rig.pass(&[n; 60]);
        }
        drop(held_up);
        let Recorded { written, missed } = recording.end().unwrap();
        assert_eq!(written + missed, 200);
        assert!((8..=10).contains(&written), "{written} written");
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        let file = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let recording = Recording::start(io::BufWriter::new(file), 8, 64).unwrap();
        let mut rig = Rig::new(&recording);
        rig.pass(&[1; 60]);
        let error = recording.end().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        rig.pass(&[1; 60]);
    }
}
