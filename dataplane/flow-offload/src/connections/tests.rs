//! Connections with entries in a map with little room, and those of templates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use acl::Address;
use dataplane::session::{Opened, Opening};
use dataplane::switch::Config;
use dataplane::wire::tcp_flags::{ACK, RST, SYN};
use dataplane::{AclBinding, Adjacency, Memory, Parts, PortKind, PortState, Snapshot, Switch};

use super::*;
use crate::layout::{Ended, FlowEntry, GUARD_SERVICES, Template};
use crate::{Kernel, Options};

/// Three pods open connections to a fourth one, over a map with room for twelve.
struct Table {
    context: Context,
    published: Published,
    interfaces: AHashMap<PortId, u32>,
    connections: Connections,
}

const ROOM: usize = 12;

impl Table {
    fn new() -> Self {
        let (memory, frames) = Memory::heap(2048, 8);
        let config = Config { workers: 1, ..Default::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).unwrap();
        let options = Options { entries: 2 * ROOM as u32, ..Options::default() };
        let context =
            Context::new(Kernel::load(options.entries).unwrap(), Arc::new(switch), options);
        let pod = |n: u16| PortState {
            mac: Some([2, 0, 0, 0, 0, n as u8]),
            addresses: vec![address(n)],
            to_pod: AclBinding::Open,
            from_pod: AclBinding::Open,
            ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
        };
        let ports = (0..4).map(|n| Some(pod(n))).collect();
        let snapshot = Snapshot::new(Parts { generation: 1, ports, ..Parts::default() });
        let (published, _) = Published::default().next(&Arc::new(snapshot));
        let interfaces = (0..4).map(|n| (PortId(n), 100 + u32::from(n))).collect();
        Self { context, published, interfaces, connections: Connections::default() }
    }

    /// Opens connections of a pod, from this source port on.
    fn open(&self, pod: u16, ports: std::ops::Range<u16>) {
        let sessions = self.context.switch.sessions();
        let now_s = self.context.switch.now().seconds();
        for source_port in ports {
            let flow = flow(pod, source_port);
            let opening = Opening {
                owner: Owner::port(PortId(pod)),
                adjacency: Adjacency::port(PortId(3)),
                generation: 1,
                tcp_flags: SYN,
            };
            let opened = sessions.open(&Tuples::plain(flow), &opening, now_s);
            assert!(matches!(opened, Ok(Opened::New(_))), "{opened:?}");
            for (flow, flags) in [(flow.reversed(), SYN | ACK), (flow, ACK)] {
                let hash = sessions.hash(&flow);
                let found = sessions.find(hash, &flow, TupleOrigin::Entering, now_s).unwrap();
                sessions.touch(&found, flags, now_s);
            }
        }
    }

    /// Opens a connection of which no more than its first packet was seen.
    fn open_half(&self, pod: u16, source_port: u16) -> SessionId {
        let sessions = self.context.switch.sessions();
        let opening = Opening {
            owner: Owner::port(PortId(pod)),
            adjacency: Adjacency::port(PortId(3)),
            generation: 1,
            tcp_flags: SYN,
        };
        let now_s = self.context.switch.now().seconds();
        let opened = sessions.open(&Tuples::plain(flow(pod, source_port)), &opening, now_s);
        let Ok(Opened::New(id)) = opened else { panic!("{opened:?}") };
        id
    }

    /// Enters what a template made of a connection of the first pod, behind a handshake and a question; the
    /// initiator's key.
    fn enter_by_template(&self, source_port: u16) -> FlowKey {
        let node = NodeContext {
            interface: &|port| self.interfaces.get(&port).copied(),
            generation: &|guard| self.published.generation(guard),
            hash: &|_| 0,
        };
        let tuples = Tuples::plain(flow(0, source_port));
        let made = entries(&self.published.snapshot, &tuples, &node).unwrap();
        let [Some((key, forward)), Some((answers, reverse))] = made.both else { panic!() };
        let template = Template::new([forward, reverse], 103, around_services(self));
        let forward = FlowEntry { packets: 3, bytes: 300, used_ns: 1, ..template.forward };
        let reverse = FlowEntry { packets: 2, bytes: 200, used_ns: 1, ..template.reverse };
        let reverse = FlowEntry { role: role::RESPONDER, ..reverse };
        assert_eq!(self.context.kernel.put_flows(&[key, answers], &[forward, reverse]), 2);
        key
    }

    fn scan(&mut self) {
        let Self { context, published, interfaces, connections } = self;
        while connections.scan(context, published, interfaces) {}
    }

    fn read(&mut self) {
        let Self { context, published, connections, .. } = self;
        assert!(connections.begin_reading(Duration::ZERO));
        let mut entries = Vec::new();
        let each = |key: &FlowKey, entry: &FlowEntry| entries.push((*key, Reading::of(entry)));
        context.kernel.for_each_flow(each).unwrap();
        connections.note(context, published, &entries);
    }

    fn accept(&mut self, pod: u16, port: u16) {
        let Self { context, published, interfaces, connections } = self;
        connections.accept(context, published, interfaces, &[flow(pod, port)]);
    }

    /// Source ports of the connections that the kernel has both entries of, by pod.
    fn entered(&self) -> BTreeMap<u16, Vec<u16>> {
        let mut entered = BTreeMap::<u16, Vec<u16>>::new();
        for it in self.connections.installed.values() {
            let has_entry =
                |key: &Option<FlowKey>| self.context.kernel.flow(&key.unwrap()).is_some();
            assert!(it.keys.iter().all(has_entry));
            entered.entry(it.ports[0].0).or_default().push(it.tuples.initiator.source_port);
        }
        let mut count = 0;
        self.context.kernel.for_each_flow(|_, _| count += 1).unwrap();
        assert_eq!(count, 2 * self.connections.installed.len());
        entered.values_mut().for_each(|ports| ports.sort_unstable());
        entered
    }
}

fn address(n: u16) -> Address {
    Address::from_v4_bits(0x0a01_0000 + u32::from(n))
}

fn flow(pod: u16, source_port: u16) -> Flow {
    Flow {
        source: address(pod),
        destination: address(3),
        source_port,
        destination_port: 80,
        protocol: protocol::TCP,
    }
}

/// The session has seen the first packet alone; the entries, the whole handshake and a question.
#[test]
fn connections_of_templates_are_taken_up_if_they_last() {
    testkit::requires_root!();
    let mut table = Table::new();
    let sessions = Arc::clone(table.context.switch.sessions());
    let id = table.open_half(0, 1);
    let state = || sessions.found(id).unwrap().state().name(protocol::TCP);
    assert_eq!(state(), "half-open");
    // Of the second one there is no session.
    let [key, _] = [1, 2].map(|port| table.enter_by_template(port));
    table.read();
    assert_eq!((table.connections.len(), state()), (1, "established"));
    let count = |table: &Table| {
        let mut count = 0;
        table.context.kernel.for_each_flow(|_, _| count += 1).unwrap();
        count
    };
    assert_eq!(count(&table), 4, "a worker may be about to read of the other one");
    table.read();
    assert_eq!(table.entered(), BTreeMap::from([(0, vec![1])]));
    // What both had, once.
    let usage = PortUsage { received: 6, received_bytes: 600, sent: 4, sent_bytes: 400 };
    assert_eq!(table.connections.of_ports()[&PortId(0)], usage);
    table.scan();
    assert_eq!(table.entered(), BTreeMap::from([(0, vec![1])]));
    for key in [key, FlowKey::new(103, &flow(0, 1).reversed())] {
        table.context.kernel.remove_flow(&key).unwrap();
    }
    let ended = Ended {
        by_template: true,
        ports: [0, 3],
        key,
        packets: [5, 3],
        bytes: [500, 300],
        used_ns: [2; 2],
    };
    table.connections.end(&table.context, &ended, Some(id));
    assert_eq!((table.connections.len(), state()), (0, "ended"));
    let usage = PortUsage { received: 8, received_bytes: 800, sent: 5, sent_bytes: 500 };
    assert_eq!(table.connections.of_ports()[&PortId(0)], usage);
    // One that has ended before it was taken up is counted whole.
    table.connections.end(&table.context, &ended, None);
    let usage = PortUsage { received: 13, received_bytes: 1300, sent: 8, sent_bytes: 800 };
    assert_eq!(table.connections.of_ports()[&PortId(0)], usage);
}

/// The entries are the program's to remove, and the session is over, before the report of the end
/// is worked off.
#[test]
fn a_connection_that_is_over_before_its_report_is_counted_once() {
    testkit::requires_root!();
    let mut table = Table::new();
    let id = table.open_half(0, 1);
    let key = table.enter_by_template(1);
    table.read();
    let noted = || table.context.kernel.noted(PortId(0));
    assert_eq!((table.connections.len(), noted()), (1, 1));
    for key in [key, FlowKey::new(103, &flow(0, 1).reversed())] {
        table.context.kernel.remove_flow(&key).unwrap();
    }
    let ended = Ended {
        by_template: true,
        ports: [0, 3],
        key,
        packets: [5, 3],
        bytes: [500, 300],
        used_ns: [2; 2],
    };
    table.connections.remove(&table.context, &id);
    assert_eq!(table.connections.len(), 0);
    table.connections.end(&table.context, &ended, Some(id));
    assert_eq!(table.context.kernel.noted(PortId(0)), 1);
    let usage = PortUsage { received: 5, received_bytes: 500, sent: 3, sent_bytes: 300 };
    assert_eq!(table.connections.of_ports()[&PortId(0)], usage);
    // The next one between the same ends is another one.
    table.connections.end(&table.context, &ended, None);
    assert_eq!(table.context.kernel.noted(PortId(0)), 2);
}

/// The switch learns of the reset before it reads that the responder had accepted.
#[test]
fn a_reset_of_a_templates_connection_is_not_forgotten_when_it_is_taken_up() {
    testkit::requires_root!();
    let mut table = Table::new();
    let id = table.open_half(0, 1);
    table.enter_by_template(1);
    let sessions = Arc::clone(table.context.switch.sessions());
    sessions.note(id, &[(RST, false)], table.context.switch.now().seconds());
    table.read();
    let state = sessions.found(id).unwrap().state();
    assert_eq!((table.connections.len(), state.name(protocol::TCP)), (1, "ended"));
}

/// Those of a snapshot before count no more, and those of one initiator are bounded.
#[test]
fn templates_follow_accepted_connections_within_bounds() {
    testkit::requires_root!();
    let mut table = Table::new();
    let want = |table: &mut Table, server_port: u16| {
        let flow = Flow { destination_port: server_port, ..flow(0, 1) };
        let node = NodeContext {
            interface: &|port| table.interfaces.get(&port).copied(),
            generation: &|guard| table.published.generation(guard),
            hash: &|_| 0,
        };
        let tuples = Tuples::plain(flow);
        let made = entries(&table.published.snapshot, &tuples, &node).unwrap();
        table.connections.templates.want(&table.published, &tuples, &made);
        table.connections.write_templates(&table.context, &table.published);
    };
    let guard = Kernel::guard_of(PortId(0));
    assert!(!table.context.is_used(guard));
    for port in 1..=200 {
        want(&mut table, port);
        want(&mut table, port);
    }
    let count = |table: &Table| table.context.kernel.templates();
    assert_eq!(count(&table), 128);
    assert!(table.context.is_used(guard));
    (table.published, _) = table.published.without(PortId(0));
    table.connections.write_templates(&table.context, &table.published);
    assert_eq!(count(&table), 0);
    for _ in 0..3 {
        table.read();
        table.connections.write_templates(&table.context, &table.published);
    }
    assert!(!table.context.is_used(guard));
}

/// A resolver's answer ends its connection: neither the scan nor the answer enters anything but the template.
#[test]
fn an_answered_question_leaves_a_template_and_no_entries() {
    testkit::requires_root!();
    let mut table = Table::new();
    let sessions = Arc::clone(table.context.switch.sessions());
    let now_s = table.context.switch.now().seconds();
    let question = Flow { destination_port: 53, protocol: protocol::UDP, ..flow(0, 1) };
    let opening = Opening {
        owner: Owner::port(PortId(0)),
        adjacency: Adjacency::port(PortId(3)),
        generation: 1,
        tcp_flags: 0,
    };
    let opened = sessions.open(&Tuples::plain(question), &opening, now_s);
    assert!(matches!(opened, Ok(Opened::New(_))), "{opened:?}");
    let mut accept = || {
        let Table { context, published, interfaces, connections } = &mut table;
        connections.accept(context, published, interfaces, &[question]);
        connections.write_templates(context, published);
        context.kernel.templates()
    };
    assert_eq!(accept(), 0, "without an answer");
    let answer = question.reversed();
    let found = sessions.find(sessions.hash(&answer), &answer, TupleOrigin::Entering, now_s);
    sessions.touch(&found.unwrap(), 0, now_s);
    assert_eq!((accept(), accept()), (1, 1));
    table.scan();
    assert_eq!(table.entered(), BTreeMap::new());
}

fn around_services(table: &Table) -> u32 {
    table.published.generation(GUARD_SERVICES)
}

#[test]
fn one_owner_takes_no_entries_that_others_want() {
    testkit::requires_root!();
    let mut table = Table::new();
    table.open(0, 1..40);
    table.scan();
    assert_eq!(table.entered(), BTreeMap::from([(0, (1..13).collect())]));
    assert_eq!(table.context.refused.load(Ordering::Relaxed), 27);
    // Those that are in use do not take turns.
    table.scan();
    assert_eq!(table.entered(), BTreeMap::from([(0, (1..13).collect())]));
    // The oldest ones make room for what others want, up to the same share.
    table.open(1, 1..3);
    table.scan();
    let expected = [(0, (3..13).collect()), (1, vec![1, 2])];
    assert_eq!(table.entered(), BTreeMap::from(expected));
    assert_eq!(table.context.evicted.load(Ordering::Relaxed), 2);
    table.open(2, 1..40);
    table.scan();
    let counts = table.entered().values().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(counts.iter().sum::<usize>(), ROOM);
    assert!(counts == [5, 2, 5], "{counts:?}");
    assert_eq!(table.entered()[&0], [8, 9, 10, 11, 12]);
    // A handshake finds room too, in the half that is for them and beyond it.
    table.open(1, 3..4);
    table.accept(1, 3);
    assert_eq!(table.entered()[&1], [1, 2, 3]);
    assert_eq!(table.connections.keys.len(), 2 * ROOM);
    assert_eq!(table.context.evicted.load(Ordering::Relaxed), 8);
}
