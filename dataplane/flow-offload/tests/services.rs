//! Templates where a service leads: the program chooses the backend that the switch does.

use std::net::SocketAddr;
use std::time::Duration;

use acl::Address;
use dataplane::PortId;
use dataplane::services::{Backend, Backends, choice_hash};
use dataplane::wire::{Flow, Mac, parse, tcp_flags};
use flow_offload::layout::{ChoiceKey, FlowEntry, FlowKey, PuntedPort, Template, TemplateKey};
use flow_offload::{Hook, Kernel, Outcome};
use testkit::packet;

const ALWAYS: Duration = Duration::from_secs(1 << 32);
const TAG: Mac = [6, 1, 0, 1, 0, 3];
const PODS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The interface of all pods: only one that is there runs programs.
const LOOPBACK: u32 = 1;
/// The guards of services, and of the client's port.
const SERVICES: u32 = 1;
const CLIENT: u32 = 5;

struct Rig {
    kernel: Kernel,
    client: Address,
    service: Address,
    backends: Backends,
}

impl Rig {
    /// A service with so many backends, without templates.
    fn new(is_v4: bool, count: u16) -> Self {
        let kernel = Kernel::load(4096).unwrap();
        kernel.beat(ALWAYS).unwrap();
        let port = PuntedPort { ifindex: LOOPBACK, tag: TAG, mac: PODS[0], queue: 0 };
        kernel.enter_port(PortId(3), &port).unwrap();
        let address = |n: u32| match is_v4 {
            true => Address::from_v4_bits(0x0a01_0000 + n),
            false => Address::from_bits(0xfd00_0000_0000_0042_u128 << 64 | u128::from(n)),
        };
        let backend = |n| Backend { address: address(100 + u32::from(n)), port: 8000 + n };
        let backends = Backends::new((0..count).map(backend).collect());
        Self { kernel, client: address(1), service: address(77), backends }
    }

    fn flow(&self, source_port: u16) -> Flow {
        Flow {
            source: self.client,
            destination: self.service,
            source_port,
            destination_port: 80,
            protocol: 6,
        }
    }

    /// Enters the choice of this generation.
    fn choose(&self, generation: u32) {
        for (key, choice) in ChoiceKey::parts(&self.flow(0), &self.backends, generation).unwrap() {
            self.kernel.put_choice(&key, &choice).unwrap();
        }
    }

    /// Enters the template of a backend.
    fn allow(&self, number: usize, generation: u32) {
        let Backend { address, port } = self.backends.list()[number];
        let asks = self.flow(4000);
        let asked = Flow { destination: address, destination_port: port, ..asks };
        let entry = |n: usize, from: &Flow, to: &Flow| {
            let entry = FlowEntry {
                egress: LOOPBACK,
                mtu: 1500,
                takes_fin: 1,
                ingress_mac: PODS[n],
                destination_mac: PODS[1 - n],
                guards: [CLIENT, 6, SERVICES],
                ..FlowEntry::default()
            };
            entry.rewriting(from, to)
        };
        let both = [entry(0, &asks, &asked), entry(1, &asked.reversed(), &asks.reversed())];
        let template = Template::new(both, LOOPBACK, generation);
        let key = TemplateKey::new(LOOPBACK, &asks).of_backend(number as u32 + 1);
        self.kernel.put_template(&key, &template).unwrap();
    }

    /// The packet that the program makes of one of a flow; `None` if it leaves that to the switch.
    fn send(&self, flow: &Flow, flags: u8, mac: Mac) -> Option<Flow> {
        let built = |flow: &Flow| {
            let end = |address: Address, port| SocketAddr::new(address.to_ip(), port).to_string();
            let from = end(flow.source, flow.source_port);
            let packet = packet::tcp(&from, &end(flow.destination, flow.destination_port));
            let packet = match flags {
                tcp_flags::SYN => packet.syn(),
                0x12 => packet.syn_ack(),
                0x11 => packet.ack().fin(),
                _ => packet.ack(),
            };
            packet.from_mac(mac).build()
        };
        let frame = built(flow);
        let outcome = self.kernel.run(Hook::Pod, LOOPBACK, &frame, None).unwrap();
        let made = match outcome {
            Outcome::Redirected(made) => made,
            // Of many frames at a time, the punt link takes a share.
            Outcome::Dropped => return None,
            other => panic!("{other:?}"),
        };
        if made[..6] == TAG {
            return None;
        }
        let headers = parse(&made).unwrap();
        let (sum, expected) = (usize::from(headers.l4) + 16, built(&headers.flow));
        assert_eq!(made[sum..sum + 2], expected[sum..sum + 2], "the checksum");
        Some(headers.flow)
    }

    fn chosen(&self, flow: &Flow) -> (usize, Flow) {
        let Backend { address, port } = self.backends.choose(choice_hash(flow)).unwrap();
        let number =
            self.backends.list().iter().position(|it| (it.address, it.port) == (address, port));
        (number.unwrap(), Flow { destination: address, destination_port: port, ..*flow })
    }
}

/// Services with tables in one part and in many; fewer connections than the reports that wait.
#[test]
fn programs_choose_the_backend_that_the_switch_does() {
    testkit::requires_root!();
    for (is_v4, count) in [(true, 1), (true, 2), (false, 3), (true, 20), (false, 100)] {
        let rig = Rig::new(is_v4, count);
        rig.choose(0);
        (0..usize::from(count)).for_each(|number| rig.allow(number, 0));
        let mut seen = vec![0; usize::from(count)];
        for port in (0..190).map(|n| 1024 + 331 * n) {
            let flow = rig.flow(port);
            let (number, expected) = rig.chosen(&flow);
            assert_eq!(
                rig.send(&flow, tcp_flags::SYN, PODS[0]),
                Some(expected),
                "{count}: {flow:?}"
            );
            seen[number] += 1;
        }
        let most = usize::from(count).min(20);
        assert!(seen.iter().filter(|count| **count > 0).count() >= most, "{seen:?}");
    }
}

#[test]
fn connections_to_a_service_begin_and_end_in_the_program() {
    testkit::requires_root!();
    for is_v4 in [true, false] {
        let rig = Rig::new(is_v4, 2);
        rig.choose(0);
        (0..2).for_each(|number| rig.allow(number, 0));
        for port in [4000, 4001, 4002, 4003, 4000] {
            let flow = rig.flow(port);
            let (_, asked) = rig.chosen(&flow);
            let answer = asked.reversed();
            let asks = |flags| rig.send(&flow, flags, PODS[0]) == Some(asked);
            let answers = |flags| rig.send(&answer, flags, PODS[1]) == Some(flow.reversed());
            assert!(!answers(0x12));
            assert!(asks(tcp_flags::SYN) && answers(0x12) && asks(0x10));
            // As seen from another client's port, it is no connection.
            assert!(rig.send(&Flow { source_port: 9, ..flow }, 0x10, PODS[0]).is_none());
            assert!(answers(0x11) && asks(0x10) && asks(0x11));
            assert!(answers(0x10));
            for key in [flow, answer].map(|flow| FlowKey::new(LOOPBACK, &flow)) {
                assert_eq!(rig.kernel.flow(&key), None);
            }
            assert!(!answers(0x10));
        }
        assert_eq!(rig.kernel.counters().opened, 5);
    }
}

/// A backend without a template is the switch's, and so is everything once services have changed: programs may still
/// have the choice among the former backends.
#[test]
fn what_the_switch_has_not_allowed_is_its_own() {
    testkit::requires_root!();
    let rig = Rig::new(true, 2);
    let flows: Vec<Flow> = (1024..1200).map(|port| rig.flow(port)).collect();
    let taken = |flows: &[Flow]| {
        let took = |flow: &&Flow| rig.send(flow, tcp_flags::SYN, PODS[0]).is_some();
        flows.iter().filter(took).count()
    };
    let (of_first, of_second): (Vec<Flow>, _) =
        flows.iter().partition(|flow| rig.chosen(flow).0 == 0);
    rig.allow(0, 0);
    assert_eq!(taken(&of_first[..10]), 0, "without a choice");
    rig.choose(0);
    assert_eq!((taken(&of_first[..10]), taken(&of_second[..10])), (10, 0));
    // Forged: another pod's MAC address.
    assert!(rig.send(&of_first[10], tcp_flags::SYN, PODS[1]).is_none());
    rig.kernel.set_generation(SERVICES, 1).unwrap();
    assert_eq!(taken(&of_first[10..20]), 0);
    rig.allow(0, 1);
    assert_eq!(taken(&of_first[10..20]), 0, "the choice is of another generation");
    rig.choose(1);
    assert_eq!(taken(&of_first[10..20]), 10);
    rig.kernel.set_generation(CLIENT, 1).unwrap();
    assert_eq!(taken(&of_first[20..30]), 0, "a denial");
    // No connection leads through what another one has: the client's own one with the backend.
    rig.kernel.set_generation(CLIENT, 0).unwrap();
    let (_, direct) = rig.chosen(&of_first[30]);
    let key = FlowKey::new(LOOPBACK, &direct.reversed());
    assert_eq!(rig.kernel.put_flows(&[key], &[FlowEntry::default()]), 1);
    assert_eq!(taken(&of_first[30..32]), 1);
    assert_eq!(rig.kernel.flow(&FlowKey::new(LOOPBACK, &of_first[30])), None);
}
