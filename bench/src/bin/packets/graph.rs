//! The graph alone, over memory: clocks and packets per second on one core.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- graph [--sessions 1000,16000000 --pods 100]
//! ```
//!
//! Packets as short as their kind allows between pods behind a policy of 1,000 rules, in vectors of
//! 256, connections in random order. Sessions are in a file in memory, as `podgate run` keeps them.
//! The cases take turns. A figure is the median over the vectors of a round, which leaves out those
//! that the operating system interrupted; clocks are the TSC's, of all nodes together. The making of
//! packets is left out.
//!
//! `--vpp PROGRAM` measures FD.io VPP (`bin/vpp` of a build) in the same rounds: established sessions and
//! what is refused, the same headers through the same rules between two ports of its packet generator.
//!
//! A refused packet makes no session, so that the policy node stands alone: by a rule of a port, or
//! by a rule of a port and a peer set of eight addresses, which packets come from by the uplink.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use acl::{Action, AddressMapBuilder};
use bench::{Samples, SessionFile, in_turns, print_table};
use clap::Parser;
use dataplane::graph::{NODES, Node};
use dataplane::session::{Sessions, Timeouts};
use dataplane::{Counters, Frame, Graph, Memory, Now, Outcome, Packet, Snapshot, VECTOR};
use fastrand::Rng;

use super::traffic::{Kind, Rules, Traffic};
use super::vpp;

#[derive(Parser)]
struct Args {
    /// Sessions that plain packets are of
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    sessions: Vec<u32>,
    /// Pods, half of them clients
    #[arg(long, default_value_t = 100)]
    pods: u32,
    /// Rounds in which the cases take turns
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Vectors of a case in a round
    #[arg(long, default_value_t = 2000)]
    vectors: usize,
    /// Only cases whose names contain this
    #[arg(long, default_value = "")]
    only: String,
    /// FD.io VPP's program, measured beside
    #[arg(long)]
    vpp: Option<PathBuf>,
}

/// Connections are visited in an order no prefetcher guesses, the same in every run.
const SEED: u64 = 0x5eed;
/// Columns of nodes; the others are in the last one.
const SHOWN: [Node; 6] =
    [Node::Parse, Node::AntiSpoofing, Node::Session, Node::Policy, Node::Open, Node::Rewrite];
/// Sessions of the cases that are about something else.
const FEW: u32 = 1_000;
/// Beside established sessions of plain UDP between pods. A service has a port for each rule, and all servers behind each.
const CASES: [(&str, Kind, Rules, Finds); 12] = [
    ("TCP, 1000 sessions", Kind::Tcp, Rules::Ports(1000), Finds::Established(FEW)),
    ("IPv6, 1000 sessions", Kind::Ipv6, Rules::Ports(1000), Finds::Established(FEW)),
    ("ClusterIP, 1000 sessions", Kind::ClusterIp, Rules::Ports(10), Finds::Established(FEW)),
    ("VXLAN out, 1000 sessions", Kind::TunnelOut, Rules::Ports(1000), Finds::Established(FEW)),
    ("VXLAN in, 1000 sessions", Kind::TunnelIn, Rules::Ports(1000), Finds::Established(FEW)),
    ("uplink, 1000 sessions", Kind::Uplink, Rules::Ports(1000), Finds::Established(FEW)),
    ("1000 sessions, re-evaluated", Kind::Udp, Rules::Ports(1000), Finds::Reevaluated(FEW)),
    ("new sessions, 1000 rules", Kind::Udp, Rules::Ports(1000), Finds::New),
    ("refused, 1000 rules of ports", Kind::Udp, Rules::Ports(1000), Finds::Refused),
    ("refused, 1000 rules of peer sets", Kind::Udp, Rules::Peers(1000), Finds::Refused),
    ("refused, 10000 rules of ports", Kind::Udp, Rules::Ports(10_000), Finds::Refused),
    ("refused, 10000 rules of peer sets", Kind::Udp, Rules::Peers(10_000), Finds::Refused),
];
/// Packets that the peer sends over and over, at least.
const PEER_PACKETS: u32 = 1 << 18;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let established = |count: &u32| {
        let name = format!("{count} established sessions");
        (name, Kind::Udp, Rules::Ports(1000), Finds::Established(*count))
    };
    let others = CASES.map(|(name, kind, rules, finds)| (name.to_owned(), kind, rules, finds));
    let mut cases: Vec<_> = args.sessions.iter().map(established).chain(others).collect();
    cases.retain(|(name, ..)| name.contains(&args.only));
    let mut rigs = Vec::new();
    for (name, kind, rules, finds) in cases {
        let vectors = args.vectors * (args.rounds + 1);
        let mut rig = Rig::new(name, Traffic::new(kind, rules, args.pods), finds, vectors)?;
        if let (Some(program), Kind::Udp) = (&args.vpp, kind) {
            rig.peer = rig.peer(program)?;
        }
        rigs.push(rig);
    }
    // The first round warms caches and predictors.
    for rig in &mut rigs {
        rig.measure(args.vectors);
        rig.peer.as_mut().map(vpp::Graph::measure).transpose()?;
    }
    let of_rig = |(n, rig): (usize, &Rig)| {
        let peer = rig.peer.as_ref().map(|_| (n, true));
        [(n, false)].into_iter().chain(peer)
    };
    let ways: Vec<(usize, bool)> = rigs.iter().enumerate().flat_map(of_rig).collect();
    let name = |(n, is_peer): &(usize, bool)| {
        format!("{}{}", rigs[*n].name, if *is_peer { ", VPP" } else { "" })
    };
    let names: Vec<String> = ways.iter().map(name).collect();
    let all = in_turns(args.rounds, &names, |way| {
        let (n, is_peer) = ways[way];
        match &mut rigs[n] {
            Rig { peer: Some(peer), .. } if is_peer => {
                let mut figures = [f64::NAN; SHOWN.len() + 3];
                figures[..=vpp::NODES.len()].copy_from_slice(&peer.measure()?);
                Ok(figures)
            }
            rig => Ok(rig.measure(args.vectors)),
        }
    })?;
    let plain = all.first().map_or(0.0, |[_, clocks, ..]| clocks.median());
    let mut head = vec!["case", "Mpps", "clocks a packet", "of the first row"];
    head.extend(SHOWN.map(Node::name));
    head.push("others");
    let medians = |nodes: &[Samples]| -> Vec<String> {
        nodes.iter().map(|samples| format!("{:.1}", samples.median())).collect()
    };
    let (mut rows, mut rows_of_peer) = (Vec::new(), Vec::new());
    for (place, (name, (n, is_peer))) in names.iter().zip(&ways).enumerate() {
        if *is_peer {
            let ([_, own, ..], [theirs, nodes @ ..]) = (&all[place - 1], &all[place]);
            let pages = if rigs[*n].peer.as_ref().is_some_and(|it| it.in_huge_pages()) {
                "huge"
            } else {
                "small"
            };
            let mut row = vec![rigs[*n].name.clone(), own.to_string(), theirs.to_string()];
            row.extend([theirs.over(own).to_string(), pages.to_owned()]);
            row.extend(medians(&nodes[..vpp::NODES.len()]));
            rows_of_peer.push(row);
        } else {
            let [rate, clocks, nodes @ ..] = &all[place];
            let mut row = vec![name.clone(), rate.to_string(), clocks.to_string()];
            row.push(format!("{:.2}", clocks.median() / plain));
            row.extend(medians(nodes));
            rows.push(row);
        }
    }
    print_table(&head, &rows);
    if args.vpp.is_some() {
        println!();
        let head = ["case", "podgate", "VPP", "VPP : podgate", "pages"];
        print_table(&[&head[..], &vpp::NODES].concat(), &rows_of_peer);
    }
    Ok(())
}

/// Rate in millions a second, clocks, and the clocks of the nodes in [`SHOWN`] and of all others.
type Figures = [f64; SHOWN.len() + 3];

/// The state that packets meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// So many sessions.
    Established(u32),
    /// The same, and every vector is of a new generation.
    Reevaluated(u32),
    New,
    Refused,
}

struct Rig {
    name: String,
    traffic: Traffic,
    finds: Finds,
    graph: Graph,
    memory: Arc<Memory>,
    sessions: Arc<Sessions>,
    _file: SessionFile,
    snapshot: Snapshot,
    counters: Counters,
    frames: Vec<Frame>,
    packets: Vec<Packet>,
    rng: Rng,
    /// Connections opened so far.
    opened: u32,
    /// VPP with the same packets.
    peer: Option<vpp::Graph>,
}

impl Rig {
    fn new(
        name: String,
        traffic: Traffic,
        finds: Finds,
        vectors: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let (memory, frames) = Memory::heap(2048, VECTOR as u32);
        let count = match finds {
            Finds::Established(count) | Finds::Reevaluated(count) => count,
            Finds::New => (vectors * VECTOR).try_into()?,
            Finds::Refused => 1024,
        };
        let (file, sessions) =
            SessionFile::sessions(2 * count, traffic.ports(), Timeouts::default())?;
        let action = if finds == Finds::Refused { Action::Deny } else { Action::Permit };
        let mut rig = Self {
            name,
            snapshot: traffic.snapshot(action, false),
            traffic,
            finds,
            graph: Graph::default(),
            memory,
            sessions,
            _file: file,
            counters: Counters::default(),
            frames,
            packets: Vec::with_capacity(VECTOR),
            rng: Rng::with_seed(SEED),
            opened: 0,
            peer: None,
        };
        if let Finds::Established(count) | Finds::Reevaluated(count) = finds {
            while rig.opened < count {
                rig.run(Outcome::PolicyAllowed, |rig| {
                    rig.opened += 1;
                    (rig.opened <= count).then(|| (rig.opened - 1, true))
                });
            }
        }
        Ok(rig)
    }

    /// Clocks that each node has taken.
    fn clocks(&self) -> [u64; NODES] {
        Node::ALL.map(|node| self.counters.node(node).clocks.value())
    }

    /// Sends vectors through the graph; medians of them.
    fn measure(&mut self, vectors: usize) -> Figures {
        let mut figures = [const { Samples::new() }; SHOWN.len() + 3];
        for _ in 0..vectors {
            let before = self.clocks();
            let spent = match self.finds {
                Finds::Established(count) | Finds::Reevaluated(count) => {
                    self.snapshot.generation +=
                        u64::from(matches!(self.finds, Finds::Reevaluated(_)));
                    self.run(Outcome::Session, |rig| Some((rig.rng.u32(..count), false)))
                }
                Finds::New => self.run(Outcome::PolicyAllowed, |rig| {
                    rig.opened += 1;
                    Some((rig.opened, true))
                }),
                Finds::Refused => {
                    self.run(Outcome::PolicyDenied, |rig| Some((rig.rng.u32(..), true)))
                }
            };
            let (after, mut of_vector) = (self.clocks(), [0.0; SHOWN.len() + 3]);
            of_vector[0] = VECTOR as f64 / spent / 1e6;
            for (n, node) in Node::ALL.into_iter().enumerate() {
                let clocks = (after[n] - before[n]) as f64 / VECTOR as f64;
                let place = SHOWN.iter().position(|it| *it == node).unwrap_or(SHOWN.len());
                of_vector[1] += clocks;
                of_vector[2 + place] += clocks;
            }
            figures.iter_mut().zip(of_vector).for_each(|(samples, value)| samples.add(value));
        }
        figures.map(|samples| samples.median())
    }

    /// VPP with the same rules, for the same packets, if it can have the case.
    fn peer(&mut self, program: &Path) -> Result<Option<vpp::Graph>, Box<dyn Error>> {
        let mut rng = Rng::with_seed(SEED);
        let (action, outcome, sessions, connections) = match self.finds {
            Finds::Established(count) => {
                // Each as often as any other.
                let mut order: Vec<u32> = (0..count.max(PEER_PACKETS)).map(|n| n % count).collect();
                rng.shuffle(&mut order);
                (Action::Permit, "existing session packets", count, order)
            }
            Finds::Refused => {
                let order = (0..PEER_PACKETS).map(|_| rng.u32(..)).collect();
                (Action::Deny, "ACL deny packets", FEW, order)
            }
            Finds::Reevaluated(_) | Finds::New => return Ok(None),
        };
        let mut frame = self.frames.pop().ok_or("no frame")?;
        let packet = |n: &u32| {
            self.traffic.write(&self.memory, &mut frame, *n, false);
            self.memory.bytes(&frame).to_vec()
        };
        let packets = connections.iter().map(packet).collect();
        self.frames.push(frame);
        let rules = self.traffic.rules(action, &mut AddressMapBuilder::default());
        let case = vpp::Case {
            packets,
            servers: self.traffic.servers().collect(),
            acl: &vpp::acl(&rules, |set| self.traffic.members(set)),
            sessions,
            outcome,
        };
        Ok(Some(vpp::Graph::new(program, &case)?))
    }

    /// Runs a vector of the connections that `next` numbers (and whether the packet opens its
    /// connection) through the graph; returns the seconds spent in it.
    fn run(
        &mut self,
        outcome: Outcome,
        mut next: impl FnMut(&mut Self) -> Option<(u32, bool)>,
    ) -> f64 {
        while let Some(frame) = self.frames.pop() {
            let Some((n, opens)) = next(self) else {
                self.frames.push(frame);
                break;
            };
            self.packets.push(self.traffic.packet(&self.memory, frame, n, opens));
        }
        let Self { graph, packets, memory, sessions, snapshot, counters, .. } = self;
        let started = Instant::now();
        graph.run(packets, snapshot, memory, sessions, counters, Now::default());
        let spent = started.elapsed().as_secs_f64();
        for packet in packets.drain(..) {
            assert_eq!(packet.outcome, Some(outcome), "{}", self.name);
            self.frames.push(packet.frame);
        }
        spent
    }
}
