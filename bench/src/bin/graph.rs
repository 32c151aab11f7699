//! The graph alone, over memory: clocks and packets per second on one core.
//!
//! ```text
//! cargo run --release -p bench --bin graph
//! ```
//!
//! 64-byte UDP frames between two pods behind a policy of 1,000 rules, in vectors of 256, flows
//! in random order. Clocks are the TSC's, of all nodes together, without the making of frames.

use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::{Action, AddressMap, End, PortRange, Rule, Table};
use bench::{Samples, print_table};
use dataplane::graph::Node;
use dataplane::session::{Sessions, Timeouts};
use dataplane::{
    Counters, Gate, Graph, Memory, Now, Outcome, Packet, Parts, PortId, PortKind, PortState,
    Snapshot, VECTOR,
};

const ROUNDS: usize = 7;
const VECTORS: usize = 4000;
const RULES: u16 = 1000;
const CLIENT: u32 = 0x0a01_0002;
const SERVER: u32 = 0x0a01_0003;

fn main() {
    let mut rows = Vec::new();
    for sessions in [1_000, 100_000, 1_000_000] {
        rows.push(established(sessions));
    }
    rows.push(opening());
    println!();
    let mut head = vec!["case", "Mpps", "clocks a packet"];
    head.extend(NODES.map(Node::name));
    print_table(&head, &rows);
}

const NODES: [Node; 5] = [Node::Parse, Node::Security, Node::Session, Node::Policy, Node::Rewrite];

fn established(count: u32) -> Vec<String> {
    let mut rig = Rig::new(2 * count);
    rig.run((0..count).map(flow), Outcome::PolicyAllowed);
    let mut order = Order::new(count);
    let name = format!("{count} established sessions");
    measure(&name, &mut rig, Outcome::Session, VECTORS, || flow(order.next()))
}

fn opening() -> Vec<String> {
    let mut rig = Rig::new(16 << 20);
    let mut next = 0;
    let name = format!("new sessions, {RULES} rules");
    measure(&name, &mut rig, Outcome::PolicyAllowed, VECTORS / 4, || {
        next += 1;
        flow(next)
    })
}

fn measure(
    name: &str,
    rig: &mut Rig,
    outcome: Outcome,
    vectors: usize,
    mut next: impl FnMut() -> (u16, u16),
) -> Vec<String> {
    let (mut rate, mut clocks) = (Samples::default(), Samples::default());
    let mut nodes = NODES.map(|_| Samples::default());
    for round in 0..=ROUNDS {
        let before = rig.clocks();
        let mut spent = Duration::ZERO;
        for _ in 0..vectors {
            spent += rig.run((0..VECTOR).map(|_| next()), outcome);
        }
        let packets = (vectors * VECTOR) as f64;
        // The first round warms caches and predictors.
        if round > 0 {
            rate.add(packets / spent.as_secs_f64() / 1e6);
            let after = rig.clocks();
            let each: Vec<f64> = std::iter::zip(before, after)
                .map(|(before, after)| (after - before) as f64 / packets)
                .collect();
            clocks.add(each.iter().sum());
            std::iter::zip(&mut nodes, each).for_each(|(samples, clocks)| samples.add(clocks));
        }
        eprint!("\r{name}: round {round} of {ROUNDS} ");
    }
    eprintln!();
    let mut row = vec![name.to_owned(), rate.to_string(), clocks.to_string()];
    row.extend(nodes.iter().map(|samples| format!("{:.1}", samples.median())));
    row
}

/// A flow's client port, and the server's port.
fn flow(n: u32) -> (u16, u16) {
    (1 + (n % 60_000) as u16, 1 + (n / 60_000 % u32::from(RULES)) as u16)
}

/// Visits all numbers below `count` in an order no prefetcher guesses.
struct Order {
    state: u64,
    count: u32,
}

impl Order {
    fn new(count: u32) -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15, count }
    }

    fn next(&mut self) -> u32 {
        // xorshift64 (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % u64::from(self.count)) as u32
    }
}

struct Rig {
    graph: Graph,
    memory: Arc<Memory>,
    sessions: Arc<Sessions>,
    snapshot: Snapshot,
    counters: Counters,
    packets: Vec<Packet>,
    frame: Vec<u8>,
}

impl Rig {
    fn new(sessions: u32) -> Self {
        let (memory, frames) = Memory::heap(2048, VECTOR as u32);
        let packets = frames.into_iter().map(|frame| Packet::new(frame, PortId(0))).collect();
        Self {
            graph: Graph::default(),
            memory,
            sessions: Sessions::new(sessions, 2, Timeouts::default()),
            snapshot: snapshot(),
            counters: Counters::default(),
            packets,
            frame: testkit::packet::udp("10.1.0.2:1", "10.1.0.3:1").payload(&[0; 22]).build(),
        }
    }

    fn clocks(&self) -> [u64; NODES.len()] {
        NODES.map(|node| self.counters.node(node).clocks.value())
    }

    /// Runs flows through the graph, in vectors; returns the time spent in it.
    fn run(&mut self, flows: impl Iterator<Item = (u16, u16)>, outcome: Outcome) -> Duration {
        let mut spent = Duration::ZERO;
        let mut flows = flows.peekable();
        while flows.peek().is_some() {
            let mut count = 0;
            for (packet, (client, server)) in self.packets.iter_mut().zip(flows.by_ref()) {
                self.frame[34..36].copy_from_slice(&client.to_be_bytes());
                self.frame[36..38].copy_from_slice(&server.to_be_bytes());
                assert!(self.memory.fill(&mut packet.frame, &self.frame));
                packet.outcome = None;
                packet.out_port = PortId::NONE;
                count += 1;
                if count == VECTOR {
                    break;
                }
            }
            let packets = &mut self.packets[..count];
            let started = Instant::now();
            let Self { graph, memory, sessions, snapshot, counters, .. } = self;
            graph.run(packets, snapshot, memory, sessions, counters, Now::default());
            spent += started.elapsed();
            assert!(
                packets.iter().all(|packet| packet.outcome == Some(outcome)),
                "every packet should end as {outcome}; one ended as {:?}",
                packets[0].outcome
            );
        }
        spent
    }
}

fn snapshot() -> Snapshot {
    let map = Arc::new(AddressMap::default());
    let mut rules: Vec<Rule> = (1..=RULES)
        .map(|port| {
            Rule::new(Action::Permit, format!("port {port}"))
                .source(End::Net("10.1.0.0/24".parse().expect("a network")))
                .protocol(17)
                .destination_ports(PortRange::one(port))
        })
        .collect();
    rules.push(Rule::new(Action::Deny, "the rest"));
    let table = Arc::new(Table::compile(rules.into(), &map));
    let pod = |name: &str, address: u32, to_pod| {
        let addresses = vec![acl::Address::from_v4_bits(address)];
        let from_pod = Gate::Open;
        Some(PortState { addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let ports = vec![
        pod("default/client", CLIENT, Gate::Open),
        pod("default/server", SERVER, Gate::Table(table)),
    ];
    Snapshot::new(Parts { generation: 1, ports, addresses: map, ..Parts::default() })
}
