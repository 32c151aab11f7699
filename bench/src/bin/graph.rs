//! The graph alone, over memory: clocks and packets per second on one core.
//!
//! ```text
//! cargo run --release -p bench --bin graph
//! ```
//!
//! 64-byte UDP frames between two pods behind a policy of 1,000 rules, in vectors of 256, flows
//! in random order. Clocks are the TSC's, of all nodes together, without the making of frames.
//!
//! What is refused makes no session, so that the policy node stands alone: by a rule of a port, or
//! by a rule of a port and a peer set of eight addresses, which packets come from by the uplink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::{Action, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
use bench::{Samples, print_table};
use dataplane::graph::Node;
use dataplane::session::{Sessions, Timeouts};
use dataplane::wire::checksum;
use dataplane::{
    AclBinding, Counters, Graph, Memory, Now, Outcome, Packet, Parts, PortId, PortKind, PortState,
    Snapshot, VECTOR,
};
use fastrand::Rng;

/// Connections are visited in an order no prefetcher guesses, the same in every run.
const SEED: u64 = 0x5eed;
const ROUNDS: usize = 7;
const VECTORS: usize = 4000;
const CLIENT: u32 = 0x0a01_0002;
const SERVER: u32 = 0x0a01_0003;
/// The first address of pods elsewhere.
const ELSEWHERE: u32 = 0x0a02_0000;

fn main() {
    let mut rows = Vec::new();
    for sessions in [1_000, 100_000, 1_000_000] {
        rows.push(established(sessions));
    }
    rows.push(judged_again());
    rows.push(opening(1000));
    for rules in
        [Rules::Ports(1000), Rules::Ports(10_000), Rules::Peers(1000), Rules::Peers(10_000)]
    {
        rows.push(refused(rules));
    }
    println!();
    let mut head = vec!["case", "Mpps", "clocks a packet"];
    head.extend(NODES.map(Node::name));
    print_table(&head, &rows);
}

const NODES: [Node; 6] =
    [Node::Parse, Node::AntiSpoofing, Node::Session, Node::Policy, Node::Open, Node::Rewrite];

/// What decides about connections to the server.
#[derive(Clone, Copy)]
enum Rules {
    /// A rule for each of its ports.
    Ports(u16),
    /// A rule for each pair of a peer set and one of ten ports.
    Peers(u16),
}

/// Ports that the rules of a peer set are about, and addresses in a set.
const PORTS: u16 = 10;
const PEERS: u16 = 8;

/// Ends of a connection, but for the server's address.
#[derive(Clone, Copy)]
struct Ends {
    client: u32,
    client_port: u16,
    server_port: u16,
}

fn established(count: u32) -> Vec<String> {
    let rules = 1000;
    let mut rig = Rig::new(2 * count, Rules::Ports(rules), Action::Permit);
    rig.run((0..count).map(|n| ends(n, rules)), Outcome::PolicyAllowed);
    let mut rng = Rng::with_seed(SEED);
    let name = format!("{count} established sessions");
    measure(&name, &mut rig, Outcome::Session, VECTORS, || ends(rng.u32(..count), rules))
}

/// Every vector is of a new generation.
fn judged_again() -> Vec<String> {
    let (count, rules) = (1000, 1000);
    let mut rig = Rig::new(2 * count, Rules::Ports(rules), Action::Permit);
    rig.run((0..count).map(|n| ends(n, rules)), Outcome::PolicyAllowed);
    rig.swaps = true;
    let mut rng = Rng::with_seed(SEED);
    let name = format!("{count} sessions, re-evaluated");
    measure(&name, &mut rig, Outcome::Session, VECTORS / 4, || ends(rng.u32(..count), rules))
}

fn opening(rules: u16) -> Vec<String> {
    let mut rig = Rig::new(16 << 20, Rules::Ports(rules), Action::Permit);
    let mut next = 0;
    let name = format!("new sessions, {rules} rules");
    measure(&name, &mut rig, Outcome::PolicyAllowed, VECTORS / 4, || {
        next += 1;
        ends(next, rules)
    })
}

fn refused(rules: Rules) -> Vec<String> {
    let mut rig = Rig::new(16, rules, Action::Deny);
    let mut rng = Rng::with_seed(SEED);
    let name = match rules {
        Rules::Ports(count) => format!("refused, {count} rules of ports"),
        Rules::Peers(count) => format!("refused, {count} rules of peer sets"),
    };
    measure(&name, &mut rig, Outcome::PolicyDenied, VECTORS, || {
        let n = rng.u32(..);
        match rules {
            Rules::Ports(rules) => {
                Ends { server_port: 1 + (n >> 16) as u16 % rules, ..ends(n, rules) }
            }
            Rules::Peers(rules) => {
                let client = ELSEWHERE + (n >> 8) % u32::from(rules / PORTS * PEERS);
                Ends { client, client_port: 4000, server_port: 1 + n as u16 % PORTS }
            }
        }
    })
}

fn measure(
    name: &str,
    rig: &mut Rig,
    outcome: Outcome,
    vectors: usize,
    mut next: impl FnMut() -> Ends,
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

/// The `n`th connection of the client to a server of so many ports.
fn ends(n: u32, ports: u16) -> Ends {
    let (client_port, server_port) = (1 + n % 60_000, 1 + n / 60_000 % u32::from(ports));
    Ends { client: CLIENT, client_port: client_port as u16, server_port: server_port as u16 }
}

struct Rig {
    graph: Graph,
    memory: Arc<Memory>,
    sessions: Arc<Sessions>,
    snapshot: Snapshot,
    counters: Counters,
    packets: Vec<Packet>,
    frame: Vec<u8>,
    /// Whether each vector meets a new snapshot.
    swaps: bool,
}

impl Rig {
    fn new(sessions: u32, rules: Rules, action: Action) -> Self {
        let (memory, frames) = Memory::heap(2048, VECTOR as u32);
        let in_port = match rules {
            Rules::Ports(_) => PortId(0),
            Rules::Peers(_) => PortId(2),
        };
        let packets = frames.into_iter().map(|frame| Packet::new(frame, in_port)).collect();
        Self {
            graph: Graph::default(),
            memory,
            sessions: Sessions::new(sessions, 2, Timeouts::default()),
            snapshot: snapshot(rules, action),
            counters: Counters::default(),
            packets,
            swaps: false,
            frame: testkit::packet::udp("10.1.0.2:1", "10.1.0.3:1").payload(&[0; 22]).build(),
        }
    }

    fn clocks(&self) -> [u64; NODES.len()] {
        NODES.map(|node| self.counters.node(node).clocks.value())
    }

    /// Runs flows through the graph, in vectors; returns the time spent in it.
    fn run(&mut self, flows: impl Iterator<Item = Ends>, outcome: Outcome) -> Duration {
        let mut spent = Duration::ZERO;
        let mut flows = flows.peekable();
        while flows.peek().is_some() {
            let mut count = 0;
            for (packet, ends) in self.packets.iter_mut().zip(flows.by_ref()) {
                set_ends(&mut self.frame, ends);
                assert!(self.memory.fill(&mut packet.frame, &self.frame));
                packet.outcome = None;
                packet.out_port = PortId::NONE;
                count += 1;
                if count == VECTOR {
                    break;
                }
            }
            self.snapshot.generation += u64::from(self.swaps);
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

fn set_ends(frame: &mut [u8], ends: Ends) {
    let client = ends.client.to_be_bytes();
    if frame[26..30] != client {
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        let sum = checksum::replace(sum, &frame[26..30], &client);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame[26..30].copy_from_slice(&client);
    }
    frame[34..36].copy_from_slice(&ends.client_port.to_be_bytes());
    frame[36..38].copy_from_slice(&ends.server_port.to_be_bytes());
}

fn snapshot(rules: Rules, action: Action) -> Snapshot {
    let mut sets = AddressMapBuilder::default();
    let rule = |port: u16, source: End| {
        Rule::new(action, format!("port {port}"))
            .source(source)
            .protocol(17)
            .destination_ports(PortRange::one(port))
    };
    let mut list: Vec<Rule> = match rules {
        Rules::Ports(count) => {
            let clients = End::Net("10.1.0.0/24".parse().expect("a network"));
            (1..=count).map(|port| rule(port, clients)).collect()
        }
        Rules::Peers(count) => (0..count)
            .map(|n| {
                let set = u32::from(n / PORTS);
                let first = ELSEWHERE + set * u32::from(PEERS);
                let net = (first..first + u32::from(PEERS))
                    .map(|address| acl::Address::from_v4_bits(address).to_ip().into());
                if n % PORTS == 0 {
                    sets.add(PeerSetId(set), net.map(|net| Block { net, except: vec![] }));
                }
                rule(1 + n % PORTS, End::Set(PeerSetId(set)))
            })
            .collect(),
    };
    list.push(Rule::new(Action::Deny, "the rest"));
    let map = Arc::new(sets.build());
    let table = Arc::new(Table::compile(list.into(), &map));
    let pod = |name: &str, address: u32, to_pod| {
        let addresses = vec![acl::Address::from_v4_bits(address)];
        let from_pod = AclBinding::Open;
        Some(PortState {
            addresses,
            to_pod,
            from_pod,
            mtu: 1500,
            ..PortState::new(name, PortKind::Pod)
        })
    };
    let ports = vec![
        pod("default/client", CLIENT, AclBinding::Open),
        pod("default/server", SERVER, AclBinding::Table(table)),
        Some(PortState { mtu: 1500, ..PortState::new("uplink", PortKind::Uplink) }),
    ];
    Snapshot::new(Parts { generation: 1, ports, addresses: map, ..Parts::default() })
}
