//! Several queues of one interface as one port of one worker. (For several workers:
//! `Switch::add_queues`.)

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::{Buffers, Port, PortGone, RingFrames};
use crate::Frame;

/// Ports that make up one.
///
/// Frames leave through the first queue: an interface keeps no order between its queues, and
/// packets of a connection must not overtake each other.
pub struct Queues {
    ports: Vec<Box<dyn Port>>,
    /// The one that is polled first.
    first: usize,
    /// Readable when one of them is; `None` if one has no descriptor.
    waits: Option<OwnedFd>,
}

impl Queues {
    /// One port for these.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(ports: Vec<Box<dyn Port>>) -> Self {
        assert!(!ports.is_empty(), "a port without queues");
        let waits = wait_for_any(&ports);
        Self { ports, first: 0, waits }
    }
}

fn wait_for_any(ports: &[Box<dyn Port>]) -> Option<OwnedFd> {
    let waits = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
    for port in ports {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&waits, port.readable()?, data, flags).ok()?;
    }
    Some(waits)
}

impl Port for Queues {
    fn accepts_partial_checksums(&self) -> bool {
        self.ports.iter().all(|port| port.accepts_partial_checksums())
    }

    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let (count, start) = (self.ports.len(), frames.len());
        for n in 0..count {
            let left = most - (frames.len() - start);
            // A queue is polled even with no room left: it must refill its fill ring.
            self.ports[(self.first + n) % count].receive(buffers, left, frames)?;
        }
        self.first = (self.first + 1) % count;
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.ports[0].send(buffers, frames)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.waits.as_ref().map(AsFd::as_fd)
    }

    fn is_sending(&self) -> bool {
        self.ports[0].is_sending()
    }

    fn missed(&self) -> u64 {
        self.ports.iter().map(|port| port.missed()).sum()
    }

    fn look(&mut self) -> Result<RingFrames, PortGone> {
        self.ports.iter_mut().try_fold(RingFrames::default(), |sum, port| Ok(sum + port.look()?))
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.ports.into_iter().for_each(|port| port.close(buffers));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::port::memory::Wire;
    use crate::{FreeList, Memory};

    #[test]
    fn all_queues_are_served_and_one_sends() {
        let (memory, frames) = Memory::heap(2048, 64);
        let mut free = FreeList::new(&memory, frames);
        let mut buffers = Buffers { memory: &memory, free: &mut free };
        let wires: Vec<Wire> = (0..3).map(|_| Wire::default()).collect();
        let mut port = Queues::new(wires.iter().map(Wire::port).collect());
        let is_readable = |port: &Queues| {
            let mut sources = [PollFd::new(port.waits.as_ref().unwrap(), PollFlags::IN)];
            poll(&mut sources, Some(&Timespec::try_from(Duration::ZERO).unwrap())).unwrap() > 0
        };
        assert!(!is_readable(&port));
        for (n, wire) in wires.iter().enumerate() {
            for m in 0..3 {
                wire.send(vec![n as u8, m]);
            }
        }
        assert!(is_readable(&port));
        let (mut seen, mut received) = (Vec::new(), Vec::new());
        while seen.len() < 9 {
            port.receive(&mut buffers, 2, &mut received).unwrap();
            assert!((1..=2).contains(&received.len()), "{} at once", received.len());
            seen.extend(received.iter().map(|frame| memory.bytes(frame).to_vec()));
            port.send(&mut buffers, &mut received).unwrap();
        }
        assert!(!is_readable(&port));
        for queue in 0..3 {
            let of_queue: Vec<u8> = seen.iter().filter(|f| f[0] == queue).map(|f| f[1]).collect();
            assert_eq!(of_queue, [0, 1, 2], "queue {queue}");
        }
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| wires[0].receive()).collect();
        assert_eq!(sent, seen);
        Box::new(port).close(&mut buffers);
        assert_eq!(free.len(), 64);
    }
}
