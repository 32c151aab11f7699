//! The packets that the uplink's program takes.

use dataplane::port::af_xdp::{Uplink, UplinkFilter, UplinkService};
use testkit::packet::{self, Packet};

use crate::af_xdp::pair::{End, Pair, words};

/// An uplink and, on the other end of its wire, somebody who sends what they like.
struct Case {
    switch: End,
    uplink: Uplink,
    outside: End,
    pair: Pair,
}

const NODE: &str = "192.0.2.1";
const NODE6: &str = "2001:db8::1";
const OUTSIDE: &str = "192.0.2.9";
const OUTSIDE6: &str = "2001:db8::9";

fn filter() -> UplinkFilter {
    let service = |address: &str, protocol, port| UplinkService {
        address: address.parse().unwrap(),
        protocol,
        port,
    };
    UplinkFilter {
        vxlan_port: Some(4789),
        node_addresses: [NODE, NODE6].map(|text| text.parse().unwrap()).into(),
        pod_networks: ["10.1.1.0/24", "fd01:1::/64"].map(|text| text.parse().unwrap()).into(),
        services: [
            service(NODE, 6, 30080),
            service(NODE6, 17, 30053),
            service("198.51.100.7", 6, 443),
            service("198.51.100.7", 132, 443),
        ]
        .into(),
        masquerade_ports: Some((40000, 49999)),
    }
}

impl Case {
    fn new(label: &str) -> Self {
        let pair = Pair::new(label);
        let (switch, uplink) = End::open_uplink(&pair.switch, "pod0");
        let outside = End::open(&pair.pod, "eth0");
        Self { switch, uplink, outside, pair }
    }

    /// Whether the switch gets the frame. Behind it goes one that it gets for certain.
    fn takes(&mut self, frame: &[u8]) -> bool {
        let sentinel = packet::udp("192.0.2.9:1", "10.1.1.255:1").payload(b"sentinel").build();
        self.outside.send_bytes(frame);
        self.outside.send_bytes(&sentinel);
        let first = self.switch.wait_bytes();
        if first == sentinel {
            return false;
        }
        assert_eq!(first, frame);
        assert_eq!(self.switch.wait_bytes(), sentinel);
        true
    }

    /// Counts what passes the program from now on.
    fn count_passed(&self) {
        let chain = "type filter hook ingress device pod0 priority 0; counter;";
        let table = format!("table netdev passed {{ chain frames {{ {chain} }}; }}");
        self.pair.switch.exec(["nft", &table]);
    }

    /// Frames that passed the program since [`Self::count_passed`].
    fn passed(&self) -> u64 {
        let table = self.pair.switch.exec(words("nft list table netdev passed"));
        let mut words = table.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).and_then(|count| count.parse().ok()).expect("a counter")
    }

    #[track_caller]
    fn expect(&mut self, taken: bool, what: &str, packet: &Packet) {
        assert_eq!(self.takes(&packet.build()), taken, "{what}");
    }
}

/// `address:port`, with brackets where IPv6 wants them.
fn at(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

#[test]
fn an_uplink_takes_what_is_the_switchs_and_nothing_else() {
    testkit::requires_root!();
    let mut case = Case::new("filter");
    case.uplink.set(&filter()).unwrap();
    for (node, outside) in [(NODE, OUTSIDE), (NODE6, OUTSIDE6)] {
        let from = at(outside, 5555);
        let udp = |port| packet::udp(&from, &at(node, port));
        let tcp = |port| packet::tcp(&from, &at(node, port)).syn();
        case.expect(true, "VXLAN", &udp(4789));
        case.expect(false, "VXLAN's port, but TCP", &tcp(4789));
        case.expect(false, "the other overlay's port", &udp(8472));
        case.expect(false, "ssh", &tcp(22));
        case.expect(true, "the first masqueraded port", &tcp(40000));
        case.expect(true, "the last masqueraded port", &udp(49999));
        case.expect(false, "below the masqueraded ports", &udp(39999));
        case.expect(false, "above the masqueraded ports", &tcp(50000));
        case.expect(false, "a ping to the node", &packet::ping(outside, node, 41000, 1));
        case.expect(true, "the answer to a pod's ping", &packet::pong(outside, node, 41000, 1));
        case.expect(false, "the answer to the kernel's", &packet::pong(outside, node, 41, 1));
    }
    case.expect(false, "VXLAN to nobody's address", &packet::udp("192.0.2.9:1", "192.0.2.2:4789"));
    let elsewhere = packet::udp("192.0.2.9:1", "192.0.2.2:40001");
    case.expect(false, "a masqueraded port of nobody's address", &elsewhere);
    case.expect(true, "a node port", &packet::tcp("192.0.2.9:1", "192.0.2.1:30080").syn());
    case.expect(false, "its protocol", &packet::udp("192.0.2.9:1", "192.0.2.1:30080"));
    case.expect(false, "its family", &packet::udp("192.0.2.9:1", "192.0.2.1:30053"));
    case.expect(true, "IPv6", &packet::udp("[2001:db8::9]:1", "[2001:db8::1]:30053"));
    case.expect(true, "an external address", &packet::tcp("192.0.2.9:1", "198.51.100.7:443").syn());
    case.expect(true, "SCTP", &packet::sctp("192.0.2.9:1", "198.51.100.7:443", 1));
    case.expect(false, "its other ports", &packet::tcp("192.0.2.9:1", "198.51.100.7:80").syn());
    case.expect(true, "a pod", &packet::tcp("192.0.2.9:1", "10.1.1.5:22").syn());
    case.expect(true, "a pod's ping", &packet::ping("192.0.2.9", "10.1.1.5", 1, 1));
    case.expect(false, "another node's pod", &packet::udp("192.0.2.9:1", "10.1.2.5:22"));
    case.expect(true, "an IPv6 pod", &packet::udp("[2001:db8::9]:1", "[fd01:1::5]:9"));
    case.expect(false, "another's", &packet::udp("[2001:db8::9]:1", "[fd01:2::5]:9"));
    case.expect(false, "a tagged frame", &packet::udp("192.0.2.9:1", "10.1.1.5:22").vlan(7));
    let discovery = packet::neighbour_solicitation("2001:db8::9", "2001:db8::1");
    case.expect(false, "neighbour discovery", &discovery);
    let asks_for_pod = packet::neighbour_solicitation("2001:db8::9", "fd01:1::5");
    case.expect(false, "neighbour discovery about a pod", &asks_for_pod);
    let extended = packet::tcp("[2001:db8::9]:1", "[2001:db8::1]:40001").syn();
    let extended = extended.extension(0, &[1, 4, 0, 0, 0, 0]).extension(60, &[1, 4, 0, 0, 0, 0]);
    case.expect(true, "behind extension headers", &extended);
    let options = packet::tcp("192.0.2.9:1", "192.0.2.1:30080").syn().ip_options(&[1, 1, 1, 1]);
    case.expect(true, "behind IPv4 options", &options);
}

#[test]
fn icmp_errors_follow_the_packet_they_quote() {
    testkit::requires_root!();
    let mut case = Case::new("quotes");
    case.uplink.set(&filter()).unwrap();
    let pod_left = packet::udp("192.0.2.1:40001", "203.0.113.1:53");
    let kernel_left = packet::udp("192.0.2.1:39001", "203.0.113.1:53");
    let service_answered = packet::tcp("198.51.100.7:443", "203.0.113.1:9999").ack();
    let pinged = packet::ping("192.0.2.1", "203.0.113.1", 40001, 1);
    for (taken, quoted) in
        [(true, &pod_left), (false, &kernel_left), (true, &service_answered), (true, &pinged)]
    {
        for kind in [3, 11] {
            let error = packet::icmp_error("192.0.2.254", "192.0.2.1", kind, 0, quoted);
            case.expect(taken, "an ICMP error", &error);
        }
    }
    let left = packet::udp("[2001:db8::1]:40001", "[2001:db8:f::1]:53");
    let error = packet::icmp_error("2001:db8::fe", "2001:db8::1", 2, 0, &left);
    case.expect(true, "packet too big", &error);
    let left = packet::udp("[2001:db8::1]:22", "[2001:db8:f::1]:53");
    let error = packet::icmp_error("2001:db8::fe", "2001:db8::1", 2, 0, &left);
    case.expect(false, "packet too big for the kernel", &error);
    // A later fragment has no ports, whatever its bytes look like.
    let ports = [40001_u16; 4].map(u16::to_be_bytes).concat();
    for (router, node, kind, quoted) in [
        ("192.0.2.254", NODE, 3, &kernel_left),
        ("192.0.2.254", NODE, 3, &pinged),
        ("2001:db8::fe", NODE6, 2, &left),
    ] {
        let later = quoted.fragment(1200, false, &ports);
        let error = packet::icmp(router, node, kind, 0).payload(&later[14..]);
        case.expect(false, "an error about a later fragment", &error);
    }
}

#[test]
fn later_fragments_go_where_their_first_went() {
    testkit::requires_root!();
    let mut case = Case::new("fragments");
    case.uplink.set(&filter()).unwrap();
    for (taken, from, to) in [
        (true, "192.0.2.9:53", "192.0.2.1:40001"),
        (false, "192.0.2.9:53", "192.0.2.1:30001"),
        (true, "[2001:db8::9]:53", "[2001:db8::1]:40001"),
        (false, "[2001:db8::9]:53", "[2001:db8::1]:30001"),
    ] {
        let whole = packet::udp(from, to).payload(&[1; 3000]).ip_id(if taken { 7 } else { 8 });
        for fragment in whole.fragments(1200) {
            assert_eq!(case.takes(&fragment), taken, "{to}");
        }
    }
    // For a pod also before the first: the kernel would send them on.
    for (from, to) in [("192.0.2.9:53", "10.1.1.7:53"), ("[2001:db8::9]:53", "[fd01:1::7]:53")] {
        let whole = packet::udp(from, to).payload(&[1; 3000]).ip_id(9);
        for fragment in whole.fragments(1200).into_iter().rev() {
            assert!(case.takes(&fragment), "{to}");
        }
    }
}

#[test]
fn bytes_of_a_later_fragment_are_no_headers() {
    const DESTINATION_OPTIONS: u8 = 60;
    const FRAGMENT: u8 = 44;
    testkit::requires_root!();
    let mut case = Case::new("later");
    case.uplink.set(&filter()).unwrap();
    // Read as options, they would end beyond the packet, and it would be dropped.
    let later = packet::other(OUTSIDE6, "fd01:1::5", DESTINATION_OPTIONS);
    assert!(case.takes(&later.fragment(1200, false, &[DESTINATION_OPTIONS; 16])));
    // As a fragment header, they would make it a whole packet to a masqueraded port.
    let header = [17, 0, 0, 0, 0, 0, 0, 7];
    let ports = [53_u16, 40001, 8, 0].map(u16::to_be_bytes).concat();
    let later = packet::other(OUTSIDE6, NODE6, FRAGMENT);
    assert!(!case.takes(&later.fragment(1200, false, &[&header[..], &ports].concat())));
}

#[test]
fn damaged_packets_are_the_kernels() {
    testkit::requires_root!();
    let mut case = Case::new("damaged");
    case.uplink.set(&filter()).unwrap();
    let v4 = packet::udp("192.0.2.9:1", "192.0.2.1:4789").build();
    let v6 = packet::udp("[2001:db8::9]:1", "[2001:db8::1]:4789").build();
    for (frame, transport) in [(&v4, 34), (&v6, 54)] {
        for length in 14..transport + 4 {
            assert!(!case.takes(&packet::cut(frame.clone(), length)), "cut to {length}");
        }
    }
    assert!(!case.takes(&packet::patch(v4.clone(), 14, &[0x44])), "header of 16 bytes");
    assert!(!case.takes(&packet::patch(v4, 14, &[0x65])), "version 6 in IPv4");
    assert!(!case.takes(&packet::patch(v6, 14, &[0x40])), "version 4 in IPv6");
}

#[test]
fn a_filter_is_changed_while_it_works() {
    testkit::requires_root!();
    let mut case = Case::new("change");
    let overlay = packet::udp("192.0.2.9:1", "192.0.2.1:4789");
    let pod = |network: u8| packet::udp("192.0.2.9:1", &format!("10.1.{network}.5:22"));
    let sentinels = UplinkFilter {
        pod_networks: ["10.1.1.255/32".parse().unwrap()].into(),
        ..UplinkFilter::default()
    };
    case.uplink.set(&sentinels).unwrap();
    case.expect(false, "nothing yet", &overlay);
    let mut wanted = filter();
    case.uplink.set(&wanted).unwrap();
    case.expect(true, "what was added", &overlay);
    case.expect(false, "not added", &pod(2));
    wanted.pod_networks.insert("10.1.2.0/24".parse().unwrap());
    case.uplink.set(&wanted).unwrap();
    case.expect(true, "a new network", &pod(2));
    case.expect(true, "what was there before", &pod(1));
    wanted.pod_networks.remove(&"10.1.2.0/24".parse().unwrap());
    wanted.vxlan_port = Some(8472);
    case.uplink.set(&wanted).unwrap();
    case.expect(false, "a network that went", &pod(2));
    case.expect(false, "the port that was", &overlay);
    case.expect(true, "the new port", &packet::udp("192.0.2.9:1", "192.0.2.1:8472"));
    case.uplink.set(&sentinels).unwrap();
    case.expect(false, "nothing any more", &pod(1));
}

/// The frame with tags of VLAN 0.
fn priority(packet: &Packet, tags: usize) -> Vec<u8> {
    let mut frame = packet.build();
    for _ in 0..tags {
        frame.splice(12..12, [0x81, 0, 0xe0, 0]);
    }
    frame
}

#[test]
fn what_is_for_a_pod_reaches_the_switch_or_nobody() {
    testkit::requires_root!();
    let mut case = Case::new("hidden");
    case.uplink.set(&filter()).unwrap();
    case.count_passed();
    let v4 = packet::tcp("192.0.2.9:1", "10.1.1.5:22").syn();
    let v6 = || packet::tcp("[2001:db8::9]:1", "[fd01:1::5]:22").syn();
    for tags in 1..=2 {
        assert!(case.takes(&priority(&v4, tags)), "{tags} tags of VLAN 0");
        assert!(case.takes(&priority(&v6(), tags)), "{tags} tags of VLAN 0");
        let kernels = packet::tcp("192.0.2.9:1", "192.0.2.1:22").syn();
        assert!(!case.takes(&priority(&kernels, tags)));
    }
    let extended =
        |count: usize| (0..count).fold(v6(), |packet, _| packet.extension(60, &[1, 4, 0, 0, 0, 0]));
    for count in 0..=8 {
        assert!(case.takes(&extended(count).build()), "{count} destination headers");
    }
    // What nobody can read to its end is dropped: the kernel does not get it either.
    let kernel_gets = |case: &mut Case, frame: &[u8]| {
        let before = case.passed();
        assert!(!case.takes(frame));
        case.passed() > before
    };
    assert!(!kernel_gets(&mut case, &extended(9).build()));
    assert!(!kernel_gets(&mut case, &priority(&v4, 3)));
    let cut = packet::cut(extended(3).build(), 14 + 40 + 12);
    assert!(!kernel_gets(&mut case, &cut));
    // A message that is cut short is the switch's to drop.
    for (from, to, l3) in [("192.0.2.9", "10.1.1.5", 20), ("2001:db8::9", "fd01:1::5", 40)] {
        for length in [0, 4, 7] {
            let echo = packet::ping(from, to, 1, 1).build();
            assert!(case.takes(&packet::cut(echo, 14 + l3 + length)), "{to}, {length} bytes");
        }
    }
    // The node's own is the kernel's to look at.
    let own = (0..9).fold(packet::tcp("[2001:db8::9]:1", "[2001:db8::1]:22").syn(), |packet, _| {
        packet.extension(60, &[1, 4, 0, 0, 0, 0])
    });
    assert!(kernel_gets(&mut case, &own.build()));
}

#[test]
fn an_identification_that_comes_again_is_another_datagram() {
    testkit::requires_root!();
    let mut case = Case::new("again");
    case.uplink.set(&filter()).unwrap();
    let datagram =
        |to: &str| packet::udp("192.0.2.9:53", to).payload(&[1; 3000]).ip_id(7).fragments(1200);
    for (taken, to) in [(true, "192.0.2.1:40001"), (false, "192.0.2.1:30001")] {
        for _ in 0..2 {
            for fragment in datagram(to) {
                assert_eq!(case.takes(&fragment), taken, "{to}");
            }
        }
    }
}
