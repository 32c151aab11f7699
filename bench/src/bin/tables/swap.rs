//! Pauses of forwarding while tables are swapped.
//!
//! ```text
//! cargo run --release -p bench --bin tables -- swap [--rules 100000]
//! ```
//!
//! One worker that polls a port which always has packets, and notes how long it is between two
//! visits of the worker: without swaps, and while snapshots with freshly compiled tables are
//! published one after the other. What the operating system takes away shows in both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use acl::{Action, AddressMap, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
use bench::{end_progress, print_table, show_progress};
use clap::Parser;
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::{Config, RxMode};
use dataplane::{AclBinding, Frame, Memory, Outcome, Parts, PortKind, PortState, Snapshot, Switch};

#[derive(Parser)]
struct Args {
    /// Rules of each table
    #[arg(long, default_value_t = 100_000)]
    rules: u32,
    /// Snapshots that are swapped in
    #[arg(long, default_value_t = 20)]
    swaps: u64,
}

const BURST: usize = 64;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse_from(args);
    let (memory, frames) = Memory::heap(2048, 4096);
    let config = Config { rx_mode: RxMode::Polling, ..Config::default() };
    let switch = Switch::start(&config, &memory, frames, |_| None)?;
    let seen = Arc::new(Seen::default());
    let frame = testkit::packet::udp("10.1.0.2:4000", "10.1.0.3:53").payload(&[0; 22]).build();
    let id = switch.free_port_id().ok_or("a port")?;
    switch.add_port(id, Box::new(Source { frame, seen: Arc::clone(&seen), last: None }));
    let id = switch.free_port_id().ok_or("a port")?;
    switch.add_port(id, Box::new(Sink { seen: Arc::clone(&seen) }));

    let map = addresses();
    let publish = |generation: u64| -> Result<Duration, String> {
        let began = Instant::now();
        let table = table(args.rules, generation, &map);
        let compiled = began.elapsed();
        let snapshot = Arc::new(Snapshot::new(parts(generation, table, &map)));
        switch.publish(&snapshot);
        match switch.wait_in_force(generation, Duration::from_secs(20)) {
            true => Ok(compiled),
            false => Err("the worker does not answer".to_owned()),
        }
    };
    publish(1)?;
    // Before the first snapshot no packet is forwarded.
    seen.runs.store(1, Ordering::SeqCst);
    // Compiling on the side, as the control thread does, but without publishing.
    seen.restart();
    for generation in 0..args.swaps {
        show_progress(&format!("without swaps: {generation} of {}", args.swaps));
        std::hint::black_box(table(args.rules, generation, &map));
    }
    let quiet = seen.gaps();
    seen.restart();
    let mut compiled = Duration::ZERO;
    for generation in 2..2 + args.swaps {
        show_progress(&format!("swaps: {} of {}", generation - 1, args.swaps));
        compiled += publish(generation)?;
    }
    let swapped = seen.gaps();
    end_progress();
    // What is still under way arrives before the counts are compared.
    seen.runs.store(0, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    let (sent, arrived) = (seen.sent.load(Ordering::SeqCst), seen.arrived.load(Ordering::SeqCst));
    let row = |name: &str, gaps: &[u64]| {
        let at = |share: f64| {
            let n = ((gaps.len() as f64 * share) as usize).min(gaps.len().saturating_sub(1));
            format!("{:.1}", gaps.get(n).copied().unwrap_or(0) as f64 / 1e3)
        };
        vec![name.to_owned(), gaps.len().to_string(), at(0.5), at(0.999), at(0.9999), at(1.0)]
    };
    println!();
    print_table(
        &["µs between two visits", "visits", "median", "99.9 %", "99.99 %", "longest"],
        &[
            row("tables compiled beside it", &quiet),
            row(&format!("and {} swaps of {} rules", args.swaps, args.rules), &swapped),
        ],
    );
    let each = compiled / args.swaps.max(1) as u32;
    println!("\ncompiling a table took {each:?}; packets sent {sent}, lost {}", sent - arrived);
    let refused: u64 = switch
        .counters()
        .map(|counters| counters.of(Outcome::PolicyDenied) + counters.of(Outcome::Closed))
        .sum();
    if sent != arrived || refused > 0 {
        return Err(format!("{refused} packets were refused").into());
    }
    Ok(())
}

/// Counts of both ports.
#[derive(Default)]
struct Seen {
    gaps: Mutex<Vec<u64>>,
    sent: AtomicU64,
    arrived: AtomicU64,
    runs: AtomicU64,
}

impl Seen {
    fn restart(&self) {
        self.gaps.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }

    /// In nanoseconds, shortest first.
    fn gaps(&self) -> Vec<u64> {
        let mut gaps = std::mem::take(
            &mut *self.gaps.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        gaps.sort_unstable();
        gaps
    }
}

/// Always has packets.
struct Source {
    frame: Vec<u8>,
    seen: Arc<Seen>,
    last: Option<Instant>,
}

impl Port for Source {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now)
            // Whoever reads the gaps does not hold the worker up.
            && let Ok(mut gaps) = self.seen.gaps.try_lock()
        {
            gaps.push((now - last).as_nanos() as u64);
        }
        if self.seen.runs.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let mut count = 0;
        while count < most.min(BURST) {
            let Some(mut frame) = buffers.free.take() else { break };
            buffers.memory.fill(&mut frame, &self.frame);
            frames.push(frame);
            count += 1;
        }
        self.seen.sent.fetch_add(count as u64, Ordering::SeqCst);
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        frames.drain(..).for_each(|frame| buffers.free.put(frame));
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

/// Counts what arrives.
struct Sink {
    seen: Arc<Seen>,
}

impl Port for Sink {
    fn receive(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _most: usize,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.seen.arrived.fetch_add(frames.len() as u64, Ordering::SeqCst);
        frames.drain(..).for_each(|frame| buffers.free.put(frame));
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

/// Networks that rules are over.
const NETWORKS: u32 = 200 << 8;

/// A peer set for each network.
fn addresses() -> Arc<AddressMap> {
    let mut sets = AddressMapBuilder::default();
    for n in 0..NETWORKS {
        let net = format!("10.{}.{}.0/24", 2 + (n >> 8), n & 0xff);
        let net = net.parse().expect("a network");
        sets.add(PeerSetId(n), [Block { net, except: Vec::new() }]);
    }
    Arc::new(sets.build())
}

/// Permits the traffic last; every generation has other rules before that.
fn table(rules: u32, generation: u64, map: &Arc<AddressMap>) -> AclBinding {
    let mut list: Vec<Rule> = (0..rules.saturating_sub(2))
        .map(|n| {
            Rule::new(Action::Permit, "other")
                .source(End::Set(PeerSetId(n % NETWORKS)))
                .protocol(17)
                .destination_ports(PortRange::one(1 + ((n as u64 + generation) % 50_000) as u16))
        })
        .collect();
    list.push(Rule::new(Action::Permit, "the traffic").protocol(17));
    list.push(Rule::new(Action::Deny, "the rest"));
    AclBinding::Table(Arc::new(Table::compile(list.into(), map)))
}

fn parts(generation: u64, to_pod: AclBinding, map: &Arc<AddressMap>) -> Parts {
    let pod = |name: &str, address: u32, to_pod| {
        let addresses = vec![acl::Address::from_v4_bits(address)];
        let from_pod = AclBinding::Open;
        Some(PortState { addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let ports = vec![
        pod("default/a", 0x0a01_0002, AclBinding::Open),
        pod("default/b", 0x0a01_0003, to_pod),
    ];
    Parts { generation, ports, addresses: Arc::clone(map), ..Parts::default() }
}
