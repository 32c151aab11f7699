//! Checksums between real kernels: what a pod's left unfinished arrives right at another's, and
//! what is wrong stays wrong.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::channel;

use dataplane::capture::{Direction, LiveCapture};
use dataplane::graph::trace::Filter;
use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::memory::Wire;
use dataplane::switch::{Config, RxMode};
use dataplane::wire::{self, checksum, protocol};
use dataplane::{AclBinding, Parts, PortId, PortKind, PortState, Snapshot, Switch};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use testkit::Namespace;
use testkit::packet::udp;

use crate::af_xdp::pair::{PATIENCE, words};

/// Two pods whose kernels leave checksums to hardware, on one switch; a third port is in memory.
struct Rig {
    pods: [Namespace; 2],
    switch: Switch,
    wire: Wire,
    _umem: Umem,
    _node: Namespace,
}

const ADDRESSES: [&str; 3] = ["10.77.0.2", "10.77.0.3", "10.77.0.4"];

impl Rig {
    fn new(label: &str, mtu: u32) -> Self {
        let node = Namespace::new(&format!("{label}-n"));
        let pods = ["a", "b"].map(|name| Namespace::new(&format!("{label}-{name}")));
        let mut macs = Vec::new();
        for (n, pod) in pods.iter().enumerate() {
            node.exec(words(&format!(
                "ip link add pod{n} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}",
                pod.name()
            )));
            for (namespace, interface) in [(&node, format!("pod{n}")), (pod, "eth0".to_owned())] {
                let off = format!("net.ipv6.conf.{interface}.disable_ipv6=1");
                namespace.exec(["sysctl", "-qw", &off]);
                let off = format!("ethtool -K {interface} tso off gso off gro off");
                namespace.exec(words(&off));
                namespace.exec(words(&format!("ip link set {interface} up")));
            }
            pod.exec(words(&format!("ip addr add {}/24 dev eth0", ADDRESSES[n])));
            let mac = pod.exec(words("cat /sys/class/net/eth0/address"));
            macs.push(mac.trim().to_owned());
        }
        for pod in &pods {
            for (n, address) in ADDRESSES.iter().enumerate() {
                let mac = macs.get(n).map_or("02:04:0a:4d:00:04", String::as_str);
                // The switch does not care what it is sent to.
                let own = n < 2 && std::ptr::eq(pod, &pods[n]);
                if !own {
                    pod.exec(words(&format!("ip neigh add {address} lladdr {mac} dev eth0")));
                }
            }
        }
        let config = UmemConfig { frames: 4096, hugepages: false };
        let (umem, memory, frames) = node.enter(|| Umem::create(&config)).expect("a UMEM");
        let config = Config { rx_mode: RxMode::Interrupt, ..Config::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).expect("workers");
        for n in 0..2 {
            let options = PortOptions::default();
            let port = node.enter(|| umem.open(&format!("pod{n}"), &options)).expect("a port");
            let port: Box<dyn dataplane::port::Port> = Box::new(port);
            switch.add_port(PortId(n), port);
        }
        let wire = Wire::default();
        switch.add_port(PortId(2), wire.port());
        let port = |n: usize, mac: Option<&String>| {
            let octets = |mac: &String| -> Vec<u8> {
                mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
            };
            let address: std::net::IpAddr = ADDRESSES[n].parse().unwrap();
            Some(PortState {
                mac: mac.map(|mac| octets(mac).try_into().unwrap()),
                addresses: vec![address.into()],
                to_pod: AclBinding::Open,
                from_pod: AclBinding::Open,
                ..PortState::new(format!("p{n}"), PortKind::Pod)
            })
        };
        let ports = (0..3).map(|n| port(n, macs.get(n))).collect();
        switch.publish(&Arc::new(Snapshot::new(Parts {
            generation: 1,
            ports,
            ..Parts::default()
        })));
        assert!(switch.wait_in_force(1, PATIENCE));
        Self { pods, switch, wire, _umem: umem, _node: node }
    }

    /// Sends this much over TCP from one pod to the other, and returns what arrived.
    fn transfer(&self, sent: &[u8]) -> Vec<u8> {
        self.transfer_to(ADDRESSES[1], sent)
    }

    fn transfer_to(&self, address: &str, sent: &[u8]) -> Vec<u8> {
        let (ready, is_ready) = channel();
        std::thread::scope(|scope| {
            // A port that is free: a program that another test starts holds the last socket for a moment. The
            // end of this thread ends the channel.
            let server = scope.spawn(move || {
                self.pods[1].enter(move || {
                    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
                    ready.send(listener.local_addr().unwrap().port()).unwrap();
                    set_socket_timeout(&listener, Timeout::Recv, Some(PATIENCE)).unwrap();
                    let mut stream = listener.accept().unwrap().0;
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut arrived = Vec::new();
                    stream.read_to_end(&mut arrived).unwrap();
                    arrived
                })
            });
            let port = is_ready.recv().unwrap();
            self.pods[0].enter(|| {
                let to = format!("{address}:{port}").parse().unwrap();
                let mut stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(sent).unwrap();
            });
            server.join().unwrap()
        })
    }

    /// A counter of the receiving pod's kernel.
    fn received(&self, counter: &str) -> u64 {
        let all = self.pods[1].exec(words("nstat -asz"));
        let line = all.lines().find(|line| line.split_whitespace().next() == Some(counter));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn datagram_to(&self, address: &str, payload: &[u8]) {
        self.pods[0].enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(payload, (address.parse::<Ipv4Addr>().unwrap(), 7001)).unwrap();
        });
    }
}

fn is_finished(frame: &[u8]) -> bool {
    let headers = wire::parse(frame).unwrap();
    let (l3, l4, end) =
        (usize::from(headers.l3), usize::from(headers.l4), usize::from(headers.end));
    let pseudo = checksum::pseudo(&frame[l3 + 12..l3 + 20], headers.flow.protocol, end - l4);
    checksum::fold(pseudo + checksum::sum(&frame[l4..end])) == 0xffff
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

#[test]
fn a_stream_whose_sums_nobody_completes_arrives() {
    testkit::requires_root!();
    for mtu in [1500, 65_000] {
        let rig = Rig::new("open", mtu);
        let sent = bytes(3_000_000);
        assert!(rig.transfer(&sent) == sent, "MTU {mtu}: something else arrived");
        assert_eq!(rig.received("TcpInCsumErrors"), 0);
        drop(rig.switch);
    }
}

#[test]
fn sums_inside_of_a_pods_own_tunnel_arrive_right() {
    testkit::requires_root!();
    let rig = Rig::new("nested", 9000);
    for (n, pod) in rig.pods.iter().enumerate() {
        let (own, other) = (ADDRESSES[n], ADDRESSES[1 - n]);
        // With and without a checksum outside.
        for (name, outside, network) in [
            ("vx", "id 7 dstport 4789 noudpcsum", "10.78.1"),
            ("vs", "id 8 dstport 4790 udpcsum", "10.78.2"),
        ] {
            let ends = format!("dev eth0 local {own} remote {other}");
            pod.exec(words(&format!("ip link add {name} type vxlan {outside} {ends}")));
            pod.exec(words(&format!("ethtool -K {name} tso off gso off")));
            pod.exec(words(&format!("ip addr add {network}.{}/24 dev {name}", n + 1)));
            pod.exec(words(&format!("ip link set {name} up")));
        }
    }
    let sent = bytes(300_000);
    for network in ["10.78.1", "10.78.2"] {
        assert!(rig.transfer_to(&format!("{network}.2"), &sent) == sent, "{network}: differs");
    }
    assert_eq!(rig.received("TcpInCsumErrors"), 0);
}

/// Bytes of Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;

#[test]
fn whoever_is_no_kernel_gets_finished_packets() {
    testkit::requires_root!();
    let rig = Rig::new("memory", 9000);
    for length in [1, 700, 8000] {
        // The kernel drops packets until the port has filled its ring. A datagram that is sent again may arrive twice.
        let frame = testkit::eventually("the datagram", || {
            rig.datagram_to(ADDRESSES[2], &bytes(length));
            let arrived = std::iter::from_fn(|| rig.wire.receive());
            arrived.filter(|frame| frame.len() == HEADERS + length).last()
        });
        assert!(frame.ends_with(&bytes(length)));
        assert!(is_finished(&frame), "{length} bytes");
    }
}

#[test]
fn a_damaged_packet_stays_damaged() {
    testkit::requires_root!();
    let rig = Rig::new("damaged", 1500);
    let before = rig.received("UdpInCsumErrors");
    let (from, to) = (format!("{}:5000", ADDRESSES[2]), format!("{}:7001", ADDRESSES[1]));
    rig.pods[1].enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:7001").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut damaged = udp(&from, &to).payload(b"damaged").build();
        *damaged.last_mut().unwrap() ^= 0x10;
        rig.wire.send(damaged);
        rig.wire.send(udp(&from, &to).payload(b"sound").build());
        let mut buffer = [0; 100];
        let count = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"sound");
    });
    assert_eq!(rig.received("UdpInCsumErrors"), before + 1);
}

#[test]
fn a_capture_has_complete_checksums() {
    testkit::requires_root!();
    let rig = Rig::new("captured", 9000);
    let capture = LiveCapture::new(Filter::default(), 8192, 65_535);
    rig.switch.capture(PortId(1), &capture);
    let sent = bytes(200_000);
    assert_eq!(rig.transfer(&sent), sent);
    drop(rig);
    assert!(LiveCapture::is_detached(&capture), "a capture ends with its port");
    assert_eq!(capture.dropped(), 0);
    let (mut left, mut returned) = (0, 0);
    while let Some(packet) = capture.take() {
        let headers = wire::parse(&packet.bytes).unwrap();
        if headers.flow.protocol != protocol::TCP {
            continue;
        }
        match packet.direction {
            Direction::In => returned += 1,
            Direction::Out => {
                assert!(is_finished(&packet.bytes), "packet {left} of those that left");
                left += 1;
            }
        }
    }
    assert!(left > 20 && returned > 5, "{left} and {returned} packets");
}
