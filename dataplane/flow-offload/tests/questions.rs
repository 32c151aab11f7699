//! A template opens the connections of questions to a resolver, and each is over with its answer.

use std::time::Duration;

use dataplane::wire::{Flow, parse};
use flow_offload::layout::{FlowEntry, FlowKey, Template, TemplateKey};
use flow_offload::{Hook, Kernel, Outcome};
use testkit::packet::{self, Packet};

use crate::templates::Way::{self, Forwarded, Punted};
use crate::templates::{ALWAYS, GUARDS, LOOPBACK, PODS, TAG, one_port};

const PAIRS: [[&str; 2]; 2] =
    [["10.1.0.1:4000", "10.1.0.2:53"], ["[fd00::1]:4000", "[fd00::2]:53"]];

/// A pod and the resolver that it may ask.
struct Rig {
    kernel: Kernel,
    pod: &'static str,
    resolver: &'static str,
}

impl Rig {
    fn new([pod, resolver]: [&'static str; 2]) -> Self {
        let entry = |n: usize| FlowEntry {
            egress: LOOPBACK,
            mtu: 1500,
            ingress_mac: PODS[n],
            destination_mac: PODS[1 - n],
            guards: GUARDS,
            ..FlowEntry::default()
        };
        let template = Template::new([entry(0), entry(1)], LOOPBACK, 0);
        let rig = Self { kernel: one_port(), pod, resolver };
        let key = TemplateKey::new(LOOPBACK, &parse(&rig.asks(|it| it)).unwrap().flow);
        rig.kernel.put_template(&key, &template).unwrap();
        rig
    }

    fn asks(&self, packet: impl FnOnce(Packet) -> Packet) -> Vec<u8> {
        packet(packet::udp(self.pod, self.resolver).payload(&[7; 33])).from_mac(PODS[0]).build()
    }

    fn answers(&self) -> Vec<u8> {
        packet::udp(self.resolver, self.pod).payload(&[8; 400]).from_mac(PODS[1]).build()
    }

    #[track_caller]
    fn takes(&self, frame: &[u8], way: Way) {
        let outcome = self.kernel.run(Hook::Pod, LOOPBACK, frame, None).unwrap();
        let Outcome::Redirected(made) = outcome else { panic!("{outcome:?}") };
        assert_eq!(if made[..6] == TAG { Punted } else { Forwarded }, way);
    }

    fn flow(&self) -> Flow {
        parse(&self.asks(|it| it)).unwrap().flow
    }

    #[track_caller]
    fn has(&self, entries: bool) {
        let flow = self.flow();
        let has = |flow| self.kernel.flow(&FlowKey::new(LOOPBACK, &flow)).is_some();
        assert_eq!([flow, flow.reversed()].map(has), [entries; 2]);
    }

    fn opened(&self) -> u64 {
        self.kernel.counters().opened
    }
}

#[test]
fn a_connection_is_over_with_its_answer() {
    testkit::requires_root!();
    for pair in PAIRS {
        let rig = Rig::new(pair);
        for round in 1..=3 {
            rig.takes(&rig.answers(), Punted);
            rig.takes(&rig.asks(|it| it), Forwarded);
            rig.has(true);
            assert_eq!(rig.opened(), round);
            rig.takes(&rig.answers(), Forwarded);
            rig.has(false);
        }
    }
}

/// Resolvers' clients ask for both kinds of addresses at once, from one port.
#[test]
fn two_questions_at_once_get_two_answers() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    rig.takes(&rig.asks(|it| it), Forwarded);
    rig.takes(&rig.asks(|it| it), Forwarded);
    rig.takes(&rig.answers(), Forwarded);
    rig.has(true);
    rig.takes(&rig.answers(), Forwarded);
    rig.has(false);
    assert_eq!(rig.opened(), 1);
}

#[test]
fn what_is_no_plain_question_is_the_switchs() {
    testkit::requires_root!();
    for pair in PAIRS {
        let rig = Rig::new(pair);
        rig.takes(&rig.asks(|it| it.payload(&[7; 200])), Punted);
        rig.takes(&rig.asks(|it| it.ttl(1)), Punted);
        let question = packet::udp(rig.pod, rig.resolver).payload(&[7; 33]);
        rig.takes(&question.from_mac(PODS[1]).build(), Punted);
        let long = packet::udp(rig.pod, rig.resolver).payload(&[7; 100]).from_mac(PODS[0]);
        long.fragments(64).iter().for_each(|fragment| rig.takes(fragment, Punted));
        // Another port, another resolver, another pod, TCP.
        let [port, resolver, pod] = match rig.pod.starts_with('[') {
            true => ["[fd00::2]:54", "[fd00::3]:53", "[fd00::4]:4000"],
            false => ["10.1.0.2:54", "10.1.0.3:53", "10.1.0.4:4000"],
        };
        for (from, to) in [(rig.pod, port), (rig.pod, resolver), (pod, rig.resolver)] {
            let asks = packet::udp(from, to).payload(&[7; 33]).from_mac(PODS[0]);
            rig.takes(&asks.build(), Punted);
        }
        rig.takes(&packet::tcp(rig.pod, rig.resolver).syn().from_mac(PODS[0]).build(), Punted);
        rig.has(false);
        assert_eq!(rig.opened(), 0);
        rig.takes(&rig.asks(|it| it), Forwarded);
        rig.has(true);
    }
}

/// Both a question and its answer: a denial between them holds for the answer.
#[test]
fn a_template_of_questions_counts_as_long_as_an_entry() {
    testkit::requires_root!();
    let rig = Rig::new(PAIRS[0]);
    for guard in [GUARDS[0], GUARDS[1], 1] {
        rig.kernel.set_generation(guard, 1).unwrap();
        rig.takes(&rig.asks(|it| it), Punted);
        rig.kernel.set_generation(guard, 0).unwrap();
    }
    rig.kernel.beat_until([ALWAYS, ALWAYS, Duration::from_nanos(1)]).unwrap();
    rig.takes(&rig.asks(|it| it), Punted);
    rig.has(false);
    rig.kernel.beat(ALWAYS).unwrap();
    rig.takes(&rig.asks(|it| it), Forwarded);
    rig.kernel.set_generation(GUARDS[1], 1).unwrap();
    rig.takes(&rig.answers(), Punted);
    rig.has(true);
}
