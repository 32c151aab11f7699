//! An independent peer: the other end of the wire is an AF_XDP socket of libxdp, by the crate
//! xsk-rs.

#![allow(unsafe_code, reason = "xsk-rs leaves the ownership of frames to its user")]

use std::io::Write;
use std::num::NonZero;
use std::time::Instant;

use testkit::Namespace;
use testkit::packet::udp;
use xsk_rs::config::{SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

use crate::af_xdp::pair::{End, PATIENCE, Pair};

/// Frames of the peer: half of them to receive, half of them to send.
const FRAMES: u32 = 256;

/// A socket on queue 0 of an interface.
struct Peer {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    free: Vec<FrameDesc>,
}

impl Peer {
    fn open(namespace: &Namespace, interface: &str) -> Self {
        namespace.enter(|| {
            let frames = NonZero::new(FRAMES).unwrap();
            let (umem, mut free) = Umem::new(UmemConfig::default(), frames, false).unwrap();
            let interface = interface.parse().unwrap();
            // SAFETY: the UMEM has no other socket.
            let socket = unsafe { Socket::new(SocketConfig::default(), &umem, &interface, 0) };
            let (tx, rx, rings) = socket.unwrap();
            let (mut fill, completion) = rings.expect("the rings of a first socket");
            let posted = free.split_off(free.len() / 2);
            // SAFETY: the descriptors are new, and dropped here.
            assert_eq!(unsafe { fill.produce(&posted) }, posted.len());
            Self { tx, rx, fill, completion, umem, free }
        })
    }

    fn send(&mut self, packet: &[u8]) {
        let deadline = Instant::now() + PATIENCE;
        let mut frame = loop {
            if let Some(frame) = self.free.pop() {
                break frame;
            }
            assert!(Instant::now() < deadline, "no frame is completed");
            let mut completed = [FrameDesc::default(); 16];
            // SAFETY: the descriptors are overwritten; each frame was produced before.
            let count = unsafe { self.completion.consume(&mut completed) };
            self.free.extend(&completed[..count]);
            self.tx.wakeup().unwrap();
        };
        // SAFETY: the frame is of this UMEM and in no ring.
        let mut data = unsafe { self.umem.data_mut(&mut frame) };
        let mut cursor = data.cursor();
        cursor.set_pos(0);
        cursor.write_all(packet).unwrap();
        // SAFETY: as above; the descriptor is dropped after it.
        assert_eq!(unsafe { self.tx.produce_one_and_wakeup(&frame) }.unwrap(), 1);
    }

    /// The next packet that arrives.
    fn wait(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        let mut frame = FrameDesc::default();
        // SAFETY: the descriptor is overwritten.
        while unsafe { self.rx.poll_and_consume_one(&mut frame, 100) }.unwrap() == 0 {
            assert!(Instant::now() < deadline, "no packet within {PATIENCE:?}");
        }
        // SAFETY: the rx ring returned the frame, which is in no ring now.
        let packet = unsafe { self.umem.data(&frame) }.contents().to_vec();
        // SAFETY: as above; the descriptor is dropped after it.
        assert_eq!(unsafe { self.fill.produce_one(&frame) }, 1);
        packet
    }
}

fn packet(length: usize, seed: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..length - 42).map(|n| ((n + seed) % 251) as u8).collect();
    udp("10.0.0.1:1000", "10.0.0.2:2000").payload(&payload).build()
}

#[test]
fn a_port_and_libxdp_exchange_packets_of_all_lengths() {
    testkit::requires_root!();
    let pair = Pair::new("libxdp");
    let mut peer = Peer::open(&pair.pod, "eth0");
    let mut switch = End::open(&pair.switch, "pod0");
    // More packets than either end has frames, so that every frame is used again.
    for n in 0..3 * FRAMES as usize {
        let sent = packet(60 + n % 1455, n);
        peer.send(&sent);
        assert_eq!(switch.wait_bytes(), sent, "packet {n} to the port");
        switch.send_bytes(&sent);
        assert_eq!(peer.wait(), sent, "packet {n} to libxdp");
    }
}

#[test]
fn a_burst_arrives_in_order_at_either_end() {
    testkit::requires_root!();
    let pair = Pair::new("libxdp-burst");
    let mut peer = Peer::open(&pair.pod, "eth0");
    let mut switch = End::open(&pair.switch, "pod0");
    let burst: Vec<Vec<u8>> = (0..64).map(|n| packet(100, n)).collect();
    burst.iter().for_each(|packet| peer.send(packet));
    for packet in &burst {
        assert_eq!(switch.wait_bytes(), *packet);
    }
    burst.iter().for_each(|packet| switch.send_bytes(packet));
    for packet in &burst {
        assert_eq!(peer.wait(), *packet);
    }
}
