//! The programs change a packet as the graph does, byte for byte.

mod case;
mod host;
mod uplink;

use std::time::Duration;

use dataplane::wire::{parse, partial_checksum};
use flow_offload::layout::FlowEntry;
use flow_offload::{Hook, Kernel, Outcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::packet;

use case::{Case, LOOPBACK, OVERLAY, PODS, Path, Sum, cases, of_case, sessions, through_the_graph};

/// Until the end of time.
const ALWAYS: Duration = Duration::from_secs(1 << 32);

#[test]
fn the_program_makes_of_a_packet_what_the_graph_does() {
    testkit::requires_root!();
    let kernel = Kernel::load(1024).unwrap();
    kernel.beat(ALWAYS).unwrap();
    kernel.set_uplink_filter(&uplink::overlay()).unwrap();
    let mut runner = TestRunner::new(Config::with_cases(4096));
    let run = |case: Case| {
        let (snapshot, sessions) = (case.snapshot(), sessions());
        let frame = case.frame();
        let (key, entry) = of_case(&case, &snapshot, &sessions);
        kernel.put_flows(&[key], &[entry]);
        let segments = case.segment.map(|size| (size, (case.payload.len() as u32).div_ceil(size)));
        let made = kernel.run(case.at(), LOOPBACK, &frame, segments).unwrap();
        kernel.remove_flow(&key).unwrap();
        let Some(mut expected) = through_the_graph(&case, &snapshot, sessions, &frame) else {
            // Congestion was noted outside, and there is no place inside to note it.
            let is_lost = |outside: case::Outside| outside.class & 3 == 3 && case.class & 3 == 0;
            let lost = matches!(case.path, Path::In(Some(outside)) if is_lost(outside));
            prop_assert!(lost && made == Outcome::Passed, "{:?}", made);
            return Ok(());
        };
        let Outcome::Redirected(mut made) = made else {
            return Err(TestCaseError::fail(format!("{made:?}")));
        };
        // The kernel leaves an unfinished checksum to whoever reads the packet.
        if case.sum == Sum::Unfinished {
            if key_is_translated(&case) {
                return Ok(());
            }
            [&mut made, &mut expected].into_iter().for_each(|frame| case.finish(frame));
        }
        prop_assert_eq!(made, expected);
        Ok(())
    };
    runner.run(&cases(), run).unwrap();
}

/// Whether the case is translated. A test run cannot mark a checksum as partial: the translation of such
/// packets is tested with real ones.
fn key_is_translated(case: &Case) -> bool {
    case.tuples().is_translated()
}

/// Cases of wrong sums are wrong: none of them reads as one that is to be finished.
#[test]
fn no_wrong_sum_is_an_unfinished_one() {
    for payload in 0..=u16::MAX {
        let payload = payload.to_be_bytes().to_vec();
        let with = |sum| Case { payload: payload.clone(), sum, ..Case::plain(true) }.frame();
        assert_ne!(with(Sum::Wrong), with(Sum::Unfinished), "{payload:?}");
    }
}

/// Packets that the program leaves to the switch, by a change to one that it would forward.
#[test]
fn what_is_not_plain_goes_to_the_switch() {
    testkit::requires_root!();
    let kernel = Kernel::load(1024).unwrap();
    for v4 in [true, false] {
        let case = Case::plain(v4);
        let (key, entry) = of_case(&case, &case.snapshot(), &sessions());
        kernel.put_flows(&[key], &[entry]);
        let plain = case.frame();
        let l4 = usize::from(parse(&plain).unwrap().l4);
        let flags = |flags: u8| packet::patch(plain.clone(), l4 + 13, &[flags]);
        let punted = |what: &str, frame: Vec<u8>, segments| {
            let before = kernel.counters();
            // Nothing is known of the interface, so that what is for the switch ends here.
            let outcome = kernel.run(Hook::Pod, LOOPBACK, &frame, segments).unwrap();
            assert!(outcome == Outcome::Dropped, "{what}");
            let after = kernel.counters();
            assert_eq!(after.no_port, before.no_port + 1, "{what}");
            assert_eq!(after.packets, before.packets, "{what}");
        };
        punted("before the first heartbeat", plain.clone(), None);
        kernel.beat(ALWAYS).unwrap();
        let forwards = || {
            let outcome = kernel.run(Hook::Pod, LOOPBACK, &plain, None).unwrap();
            assert!(matches!(outcome, Outcome::Redirected(_)), "{outcome:?}");
        };
        forwards();
        punted("SYN", flags(0x12), None);
        punted("FIN without ACK", flags(0x01), None);
        punted("SYN and FIN", flags(0x13), None);
        kernel.put_flows(&[key], &[FlowEntry { takes_fin: 0, ..entry }]);
        punted("FIN", flags(0x11), None);
        kernel.put_flows(&[key], &[entry]);
        // The switch reads of the first one, which may be forged.
        let outcome = kernel.run(Hook::Pod, LOOPBACK, &flags(0x14), None).unwrap();
        assert!(matches!(outcome, Outcome::Redirected(_)), "{outcome:?}");
        punted("another RST", flags(0x14), None);
        kernel.beat_until([ALWAYS, Duration::from_nanos(1), ALWAYS]).unwrap();
        kernel.put_flows(&[key], &[entry]);
        punted("RST of a switch that is late", flags(0x14), None);
        kernel.beat(ALWAYS).unwrap();
        punted("no ACK", flags(0x00), None);
        punted("the last hop", Case { ttl: 1, ..case.clone() }.frame(), None);
        punted("another connection", Case { ports: (4001, 80), ..case.clone() }.frame(), None);
        punted("the other direction", Case { forward: false, ..case.clone() }.frame(), None);
        punted("another protocol", Case { is_tcp: false, ..case.clone() }.frame(), None);
        let mut forged = plain.clone();
        forged[11] ^= 1;
        punted("another MAC address", forged, None);
        let long = Case { payload: vec![1; 1470], ..case.clone() }.frame();
        punted("longer than the MTU", long.clone(), None);
        punted("segments longer than the MTU", long, Some((1461, 2)));
        kernel.put_flows(&[key], &[FlowEntry { mtu: 0, ..entry }]);
        punted("segments by a list, as SCTP has them", plain.clone(), Some((0xffff, 2)));
        kernel.put_flows(&[key], &[entry]);
        punted("cut short", packet::cut(plain.clone(), plain.len() - 1), None);
        punted("half a header", packet::cut(plain.clone(), l4 + 10), None);
        punted("ARP", packet::arp_request("10.1.0.1", "10.1.0.2").build(), None);
        if v4 {
            let fragment = packet::patch_ipv4(plain.clone(), 20, &[0x20, 0]);
            punted("a first fragment", fragment, None);
            punted("a wrong checksum", packet::patch(plain.clone(), 24, &[0xff]), None);
            let options = packet::tcp("10.1.0.1:4000", "10.1.0.2:80").data(b"x");
            let options = options.ip_options(&[1, 1, 1, 1]).from_mac(PODS[0]).build();
            punted("options", options, None);
        } else {
            let options = packet::tcp("[fd00:1::1]:4000", "[fd00:1::2]:80").data(b"x");
            let options = options.extension(60, &[0; 6]).from_mac(PODS[0]).build();
            punted("an extension", options, None);
        }
        for guard in entry.guards.into_iter().filter(|guard| *guard != 0) {
            kernel.set_generation(guard, 1).unwrap();
            punted("a new generation", plain.clone(), None);
            kernel.set_generation(guard, 0).unwrap();
            forwards();
        }
        kernel.beat(Duration::from_nanos(1)).unwrap();
        punted("an old heartbeat", plain.clone(), None);
        kernel.beat(Duration::ZERO).unwrap();
    }
}

/// A FIN of a connection that a pod opened is forwarded and noted, for as long as the switch lives.
#[test]
fn a_fin_is_noted_in_its_entry() {
    testkit::requires_root!();
    let kernel = Kernel::load(1024).unwrap();
    for (v4, forward) in [(true, true), (true, false), (false, true), (false, false)] {
        kernel.beat(ALWAYS).unwrap();
        let case = Case { forward, ..Case::plain(v4) };
        let (snapshot, sessions) = (case.snapshot(), sessions());
        let (key, entry) = of_case(&case, &snapshot, &sessions);
        kernel.put_flows(&[key], &[entry]);
        let plain = case.frame();
        let headers = parse(&plain).unwrap();
        let mut fin = packet::patch(plain.clone(), usize::from(headers.l4) + 13, &[0x11]);
        partial_checksum::renew_pseudo(&mut fin, &headers);
        partial_checksum::complete(&mut fin, &headers);
        let run = |frame: &[u8]| kernel.run(Hook::Pod, LOOPBACK, frame, None).unwrap();
        assert!(matches!(run(&plain), Outcome::Redirected(_)));
        assert_eq!(kernel.flow(&key).unwrap().had_fin, 0);
        let expected = through_the_graph(&case, &snapshot, sessions, &fin);
        assert_eq!(run(&fin), Outcome::Redirected(expected.unwrap()));
        assert_eq!(kernel.flow(&key).unwrap().had_fin, 1);
        kernel.beat_until([ALWAYS, Duration::from_nanos(1), ALWAYS]).unwrap();
        assert_eq!(run(&fin), Outcome::Dropped, "for the switch, of which the test has none");
        assert!(matches!(run(&plain), Outcome::Redirected(_)));
    }
}

/// Those that the node opens may be opened again without a SYN that the switch sees first.
#[test]
fn all_but_the_nodes_own_connections_take_a_fin() {
    let takes = |path| {
        let case = Case { path, ..Case::plain(true) };
        of_case(&case, &case.snapshot(), &sessions()).1.takes_fin
    };
    assert_eq!([Path::Local, Path::Out(None), Path::In(None), Path::ToHost].map(takes), [1; 4]);
    assert_eq!(takes(Path::FromHost), 0);
}

#[test]
fn entries_count_what_they_forward_and_a_full_map_takes_no_more() {
    testkit::requires_root!();
    let kernel = Kernel::load(4).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let case =
        |port| Case { is_tcp: false, ports: (port, 53), payload: vec![1; 10], ..Case::plain(true) };
    let made = |port| of_case(&case(port), &case(port).snapshot(), &sessions());
    let (keys, values): (Vec<_>, Vec<_>) = (1..=6).map(made).unzip();
    let entered = kernel.put_flows(&keys, &values);
    assert!(entered < 6, "{entered} entries in a map for four");
    let frame = case(1).frame();
    for _ in 0..3 {
        let outcome = kernel.run(Hook::Pod, LOOPBACK, &frame, None).unwrap();
        assert!(matches!(outcome, Outcome::Redirected(_)));
    }
    let entry = kernel.flow(&keys[0]).unwrap();
    assert_eq!((entry.packets, entry.bytes), (3, 3 * frame.len() as u64));
    assert!(entry.used_ns > 0);
    let counters = kernel.counters();
    assert_eq!((counters.packets, counters.bytes), (3, 3 * frame.len() as u64));
    let mut seen = 0;
    kernel.for_each_flow(|_, _| seen += 1).unwrap();
    assert_eq!(seen, entered);
}

#[test]
fn each_guard_of_an_entry_counts_and_a_datagram_ends_within_its_packet() {
    testkit::requires_root!();
    let kernel = Kernel::load(16).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let case = Case { is_tcp: false, service: Some((9, 8053)), ..Case::plain(true) };
    let (key, entry) = of_case(&case, &case.snapshot(), &sessions());
    kernel.put_flows(&[key], &[entry]);
    let frame = case.frame();
    let forwards = |frame: &[u8]| {
        let outcome = kernel.run(Hook::Pod, LOOPBACK, frame, None).unwrap();
        matches!(outcome, Outcome::Redirected(_))
    };
    assert!(forwards(&frame) && entry.guards.iter().all(|guard| *guard != 0));
    for guard in entry.guards {
        kernel.set_generation(guard, 1).unwrap();
        assert!(!forwards(&frame), "guard {guard}");
        kernel.set_generation(guard, 0).unwrap();
    }
    let l4 = usize::from(parse(&frame).unwrap().l4);
    let length = (frame.len() - l4 + 1) as u16;
    assert!(!forwards(&packet::patch(frame, l4 + 4, &length.to_be_bytes())));
}
