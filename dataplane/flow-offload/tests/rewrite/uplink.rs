//! Packets from the uplink: the switch's, the kernel's own, and tunnels.

use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use dataplane::wire::protocol;
use flow_offload::layout::FlowEntry;
use flow_offload::{Hook, Kernel, Outcome};
use testkit::packet;

use super::case::{Case, LOOPBACK, Outside, Path, of_case, other_end, sessions};
use super::{ALWAYS, OVERLAY};

/// Tunnels, at no address: their packets are the switch's by entries alone.
pub(crate) fn overlay() -> UplinkFilter {
    UplinkFilter { vxlan_port: Some(OVERLAY.port), ..UplinkFilter::default() }
}

/// The switch's packets go to it as they are, others to the kernel, as with the XDP program.
#[test]
fn the_switchs_packets_are_taken_and_others_pass() {
    testkit::requires_root!();
    let kernel = Kernel::load(16).unwrap();
    let run = |frame: &[u8]| kernel.run(Hook::Uplink, LOOPBACK, frame, None).unwrap();
    let to = |from: &str, to: &str| packet::udp(from, to).to_mac([0; 6]).payload(b"x");
    let pod = to("192.0.2.9:1", "10.1.0.2:2").build();
    assert_eq!(run(&pod), Outcome::Passed, "without a filter");
    let service = |port| UplinkService {
        address: "192.0.2.1".parse().unwrap(),
        protocol: protocol::UDP,
        port,
    };
    let filter = UplinkFilter {
        vxlan_port: Some(OVERLAY.port),
        node_addresses: ["192.0.2.1", "2001:db8::1"].map(|it| it.parse().unwrap()).into(),
        pod_networks: ["10.1.0.0/24", "fd00:1::/64"].map(|it| it.parse().unwrap()).into(),
        services: [service(30_053)].into(),
        masquerade_ports: Some((61_000, 61_999)),
    };
    kernel.set_uplink_filter(&filter).unwrap();
    let fragments = to("192.0.2.9:1", "10.1.0.2:2").payload(&[1; 900]).fragments(400);
    let taken = [
        pod.clone(),
        to("[2001:db8::9]:1", "[fd00:1::2]:2").build(),
        to("192.0.2.9:1", "192.0.2.1:4789").build(),
        to("192.0.2.9:1", "192.0.2.1:30053").build(),
        to("192.0.2.9:1", "192.0.2.1:61000").build(),
        to("192.0.2.9:1", "10.1.0.2:2").vlan(0).build(),
        fragments[0].clone(),
        fragments[1].clone(),
    ];
    for mut frame in taken {
        frame[..6].fill(0);
        let before = kernel.counters();
        assert_eq!(run(&frame), Outcome::Redirected(frame.clone()));
        let after = kernel.counters();
        let punted = |counters: &flow_offload::Counters| -> u64 {
            counters.punted.iter().map(|(_, count)| count).sum()
        };
        assert_eq!(punted(&after), punted(&before) + 1);
        assert_eq!(after.packets, before.packets);
    }
    let passed = [
        to("192.0.2.9:1", "192.0.2.1:22").build(),
        to("192.0.2.9:1", "192.0.2.7:4789").build(),
        to("192.0.2.9:1", "10.2.0.2:2").build(),
        to("192.0.2.9:1", "10.1.0.2:2").vlan(5).build(),
        packet::arp_request("192.0.2.9", "192.0.2.1").build(),
        // For another station, which the kernel drops.
        packet::patch(pod, 0, &[2, 0, 0, 0, 7, 7]),
    ];
    for frame in passed {
        assert_eq!(run(&frame), Outcome::Passed, "{frame:02x?}");
    }
    let cut = packet::cut(to("192.0.2.9:1", "10.1.0.2:2").vlan(0).vlan(0).vlan(0).build(), 30);
    assert_eq!(run(&cut), Outcome::Dropped, "not to be read to its end");
}

/// Replies follow the initiator's packets, of which the switch sees the first one from elsewhere.
#[test]
fn a_packet_from_another_mac_address_is_left_to_the_switch_where_replies_return_to_it() {
    testkit::requires_root!();
    let kernel = Kernel::load(16).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let case = Case { path: Path::In(None), ..Case::plain(true) };
    let (key, entry) = of_case(&case, &case.snapshot(), &sessions());
    assert_eq!(entry.ingress_mac, [0; 6]);
    let (frame, mut other) = (case.frame(), case.frame());
    other[6..12].copy_from_slice(&[2, 7, 7, 7, 7, 7]);
    let run = |frame: &[u8]| kernel.run(Hook::Uplink, LOOPBACK, frame, None).unwrap();
    let mac: [u8; 6] = frame[6..12].try_into().unwrap();
    for (ingress_mac, is_taken) in [([0; 6], true), (mac, false)] {
        kernel.put_flows(&[key], &[FlowEntry { ingress_mac, ..entry }]);
        assert!(matches!(run(&frame), Outcome::Redirected(_)));
        assert_eq!(matches!(run(&other), Outcome::Redirected(_)), is_taken);
    }
}

/// Packets outside of an entry: changes of one inside.
#[test]
fn a_tunnel_is_left_by_what_its_other_end_sends_alone() {
    testkit::requires_root!();
    for v4 in [true, false] {
        let kernel = Kernel::load(16).unwrap();
        kernel.beat(ALWAYS).unwrap();
        kernel.set_uplink_filter(&overlay()).unwrap();
        let outside = Outside { v4, class: 0 };
        let case = Case { path: Path::In(Some(outside)), ..Case::plain(true) };
        let (key, entry) = of_case(&case, &case.snapshot(), &sessions());
        kernel.put_flows(&[key], &[entry]);
        let frame = case.frame();
        let run = |frame: &[u8]| kernel.run(Hook::Uplink, LOOPBACK, frame, None).unwrap();
        assert!(matches!(run(&frame), Outcome::Redirected(_)));
        let ip = |offset: usize, bytes: &[u8]| match v4 {
            true => packet::patch_ipv4(frame.clone(), 14 + offset, bytes),
            false => packet::patch(frame.clone(), 14 + offset, bytes),
        };
        let udp = 14 + if v4 { 20 } else { 40 };
        let at = |offset: usize, bytes: &[u8]| packet::patch(frame.clone(), udp + offset, bytes);
        let left = [
            ("another hop", ip(if v4 { 8 } else { 7 }, &[254])),
            ("another sender", ip(if v4 { 15 } else { 23 }, &[3])),
            ("another receiver", ip(if v4 { 19 } else { 39 }, &[3])),
            ("another protocol", ip(if v4 { 9 } else { 6 }, &[protocol::TCP])),
            ("another port", at(2, &[0, 53])),
            ("a checksum", at(6, &[0, 1])),
            ("too short for UDP", at(4, &[0, 20])),
            ("no valid network", at(8, &[0])),
            ("another network", at(12, &[0x12, 0x34, 0x57])),
            ("a group as sender", at(8 + 8 + 6, &[1])),
            ("out of the tunnel", frame[udp + 16..].to_vec()),
        ];
        let before = kernel.counters().packets;
        for (what, frame) in left {
            assert_eq!(run(&frame), Outcome::Passed, "{what}");
        }
        // The packet inside, at the same length outside.
        let (front, inside) = frame.split_at(udp + 16);
        let wrapped = |inside: Vec<u8>| [front, &inside].concat();
        let within = |offset: usize, bytes: &[u8]| {
            wrapped(packet::patch_ipv4(inside.to_vec(), 14 + offset, bytes))
        };
        let spliced = |at: usize, bytes: &[u8]| {
            let mut inside = inside.to_vec();
            inside.splice(at..at, bytes.iter().copied());
            wrapped(inside)
        };
        for (what, frame) in [
            ("a forged source", within(15, &[9])),
            ("a forged destination", within(19, &[9])),
            ("the last hop", within(8, &[1])),
            ("a first fragment", within(6, &[0x20, 0])),
            ("a later fragment", within(6, &[0, 1])),
            ("IP options", within(0, &[0x46])),
            ("a tag", spliced(12, &[0x81, 0, 0, 5])),
            ("a tag of VLAN 0", spliced(12, &[0x81, 0, 0, 0])),
            ("a tunnel in the tunnel", spliced(0, &frame[..udp + 16])),
            ("cut short", wrapped(inside[..inside.len() - 1].to_vec())),
        ] {
            assert_eq!(run(&frame), Outcome::Passed, "inside: {what}");
        }
        // Outside, in front of what is UDP then.
        let tagged = [&frame[..12], &[0x81, 0, 0, 0], &frame[12..]].concat();
        assert_eq!(run(&tagged), Outcome::Passed, "a tag outside");
        let wrapped = match v4 {
            true => packet::patch_ipv4(frame.clone(), 14, &[0x46]),
            false => packet::patch(frame.clone(), 14 + 6, &[60]),
        };
        assert_eq!(run(&wrapped), Outcome::Passed, "options outside");
        if v4 {
            assert_eq!(run(&ip(6, &[0x20, 0])), Outcome::Passed, "a fragment");
            assert_eq!(run(&packet::patch(frame.clone(), 24, &[0xff])), Outcome::Passed, "a sum");
        }
        assert_eq!(kernel.counters().packets, before);
        // An entry for packets outside of tunnels is none for those in one.
        let plain = Case { path: Path::In(None), ..case.clone() };
        let outside_only = of_case(&plain, &plain.snapshot(), &sessions());
        kernel.remove_flow(&key).unwrap();
        kernel.put_flows(&[outside_only.0], &[outside_only.1]);
        assert_eq!(run(&frame), Outcome::Passed, "{}", other_end(v4));
        assert!(matches!(run(&plain.frame()), Outcome::Redirected(_)));
    }
}
