//! A TAP port and the kernel behind it (as root).

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::port::{Lent, Port, TapPort};
use dataplane::wire::checksum;
use dataplane::{FreeList, Memory};
use testkit::{Namespace, packet};

const PATIENCE: Duration = Duration::from_secs(10);
const FRAMES: u32 = 64;

struct Rig {
    kernel: Namespace,
    memory: Arc<Memory>,
    free: FreeList,
    port: Box<TapPort>,
}

impl Rig {
    fn new(label: &str) -> Self {
        let kernel = Namespace::new(label);
        let port = kernel.enter(|| TapPort::open("tap0").unwrap());
        kernel.exec(["sysctl", "-qw", "net.ipv6.conf.tap0.disable_ipv6=1"]);
        ip(&kernel, "link set tap0 address 02:00:00:00:00:01");
        ip(&kernel, "link set tap0 up");
        ip(&kernel, "address add 192.0.2.1/24 dev tap0");
        ip(&kernel, "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev tap0");
        let (memory, frames) = Memory::heap(2048, FRAMES);
        let free = FreeList::new(&memory, frames);
        Self { kernel, memory, free, port: Box::new(port) }
    }

    fn socket(&self) -> UdpSocket {
        let socket = self.kernel.enter(|| UdpSocket::bind("192.0.2.1:7000").unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect("192.0.2.2:8000").unwrap();
        socket
    }

    /// The next frames the kernel sends.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        let mut lent = Lent { memory: &self.memory, free: &mut self.free };
        while frames.is_empty() && Instant::now() < deadline {
            self.port.receive(&mut lent, 8, &mut frames).unwrap();
        }
        let bytes = frames.iter().map(|frame| {
            let mut bytes = Vec::new();
            self.memory.append_to(frame, &mut bytes, usize::MAX);
            bytes
        });
        let bytes = bytes.collect();
        frames.into_iter().for_each(|frame| self.free.put(frame));
        bytes
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut lent = Lent { memory: &self.memory, free: &mut self.free };
        let mut frames = vec![lent.filled(bytes).unwrap()];
        self.port.send(&mut lent, &mut frames).unwrap();
        assert!(frames.is_empty());
    }
}

fn ip(namespace: &Namespace, line: &str) {
    namespace.exec(["ip"].into_iter().chain(line.split_whitespace()));
}

#[test]
fn the_kernel_and_the_port_exchange_datagrams() {
    testkit::requires_root!();
    let mut rig = Rig::new("tap");
    let socket = rig.socket();
    for n in 0..2 * FRAMES {
        let text = format!("datagram {n}");
        socket.send(text.as_bytes()).unwrap();
        let received = rig.receive();
        assert_eq!(received.len(), 1);
        assert_eq!(&received[0][42..], text.as_bytes());
        // Nothing was left to hardware.
        let pseudo = checksum::pseudo(&received[0][26..34], 17, text.len() + 8);
        assert_eq!(checksum::fold(pseudo + checksum::sum(&received[0][34..])), 0xffff);

        let answer = packet::udp("192.0.2.2:8000", "192.0.2.1:7000").payload(text.as_bytes());
        rig.send(&answer.to_mac([2, 0, 0, 0, 0, 1]).build());
        let mut bytes = [0; 100];
        let count = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], text.as_bytes());
    }
    assert_eq!(rig.free.len(), FRAMES as usize);
}

#[test]
fn packets_longer_than_a_frame_pass() {
    testkit::requires_root!();
    let mut rig = Rig::new("tap-long");
    ip(&rig.kernel, "link set tap0 mtu 32000");
    let socket = rig.socket();
    for length in [1750, 5000, 31_000] {
        let payload: Vec<u8> = (0..length).map(|n: u32| n as u8).collect();
        socket.send(&payload).unwrap();
        assert_eq!(rig.receive()[0][42..], payload);
        let answer = packet::udp("192.0.2.2:8000", "192.0.2.1:7000").payload(&payload);
        rig.send(&answer.to_mac([2, 0, 0, 0, 0, 1]).build());
        let mut bytes = vec![0; 40_000];
        let count = socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..count], payload);
        assert_eq!(rig.free.len(), FRAMES as usize);
    }
}

#[test]
fn a_packet_for_which_there_are_too_few_frames_is_missed() {
    testkit::requires_root!();
    let mut rig = Rig::new("tap-few");
    ip(&rig.kernel, "link set tap0 mtu 9000");
    let taken: Vec<_> = (0..FRAMES - 2).map(|_| rig.free.take().unwrap()).collect();
    let socket = rig.socket();
    socket.send(&[1; 5000]).unwrap();
    socket.send(b"short").unwrap();
    assert_eq!(&rig.receive()[0][42..], b"short");
    assert_eq!(rig.port.missed(), 1);
    taken.into_iter().for_each(|frame| rig.free.put(frame));
    assert_eq!(rig.free.len(), FRAMES as usize);
}

#[test]
fn an_interface_that_is_deleted_ends_the_port() {
    testkit::requires_root!();
    let mut rig = Rig::new("tap-gone");
    ip(&rig.kernel, "link delete tap0");
    let mut lent = Lent { memory: &rig.memory, free: &mut rig.free };
    let gone = rig.port.receive(&mut lent, 8, &mut Vec::new()).unwrap_err().to_string();
    assert!(gone.contains("interface tap0 is gone"), "{gone}");
}

#[test]
fn names_that_are_none_or_taken_are_refused() {
    testkit::requires_root!();
    let rig = Rig::new("tap-name");
    for name in ["", "tap0", "tap%d", "much-too-long-a-name", "a\0b"] {
        let error = rig.kernel.enter(|| TapPort::open(name).err()).expect(name).to_string();
        assert!(error.contains("TAP interface"), "{error}");
    }
}
