//! Reports of programs about connections that the switch has not seen open or end, in order: a ring in memory that
//! the kernel writes and one thread reads (`BPF_MAP_TYPE_RINGBUF`).

#![allow(unsafe_code, reason = "maps a ring of the kernel into memory")]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Error;
use crate::layout::Report;

/// Bytes of the ring: a power of two (`reports` in `bpf/maps.h`).
const SIZE: usize = 1 << 19;
/// In front of each report: its length with these marks, and a word for the kernel.
const HEADER: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// The ring. One thread at a time reads it; any may ask whether all is read.
pub(crate) struct Reports {
    /// The page with the place that was read up to, which the kernel reads.
    consumer: NonNull<u8>,
    /// The page with the place that was written up to, and behind it the ring, twice.
    producer: NonNull<u8>,
    page: usize,
    /// The place that the reader is at. What is between it and the consumer's stays in the ring.
    place: AtomicU64,
    /// The last place up to which a queue waits for the reader.
    wanted: AtomicU64,
}

// SAFETY: the pages are reached through atomics, and reports only once the kernel has completed them.
unsafe impl Send for Reports {}
// SAFETY: as above.
unsafe impl Sync for Reports {}

impl Reports {
    pub(crate) fn of(map: RawFd) -> Result<Self, Error> {
        // SAFETY: takes nothing.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let mapped = |length: usize, access, from: usize| {
            // SAFETY: a new mapping at an address that the kernel chooses; the lengths are those of the map.
            let base = unsafe {
                let from = from as libc::off_t;
                libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, map, from)
            };
            let mapped = if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) };
            let failed = || Error::new("map the reports of programs", io::Error::last_os_error());
            mapped.ok_or_else(failed)
        };
        let consumer = mapped(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        match mapped(page + 2 * SIZE, libc::PROT_READ, page) {
            Ok(producer) => Ok(Self {
                consumer,
                producer,
                page,
                place: AtomicU64::new(0),
                wanted: AtomicU64::new(0),
            }),
            Err(error) => {
                // SAFETY: mapped above, and not used.
                unsafe { libc::munmap(consumer.as_ptr().cast(), page) };
                Err(error)
            }
        }
    }

    fn written(&self) -> u64 {
        // SAFETY: the page begins with the word, and is mapped as long as `self` lives.
        unsafe { self.producer.cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire)
    }

    fn released(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.consumer.cast::<AtomicU64>().as_ref() }
    }

    /// Whether everything was read and released.
    pub(crate) fn is_empty(&self) -> bool {
        self.released().load(Ordering::Acquire) == self.written()
    }

    /// The place that was written up to.
    pub(crate) fn end(&self) -> u64 {
        self.written()
    }

    /// Whether everything up to a place was read and released.
    pub(crate) fn is_released(&self, place: u64) -> bool {
        self.released().load(Ordering::SeqCst) >= place
    }

    /// Asks the reader to read up to a place at once.
    pub(crate) fn want(&self, place: u64) {
        // Either the caller sees the release that follows, or the reader this.
        self.wanted.fetch_max(place, Ordering::SeqCst);
    }

    /// Whether a queue waits for reports that were not released.
    pub(crate) fn is_wanted(&self) -> bool {
        self.released().load(Ordering::Acquire) < self.wanted.load(Ordering::Acquire)
    }

    /// Whether there is a report that was not read.
    pub(crate) fn has_more(&self) -> bool {
        self.place.load(Ordering::Relaxed) != self.written()
    }

    /// Hands the next report to `read`, which says whether to go on behind it; `false` if there is none, or it
    /// is to stay. Called by the reader.
    #[inline]
    pub(crate) fn next(&self, read: impl FnOnce(Report<'_>) -> bool) -> bool {
        let place = self.place.load(Ordering::Relaxed);
        if place == self.written() {
            return false;
        }
        self.read(place, read)
    }

    fn read(&self, place: u64, read: impl FnOnce(Report<'_>) -> bool) -> bool {
        let offset = self.page + (place as usize & (SIZE - 1));
        // SAFETY: a report is in one piece, as the ring is mapped twice, and its header in line.
        let (header, bytes) = unsafe {
            let at = self.producer.add(offset);
            (at.cast::<AtomicU32>().as_ref(), at.add(HEADER))
        };
        let length = header.load(Ordering::Acquire);
        // A program is still at it; later ones wait.
        if length & BUSY != 0 {
            return false;
        }
        let bytes_used = (length & !DISCARDED) as usize;
        // SAFETY: the kernel has completed it, and writes there only after its release.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes_used.min(SIZE)) };
        let report = if length & DISCARDED == 0 { Report::parse(bytes) } else { None };
        let goes_on = report.is_none_or(read);
        if goes_on {
            let next = place + (HEADER + bytes_used).next_multiple_of(HEADER) as u64;
            self.place.store(next, Ordering::Relaxed);
        }
        goes_on
    }

    /// Gives the room of what was read back to the kernel; whether a queue waited for that. Called
    /// by the reader.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        let (place, before) =
            (self.place.load(Ordering::Relaxed), self.released().load(Ordering::Relaxed));
        if before == place {
            return false;
        }
        self.released().store(place, Ordering::SeqCst);
        self.wanted.load(Ordering::SeqCst) > before
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, unmapped once.
        unsafe {
            libc::munmap(self.consumer.as_ptr().cast(), self.page);
            libc::munmap(self.producer.as_ptr().cast(), self.page + 2 * SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dataplane::PortId;
    use dataplane::wire::parse;
    use testkit::packet;

    use super::*;
    use crate::layout::{Ended, FlowEntry, FlowKey, Opened, PuntedPort, Template, TemplateKey};
    use crate::{Hook, Kernel};

    const TAG: [u8; 6] = [6, 1, 0, 1, 0, 3];
    const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    const LOOPBACK: u32 = 1;

    #[test]
    fn the_reader_learns_of_queues_that_wait() {
        let folder = testkit::TempDir::new("reports");
        let path = folder.path().join("map");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path);
        let file = file.unwrap();
        file.set_len(4 << 20).unwrap();
        let reports = Reports::of(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
        let release = |place: u64| {
            reports.place.store(place, Ordering::Relaxed);
            reports.release()
        };
        assert!(!release(8), "nobody waits");
        // Of two that wait, each is woken.
        reports.want(24);
        reports.want(16);
        assert!(release(16) && reports.is_released(16) && reports.is_wanted());
        assert!(release(24) && !reports.is_wanted());
        assert!(!release(24) && !release(32), "they go on");
    }

    #[test]
    fn connections_are_reported_in_their_order_with_what_they_counted() {
        testkit::requires_root!();
        let kernel = Kernel::load(64).unwrap();
        kernel.beat(Duration::from_secs(1 << 32)).unwrap();
        let port = PuntedPort { ifindex: LOOPBACK, tag: TAG, mac: MACS[0], queue: 0 };
        kernel.enter_port(PortId(3), &port).unwrap();
        let entry = |n: usize| FlowEntry {
            egress: LOOPBACK,
            takes_fin: 1,
            ingress_mac: MACS[n],
            destination_mac: MACS[1 - n],
            guards: [5, 6, 0],
            ..FlowEntry::default()
        };
        let (client, server) = ("10.1.0.1:4000", "10.1.0.2:80");
        let syn = packet::tcp(client, server).syn().from_mac(MACS[0]).build();
        let flow = parse(&syn).unwrap().flow;
        let template = Template::new([entry(0), entry(1)], LOOPBACK, 0);
        kernel.put_template(&TemplateKey::new(LOOPBACK, &flow), &template).unwrap();
        let answer = |packet: packet::Packet| packet.from_mac(MACS[1]).build();
        let frames = [
            syn.clone(),
            answer(packet::tcp(server, client).syn_ack()),
            packet::tcp(client, server).data(b"question").from_mac(MACS[0]).build(),
            answer(packet::tcp(server, client).ack().fin()),
            packet::tcp(client, server).ack().fin().from_mac(MACS[0]).build(),
            answer(packet::tcp(server, client).ack()),
        ];
        for frame in &frames {
            kernel.run(Hook::Pod, LOOPBACK, frame, None).unwrap();
        }
        let reports = &kernel.reports;
        assert!(!reports.is_empty());
        assert!(!reports.next(|_| false), "one that stays");
        let seen = |report: Report<'_>| {
            let Report::Opened(Opened { key, frame, responder, backend }) = report else {
                panic!("{report:?}")
            };
            assert_eq!(key, FlowKey::new(LOOPBACK, &flow));
            assert_eq!((responder, backend), ((flow.destination, flow.destination_port), 0));
            assert_eq!(frame[..6], TAG);
            assert_eq!(frame[6..], syn[6..]);
            true
        };
        assert!(reports.next(seen));
        let length = |frames: &[&Vec<u8>]| frames.iter().map(|it| it.len() as u64).sum::<u64>();
        let [syn, syn_ack, data, server_fin, client_fin, ack] = &frames;
        let seen = |report: Report<'_>| {
            let Report::Ended(ended) = report else { panic!("{report:?}") };
            let Ended { by_template, ports, key, packets, bytes, .. } = ended;
            assert!(by_template);
            assert_eq!((ports, key), ([3, 4], FlowKey::new(LOOPBACK, &flow)));
            assert_eq!(key.flow(), flow);
            assert_eq!(packets, [3, 3]);
            let both = [length(&[syn, data, client_fin]), length(&[syn_ack, server_fin, ack])];
            assert_eq!(bytes, both);
            true
        };
        assert!(reports.next(seen));
        assert!(!reports.next(|_| true) && !reports.has_more() && !reports.is_empty());
        reports.release();
        assert!(reports.is_empty());
    }
}
