//! The packets on the wire, and those that get through.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use testkit::packet;
use testkit::{BORINGTUN, Namespace, RawSender, eventually, has_program};

use crate::rig::{Host, Lan, OVERLAY, PORT};

/// The payload of pods, which must not be seen on the link.
const SECRET: &[u8] = b"what pods of different nodes say to each other";
/// Longer than what is lost if it does not come at once.
const BLOCKED: Duration = Duration::from_secs(1);

macro_rules! requires {
    () => {
        testkit::requires_root!();
        testkit::requires!(has_program(BORINGTUN), "boringtun-cli is not installed");
    };
}

/// Ends of a datagram: source and destination.
type Ends = [&'static str; 2];
/// Routed pods, those of the overlay, and a pod with a node.
const ROUTED: Ends = ["10.1.0.1", "10.2.0.1"];
const ROUTED_V6: Ends = ["fd01::1", "fd02::1"];
const OVERLAY_PODS: Ends = ["172.16.0.1", "172.16.0.2"];
const TO_NODE: Ends = ["10.1.0.1", "192.0.2.2"];
const FROM_NODE: Ends = ["192.0.2.1", "10.2.0.1"];
const OF_PODS: [Ends; 5] = [ROUTED, ROUTED_V6, OVERLAY_PODS, TO_NODE, FROM_NODE];
/// The nodes' own.
const NODES: Ends = ["192.0.2.1", "192.0.2.2"];

fn bound(namespace: &Namespace, address: &str, port: u16) -> UdpSocket {
    let address = SocketAddr::new(address.parse().unwrap(), port);
    let socket = namespace.enter(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(BLOCKED)).unwrap();
    socket
}

/// Whether a datagram with the secret arrives, from one host at the other.
fn says(from: &Host, to: &Host, [source, destination]: Ends) -> bool {
    let receiver = bound(&to.namespace, destination, 7000);
    let sender = bound(&from.namespace, source, 0);
    let to = SocketAddr::new(destination.parse().unwrap(), 7000);
    // Dropped at the egress: an error of the call.
    let _ = sender.send_to(SECRET, to);
    let mut buffer = [0; 1500];
    receiver.recv_from(&mut buffer).is_ok_and(|(length, from)| {
        assert_eq!(from.ip(), sender.local_addr().unwrap().ip());
        &buffer[..length] == SECRET
    })
}

/// The same, sent again while a session or neighbours are not known.
#[track_caller]
fn comes_to_say(from: &Host, to: &Host, ends: Ends) {
    eventually(&format!("{ends:?}"), || says(from, to, ends).then_some(()));
}

#[test]
fn what_pods_say_is_encrypted_and_other_traffic_is_left_alone() {
    requires!();
    let lan = Lan::new();
    let [one, two, _] = &lan.hosts;
    // Without encryption, so that the capture is known to see.
    for ends in OF_PODS {
        comes_to_say(one, two, ends);
        assert!(lan.saw(SECRET), "{ends:?}");
    }
    let near = one.encrypt(&[two], &[]);
    let far = two.encrypt(&[one], &[]);
    for ends in OF_PODS {
        comes_to_say(one, two, ends);
        assert!(!lan.saw(SECRET), "{ends:?}");
    }
    comes_to_say(one, two, NODES);
    assert!(lan.saw(SECRET), "the nodes' own");
    let counters = [near.programs.counters(), far.programs.counters()];
    assert!(counters[0].sealed >= 5 && counters[1].unsealed >= 5, "{counters:?}");
    assert_eq!(counters.map(|it| (it.without_peer, it.unexpected)), [(0, 0); 2]);
    let mut near = near;
    let peers = near.device.peers().unwrap();
    assert!(peers[0].handshake_age.is_some() && peers[0].sent > 0, "{peers:?}");
}

#[test]
fn streams_get_through_whole() {
    requires!();
    let lan = Lan::new();
    let [one, two, _] = &lan.hosts;
    let (_near, _far) = (one.encrypt(&[two], &[]), two.encrypt(&[one], &[]));
    for [source, destination] in [ROUTED, ROUTED_V6, OVERLAY_PODS] {
        comes_to_say(one, two, [source, destination]);
        let sent: Vec<u8> =
            (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let address = SocketAddr::new(destination.parse().unwrap(), 7001);
        let listener = two.namespace.enter(|| TcpListener::bind(address).unwrap());
        let mut stream = one.namespace.enter(|| TcpStream::connect(address).unwrap());
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                stream.write_all(&sent).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
            received
        });
        assert!(received == sent, "{source}");
    }
}

/// As a node port, or an address that a load balancer has for a service.
#[test]
fn a_service_at_the_port_of_the_device_takes_nothing_of_it() {
    requires!();
    let lan = Lan::new();
    let [one, two, _] = &lan.hosts;
    let (_near, far) = (one.encrypt(&[two], &[]), two.encrypt(&[one], &[]));
    comes_to_say(one, two, ROUTED);
    let address = "192.0.2.2".parse().unwrap();
    let filter = UplinkFilter {
        node_addresses: [address].into(),
        services: [UplinkService { address, protocol: 17, port: PORT }].into(),
        ..UplinkFilter::default()
    };
    far.kernel.set_uplink_filter(&filter).unwrap();
    comes_to_say(one, two, ROUTED);
}

/// The attacker sends frames that look like those of node 1.
fn forged(lan: &Lan) -> [(Vec<u8>, &'static str); 4] {
    let mac = lan.hosts[1].namespace.exec(["cat", "/sys/class/net/eth0/address"]);
    let octets: Vec<u8> =
        mac.trim().split(':').map(|it| u8::from_str_radix(it, 16).unwrap()).collect();
    let mac: [u8; 6] = octets.try_into().unwrap();
    let packet = |source: &str, destination: &str, to| {
        let (source, destination) = (format!("{source}:7000"), format!("{destination}:7000"));
        packet::udp(&source, &destination).payload(SECRET).from_mac([2, 0, 0, 0, 0, 1]).to_mac(to)
    };
    let inner = |source, destination, to| packet(source, destination, to).build();
    let to_vx: [u8; 6] = [2, 0, 0, 0, 0, 2];
    let inside = inner("172.16.0.1", "172.16.0.2", to_vx);
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inside].concat();
    let outer = packet::udp("192.0.2.1:50000", &format!("192.0.2.2:{OVERLAY}"));
    let tunnelled = outer.payload(&vxlan).from_mac([2, 0, 0, 0, 9, 9]).to_mac(mac).build();
    [
        (tunnelled, "172.16.0.2"),
        (inner("10.1.0.1", "10.2.0.1", mac), "10.2.0.1"),
        (inner("10.1.0.1", "192.0.2.2", mac), "192.0.2.2"),
        // A tag of a priority alone.
        (packet("10.1.0.1", "10.2.0.1", mac).vlan(0).build(), "10.2.0.1"),
    ]
}

fn gets_forged(lan: &Lan, frame: &[u8], at: &str) -> bool {
    let receiver = bound(&lan.hosts[1].namespace, at, 7000);
    lan.hosts[2].namespace.enter(|| {
        RawSender::open("eth0").unwrap().send(frame).unwrap();
    });
    receiver.recv_from(&mut [0; 1500]).is_ok()
}

#[test]
fn forged_packets_reach_nobody() {
    requires!();
    let lan = Lan::new();
    let [one, two, _] = &lan.hosts;
    let frames = forged(&lan);
    for (frame, at) in &frames {
        assert!(gets_forged(&lan, frame, at), "without encryption, at {at}");
    }
    let far = two.encrypt(&[one], &[]);
    for (frame, at) in &frames {
        assert!(!gets_forged(&lan, frame, at), "{at}");
    }
    assert!(far.kernel.counters().clear_text >= 4);
    // Marks do not leave a namespace.
    let mark = "table inet marks { chain out { type filter hook output priority 0; meta mark set 0x9d6a7e01; }; }";
    lan.hosts[2].namespace.exec(["nft", mark]);
    ip_rule_of(&lan.hosts[2], "10.1.0.9");
    assert!(!says(&lan.hosts[2], two, ["10.1.0.9", "10.2.0.1"]));
}

/// By a node port, and by an address that a load balancer has for it.
#[test]
fn no_service_takes_a_packet_in_the_name_of_a_node() {
    requires!();
    let lan = Lan::new();
    let [one, two, three] = &lan.hosts;
    let far = two.encrypt(&[one], &[]);
    let [node, balancer] = ["192.0.2.2", "198.51.100.8"].map(|it| it.parse().unwrap());
    let at = |(address, port)| UplinkService { address, protocol: 17, port };
    let filter = UplinkFilter {
        node_addresses: [node].into(),
        services: [(node, 30053), (balancer, 53)].map(at).into(),
        ..UplinkFilter::default()
    };
    far.kernel.set_uplink_filter(&filter).unwrap();
    let mac = two.namespace.exec(["cat", "/sys/class/net/eth0/address"]);
    let octets: Vec<u8> =
        mac.trim().split(':').map(|it| u8::from_str_radix(it, 16).unwrap()).collect();
    let mac: [u8; 6] = octets.try_into().unwrap();
    let sender = three.namespace.enter(|| RawSender::open("eth0").unwrap());
    let check = |source: &str, destination: &str, is_refused: bool| {
        let before = far.kernel.counters().clear_text;
        // One that is always refused comes behind it.
        for (source, destination) in [(source, destination), ("10.1.0.1:7000", "10.2.0.1:7000")] {
            let frame = packet::udp(source, destination).payload(SECRET).to_mac(mac).build();
            sender.send(&frame).unwrap();
        }
        let refused = || far.kernel.counters().clear_text - before;
        let what = format!("{source} to {destination}");
        eventually(&what, || (refused() > u64::from(is_refused)).then_some(()));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(refused(), 1 + u64::from(is_refused), "{what}");
    };
    for service in ["192.0.2.2:30053", "198.51.100.8:53"] {
        check("192.0.2.1:4000", service, true);
        check("192.0.2.254:4000", service, false);
    }
    check("192.0.2.1:4000", "192.0.2.2:30054", false);
}

/// Gives a host an address of node 1's pod network, which is its own for a moment.
fn ip_rule_of(host: &Host, address: &str) {
    crate::rig::ip(&host.namespace, &format!("address add {address}/32 dev lo"));
}

#[test]
fn a_peer_speaks_for_itself_alone() {
    requires!();
    let lan = Lan::new();
    let [one, two, three] = &lan.hosts;
    let _encrypting = [
        one.encrypt(&[two, three], &[]),
        two.encrypt(&[one, three], &[]),
        three.encrypt(&[one, two], &[]),
    ];
    comes_to_say(three, two, ["10.3.0.1", "10.2.0.1"]);
    ip_rule_of(three, "10.1.0.9");
    ip_rule_of(one, "10.1.0.8");
    comes_to_say(one, two, ["10.1.0.8", "10.2.0.1"]);
    assert!(!says(three, two, ["10.1.0.9", "10.2.0.1"]), "another node's pod");
    comes_to_say(three, two, ["10.3.0.1", "10.2.0.1"]);
}

#[test]
fn a_node_without_a_key_gets_and_gives_nothing() {
    requires!();
    let lan = Lan::new();
    let [one, two, three] = &lan.hosts;
    let near = one.encrypt(&[two], &[three]);
    let _far = two.encrypt(&[one], &[three]);
    for destination in ["10.3.0.1", "fd03::1", "172.16.0.3"] {
        let source = match destination {
            "10.3.0.1" => "10.1.0.1",
            "fd03::1" => "fd01::1",
            _ => "172.16.0.1",
        };
        assert!(!says(one, three, [source, destination]), "{destination}");
        assert!(!says(three, one, [destination, source]), "{destination}");
        // What it said itself was in clear.
        lan.saw(SECRET);
        assert!(!says(one, three, [source, destination]));
        assert!(!lan.saw(SECRET), "{destination}");
    }
    assert!(near.programs.counters().without_peer >= 6);
    assert!(near.kernel.counters().clear_text >= 3);
    comes_to_say(one, three, ["192.0.2.1", "192.0.2.3"]);
}

/// Programs stay when the process ends, and so does the device: nothing leaves in clear, and nothing is lost.
#[test]
fn the_programs_outlive_their_process() {
    requires!();
    let lan = Lan::new();
    let [one, two, _] = &lan.hosts;
    let (near, _far) = (one.encrypt(&[two], &[]), two.encrypt(&[one], &[]));
    comes_to_say(one, two, ROUTED);
    lan.saw(SECRET);
    let crate::rig::Encrypting { programs, kernel, device, boringtun } = near;
    drop((programs, kernel, device));
    assert!(says(one, two, ROUTED) && says(one, two, OVERLAY_PODS));
    assert!(!lan.saw(SECRET));
    // Without the device.
    drop(boringtun);
    for ends in [ROUTED, OVERLAY_PODS] {
        eventually("the device's end", || (!says(one, two, ends)).then_some(()));
    }
    assert!(!lan.saw(SECRET));
}
