//! The queues by which the switch gets what programs leave to it: those of the punt link, and those of the uplink's.
//!
//! Programs report connections that they open and end. A frame that was received after a report is handed to its worker
//! only once the graph has seen what was reported, so that no packet comes before the one that opened its
//! connection. The first queue of the punt link reads the reports; others wait for it, whichever workers they
//! are of.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::Frame;
use dataplane::port::{Buffers, Port, PortGone, RingFrames, Tag};

use crate::engine::Engine;
use crate::handshake::Handshakes;
use crate::openings::Openings;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::reports::Reports;

/// Frames that were received, until the graph has seen what was reported before.
struct Held {
    frames: Vec<Frame>,
    /// The place up to which that is.
    until: u64,
    reports: Arc<Reports>,
    handshakes: Arc<Handshakes>,
}

impl Held {
    /// Receives frames of a port, if there are none.
    #[inline]
    fn receive(
        &mut self,
        port: &mut dyn Port,
        buffers: &mut Buffers<'_>,
        most: usize,
    ) -> Result<(), PortGone> {
        let received = port.receive(buffers, most, &mut self.frames);
        self.until = self.reports.end();
        // A worker that sleeps may have to read of it.
        if let Some(engine) = self.awaited() {
            self.reports.want(self.until);
            engine.context.switch.wake();
        }
        received
    }

    /// Flow offload, if frames have to wait.
    #[inline]
    fn awaited(&self) -> Option<Arc<Engine>> {
        let waits = !self.frames.is_empty() && !self.reports.is_released(self.until);
        // Without it nobody reads.
        if waits { self.handshakes.engine() } else { None }
    }

    /// The frames that may go on, up to so many.
    #[inline]
    fn drain(&mut self, most: usize) -> std::vec::Drain<'_, Frame> {
        let count = if self.awaited().is_some() { 0 } else { most.min(self.frames.len()) };
        self.frames.drain(..count)
    }
}

/// A queue of the punt link, or of the uplink's. Sees connections that are accepted.
pub(crate) struct Queue {
    port: Box<dyn Port>,
    held: Held,
    punt: Option<Punt>,
}

/// Further work of a queue of the punt link: it counts the frames of each port and notes when it is empty; the first
/// one reads the reports of programs.
struct Punt {
    queue: usize,
    progress: Arc<Progress>,
    openings: Openings,
    pace: Pace,
}

impl Queue {
    pub(crate) fn of_punt_link(
        queue: usize,
        port: Box<dyn Port>,
        progress: Arc<Progress>,
        reports: Arc<Reports>,
        handshakes: Arc<Handshakes>,
    ) -> Self {
        let punt = Some(Punt {
            queue,
            progress,
            openings: Openings::default(),
            pace: Pace::new(Instant::now()),
        });
        Self { punt, ..Self::of_uplink(port, reports, handshakes) }
    }

    pub(crate) fn of_uplink(
        port: Box<dyn Port>,
        reports: Arc<Reports>,
        handshakes: Arc<Handshakes>,
    ) -> Self {
        Self { port, held: Held { frames: Vec::new(), until: 0, reports, handshakes }, punt: None }
    }

    /// Reads what was reported, if it is time or a frame waits for that; whether the graph has to see it first, in a
    /// vector of its own. Packets of one vector look for their sessions before any of them opens one.
    #[inline]
    fn reads_reports(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> bool {
        let Some(Punt { queue: 0, openings, pace, .. }) = &mut self.punt else { return false };
        let reports = &*self.held.reports;
        let engine = if reports.is_empty() { None } else { self.held.handshakes.engine() };
        let Some(engine) = engine else {
            pace.note_none(Instant::now());
            return false;
        };
        openings.finish(&engine, reports);
        if self.held.frames.is_empty() && !reports.is_wanted() && !pace.is_due(Instant::now()) {
            return false;
        }
        let before = frames.len();
        openings.read(&engine, reports, buffers, most, frames);
        pace.note(frames.len() - before, Instant::now());
        frames.len() > before || openings.is_behind() || reports.has_more()
    }
}

impl Port for Queue {
    #[inline]
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        if self.reads_reports(buffers, most, frames) {
            return Ok(());
        }
        if self.held.frames.is_empty() {
            let received = self.held.receive(&mut *self.port, buffers, most);
            if let Some(Punt { queue, progress, .. }) = &self.punt {
                let tags = self.held.frames.iter().filter_map(|it| Tag::of(buffers.memory, it));
                tags.for_each(|tag| progress.note_taken(*queue, tag.port()));
                if self.held.frames.len() < most {
                    progress.note_empty(*queue);
                }
            }
            received?;
            // What was reported meanwhile was so before some of these.
            if !self.held.frames.is_empty() && self.reads_reports(buffers, most, frames) {
                return Ok(());
            }
        }
        let before = frames.len();
        frames.extend(self.held.drain(most));
        if self.punt.is_some() {
            self.held.handshakes.see_taken(buffers.memory, &frames[before..]);
        }
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.held.handshakes.see(buffers.memory, frames);
        self.port.send(buffers, frames)
    }

    fn accepts_partial_checksums(&self) -> bool {
        self.port.accepts_partial_checksums()
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.port.readable()
    }

    /// No wait for reports ends by a time: whoever waits wakes the reader, and the reader whoever
    /// waits.
    fn due(&self) -> Option<Duration> {
        let is_reader = self.punt.as_ref().is_some_and(|punt| punt.queue == 0);
        let is_awaited = is_reader && self.held.reports.is_wanted();
        let may_go_on = !self.held.frames.is_empty() && self.held.awaited().is_none();
        if may_go_on || is_awaited && self.held.handshakes.engine().is_some() {
            return Some(Duration::ZERO);
        }
        let read = self.punt.as_ref().and_then(|it| it.pace.due(Instant::now()));
        let sent = self.port.due();
        read.into_iter().chain(sent).min()
    }

    fn is_sending(&self) -> bool {
        !self.held.frames.is_empty() || self.port.is_sending()
    }

    fn missed(&self) -> u64 {
        self.port.missed()
    }

    fn look(&mut self) -> Result<RingFrames, PortGone> {
        self.port.look()
    }

    fn close(mut self: Box<Self>, buffers: &mut Buffers<'_>) {
        buffers.free.put_all(&mut self.held.frames);
        self.port.close(buffers);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use dataplane::port::memory::Wire;
    use dataplane::{FreeList, Memory};
    use testkit::TempDir;

    use super::*;

    /// Memory in the place of a map of the kernel, zero and large enough for any.
    fn map(folder: &TempDir, name: &str) -> File {
        let path = folder.path().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(4 << 20).unwrap();
        file
    }

    /// A worker sleeps for as long as its ports say; one that asks for no time at all has it poll without end.
    #[test]
    fn a_queue_asks_for_no_reading_once_no_more_connections_open() {
        const MS: Duration = Duration::from_millis(1);
        let folder = TempDir::new("queues");
        let progress = Progress::of(map(&folder, "progress").as_raw_fd()).unwrap();
        let reports = Arc::new(Reports::of(map(&folder, "reports").as_raw_fd()).unwrap());
        let (port, handshakes) = (Wire::default().port(), Arc::default());
        let mut queue = Queue::of_punt_link(0, port, progress, reports, handshakes);
        // 32 connections opened in a millisecond, some time ago.
        let read = Instant::now();
        let mut pace = Pace::new(read - 11 * MS);
        pace.note(32, read - 10 * MS);
        queue.punt.as_mut().unwrap().pace = pace;
        assert_eq!(queue.due(), Some(Duration::ZERO), "a reading is due");
        let (memory, frames) = Memory::heap(2048, 1);
        let mut free = FreeList::new(&memory, frames);
        let mut received = Vec::new();
        let mut buffers = Buffers { memory: &memory, free: &mut free };
        queue.receive(&mut buffers, 1, &mut received).unwrap();
        assert_eq!((received.len(), queue.due()), (0, None));
        // A frame that was held, and waits for nothing any more.
        queue.held.frames.extend(buffers.filled(&[0; 60]));
        assert_eq!(queue.due(), Some(Duration::ZERO));
        queue.receive(&mut buffers, 1, &mut received).unwrap();
        assert_eq!((received.len(), queue.due()), (1, None));
    }
}
