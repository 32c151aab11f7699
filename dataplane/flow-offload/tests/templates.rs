//! A template opens connections like one that the switch has allowed, and nothing else.

use std::time::Duration;

use dataplane::PortId;
use dataplane::wire::{Flow, Mac, parse};
use flow_offload::layout::{FlowEntry, FlowKey, PuntedPort, Template, TemplateKey};
use flow_offload::{Hook, Kernel, Outcome};
use testkit::packet::{self, Packet};

pub(crate) const ALWAYS: Duration = Duration::from_secs(1 << 32);
pub(crate) const TAG: [u8; 6] = [6, 1, 0, 1, 0, 3];
pub(crate) const PODS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The interface of both pods: only one that is there runs programs.
pub(crate) const LOOPBACK: u32 = 1;
/// Guards of the pods' ports.
pub(crate) const GUARDS: [u32; 3] = [5, 6, 0];
/// The guard of services.
const SERVICES: u32 = 1;

const PAIRS: [[&str; 2]; 2] =
    [["10.1.0.1:4000", "10.1.0.2:80"], ["[fd00::1]:4000", "[fd00::2]:80"]];

/// The program's action for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Forwarded,
    Punted,
}
use Way::{Forwarded, Punted};

/// Programs that know one port.
pub(crate) fn one_port() -> Kernel {
    let kernel = Kernel::load(4096).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let port = PuntedPort { ifindex: LOOPBACK, tag: TAG, mac: PODS[0], queue: 0 };
    kernel.enter_port(PortId(3), &port).unwrap();
    kernel
}

/// A client and a server that it may connect to.
struct Rig {
    kernel: Kernel,
    client: &'static str,
    server: &'static str,
}

impl Rig {
    fn new([client, server]: [&'static str; 2]) -> Self {
        let rig = Self { kernel: one_port(), client, server };
        rig.allow();
        rig
    }

    /// Enters the template anew.
    fn allow(&self) {
        let entry = |n: usize| FlowEntry {
            egress: LOOPBACK,
            mtu: 1500,
            takes_fin: 1,
            ingress_mac: PODS[n],
            destination_mac: PODS[1 - n],
            guards: GUARDS,
            ..FlowEntry::default()
        };
        let template = Template::new([entry(0), entry(1)], LOOPBACK, 0);
        let key = TemplateKey::new(LOOPBACK, &self.flow());
        self.kernel.put_template(&key, &template).unwrap();
    }

    fn flow(&self) -> Flow {
        parse(&self.asks(Packet::syn)).unwrap().flow
    }

    fn asks(&self, packet: impl FnOnce(Packet) -> Packet) -> Vec<u8> {
        packet(packet::tcp(self.client, self.server)).from_mac(PODS[0]).build()
    }

    fn answers(&self, packet: impl FnOnce(Packet) -> Packet) -> Vec<u8> {
        packet(packet::tcp(self.server, self.client)).from_mac(PODS[1]).build()
    }

    #[track_caller]
    fn takes(&self, frame: &[u8], way: Way) {
        let outcome = self.kernel.run(Hook::Pod, LOOPBACK, frame, None).unwrap();
        let Outcome::Redirected(made) = outcome else { panic!("{outcome:?}") };
        assert_eq!(if made[..6] == TAG { Punted } else { Forwarded }, way);
    }

    /// Entries of the connection, in either direction.
    fn entries(&self) -> [Option<FlowEntry>; 2] {
        let flow = self.flow();
        [flow, flow.reversed()].map(|flow| self.kernel.flow(&FlowKey::new(LOOPBACK, &flow)))
    }

    #[track_caller]
    fn has(&self, entries: bool) {
        assert_eq!(self.entries().map(|entry| entry.is_some()), [entries; 2]);
    }

    fn opened(&self) -> u64 {
        self.kernel.counters().opened
    }
}

#[test]
fn a_connection_begins_and_ends_in_the_program() {
    testkit::requires_root!();
    for pair in PAIRS {
        let rig = Rig::new(pair);
        for round in 1..=3 {
            rig.takes(&rig.answers(Packet::syn_ack), Punted);
            rig.takes(&rig.asks(Packet::syn), Forwarded);
            assert_eq!(rig.opened(), round);
            // Sent again, it may be about something else.
            rig.takes(&rig.asks(Packet::syn), Punted);
            rig.takes(&rig.asks(Packet::syn_ack), Punted);
            rig.takes(&rig.answers(Packet::syn_ack), Forwarded);
            rig.takes(&rig.answers(Packet::syn_ack), Forwarded);
            rig.takes(&rig.asks(Packet::ack), Forwarded);
            rig.takes(&rig.asks(|it| it.data(b"question")), Forwarded);
            rig.takes(&rig.answers(|it| it.data(b"answer")), Forwarded);
            rig.takes(&rig.answers(|it| it.ack().fin()), Forwarded);
            // The responder's end alone is closed.
            for _ in 0..2 {
                rig.takes(&rig.answers(Packet::ack), Forwarded);
                rig.takes(&rig.asks(|it| it.data(b"more")), Forwarded);
            }
            rig.takes(&rig.asks(|it| it.ack().fin()), Forwarded);
            rig.has(true);
            rig.takes(&rig.answers(Packet::ack), Forwarded);
            rig.has(false);
            rig.takes(&rig.answers(Packet::ack), Punted);
        }
    }
}

/// The last acknowledgement may be lost; the port is used again.
#[test]
fn a_closed_connection_gives_way_to_the_next_one() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    rig.takes(&rig.asks(Packet::syn), Forwarded);
    rig.takes(&rig.answers(Packet::syn_ack), Forwarded);
    rig.takes(&rig.asks(|it| it.ack().fin()), Forwarded);
    rig.takes(&rig.asks(Packet::syn), Punted);
    rig.takes(&rig.answers(|it| it.ack().fin()), Forwarded);
    let before = rig.entries()[0].unwrap().packets;
    rig.takes(&rig.asks(Packet::syn), Forwarded);
    assert_eq!((before, rig.entries()[0].unwrap().packets, rig.opened()), (2, 1, 2));
}

#[test]
fn what_is_no_plain_opening_is_the_switchs() {
    testkit::requires_root!();
    for pair in PAIRS {
        let rig = Rig::new(pair);
        let syn = rig.asks(Packet::syn);
        let l4 = usize::from(parse(&syn).unwrap().l4);
        let flags = |flags: u8| packet::patch(syn.clone(), l4 + 13, &[flags]);
        for odd in [0x03, 0x06, 0x0a, 0x22, 0x12, 0x3f, 0x00, 0x01, 0x10, 0x04] {
            rig.takes(&flags(odd), Punted);
        }
        rig.takes(&rig.asks(|it| it.data(b"data").syn()), Punted);
        rig.takes(&rig.asks(|it| it.syn().ttl(1)), Punted);
        rig.takes(&packet::tcp(rig.client, rig.server).syn().from_mac(PODS[1]).build(), Punted);
        let fragments = packet::tcp(rig.client, rig.server).syn().from_mac(PODS[0]).fragments(16);
        fragments.iter().for_each(|fragment| rig.takes(fragment, Punted));
        // Another port, another server, another client, the other way round.
        let [port, server, client] = match rig.client.starts_with('[') {
            true => ["[fd00::2]:81", "[fd00::3]:80", "[fd00::4]:4000"],
            false => ["10.1.0.2:81", "10.1.0.3:80", "10.1.0.4:4000"],
        };
        for (from, to) in [
            (rig.client, port),
            (rig.client, server),
            (client, rig.server),
            (rig.server, rig.client),
        ] {
            rig.takes(&packet::tcp(from, to).syn().from_mac(PODS[0]).build(), Punted);
        }
        rig.has(false);
        assert_eq!(rig.opened(), 0);
        // With marks of congestion (RFC 3168).
        rig.takes(&flags(0xc2), Forwarded);
        rig.has(true);
    }
}

/// Neither one of the pods' snapshots nor the services' may have changed since, and the switch has to live.
#[test]
fn a_template_counts_as_long_as_an_entry() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    let syn = rig.asks(Packet::syn);
    for guard in [GUARDS[0], GUARDS[1], SERVICES] {
        rig.kernel.set_generation(guard, 1).unwrap();
        rig.takes(&syn, Punted);
        rig.kernel.set_generation(guard, 0).unwrap();
    }
    rig.kernel.beat_until([ALWAYS, ALWAYS, Duration::from_nanos(1)]).unwrap();
    rig.takes(&syn, Punted);
    rig.kernel.beat_until([Duration::from_nanos(1), ALWAYS, ALWAYS]).unwrap();
    rig.takes(&syn, Punted);
    rig.has(false);
    rig.kernel.beat(ALWAYS).unwrap();
    rig.takes(&syn, Forwarded);
    // A denial between the connection's packets.
    rig.kernel.set_generation(GUARDS[1], 1).unwrap();
    rig.takes(&rig.answers(Packet::syn_ack), Punted);
    rig.takes(&rig.asks(Packet::ack), Punted);
    rig.kernel.remove_template(&TemplateKey::new(LOOPBACK, &rig.flow()));
    rig.kernel.set_generation(GUARDS[1], 0).unwrap();
    let [other, server] = ["10.1.0.1:4001", "10.1.0.2:80"];
    rig.takes(&packet::tcp(other, server).syn().from_mac(PODS[0]).build(), Punted);
}

/// A connection to a service has other entries with the same ends at the server.
#[test]
fn no_connection_takes_the_entries_of_another_one() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    let flow = rig.flow();
    for taken in [flow, flow.reversed()] {
        let key = FlowKey::new(LOOPBACK, &taken);
        let entry = FlowEntry { egress: 77, ingress_mac: PODS[0], ..FlowEntry::default() };
        assert_eq!(rig.kernel.put_flows(&[key], &[entry]), 1);
        rig.takes(&rig.asks(Packet::syn), Punted);
        assert_eq!(rig.kernel.flow(&key), Some(entry));
        rig.kernel.remove_flow(&key).unwrap();
        rig.has(false);
    }
}

#[test]
fn without_room_for_a_report_nothing_is_opened() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    let mut ways = Vec::new();
    for port in 1000..3000 {
        let client = format!("10.1.0.1:{port}");
        let syn = packet::tcp(&client, rig.server).syn().from_mac(PODS[0]).build();
        // Beyond the pod's share of the punt link they are dropped.
        let is_forwarded = match rig.kernel.run(Hook::Pod, LOOPBACK, &syn, None).unwrap() {
            Outcome::Redirected(made) => made[..6] != TAG,
            outcome => outcome != Outcome::Dropped,
        };
        ways.push(if is_forwarded { Forwarded } else { Punted });
    }
    let opened = ways.iter().filter(|way| **way == Forwarded).count();
    assert!((1000..1600).contains(&opened), "{opened}");
    // The first ones, and before the last ones some that wake the switch.
    assert!(ways[..200].iter().all(|way| *way == Forwarded));
    assert!(ways[200..1000].contains(&Punted));
    assert!(ways[1700..].iter().all(|way| *way == Punted));
    assert_eq!(rig.opened(), opened as u64);
    let mut entries = 0;
    rig.kernel.for_each_flow(|_, _| entries += 1).unwrap();
    assert_eq!(entries, 2 * opened);
}
