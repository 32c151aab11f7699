//! Micro-benchmarks of what every packet pays for: finding its session, parsing, checksums.
//!
//! `cargo bench -p dataplane`. Comparisons with other switches are programs of their own, in `bench/`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dataplane::session::{Opening, Owner, PacketInfo, Sessions, Timeouts, TupleOrigin, Tuples};
use dataplane::wire::{self, Flow, checksum, protocol};
use dataplane::{Adjacency, PortId};

/// Packets that are looked up one after the other, as in a vector.
const VECTOR: usize = 256;

fn flow(n: u32) -> Flow {
    Flow {
        source: acl::Address::from_v4_bits(0x0a01_0002 + n / 60_000),
        destination: acl::Address::from_v4_bits(0x0a02_0003),
        source_port: 1024 + (n % 60_000) as u16,
        destination_port: 80,
        protocol: protocol::UDP,
    }
}

const OPENING: Opening = Opening {
    owner: Owner::port(PortId(0)),
    adjacency: Adjacency::port(PortId(1)),
    generation: 1,
    tcp_flags: 0,
};

fn info(flow: &Flow) -> PacketInfo<'_> {
    PacketInfo { flow, tcp_flags: 0, generation: 1, now_s: 1 }
}

fn sessions(c: &mut Criterion) {
    let mut group = c.benchmark_group("sessions");
    group.throughput(Throughput::Elements(VECTOR as u64));
    for count in [1_000_u32, 1_000_000] {
        let table = Sessions::new(2 * count, 1, Timeouts::default());
        for n in 0..count {
            table.open(&Tuples::plain(flow(n)), &OPENING, 0).expect("room");
        }
        // A stride that leaves the processor's caches no order to find.
        let mut at = 0_u32;
        let mut vector = || {
            at = at.wrapping_add(7_919 * VECTOR as u32);
            std::array::from_fn::<Flow, VECTOR, _>(|n| {
                flow(at.wrapping_add(7_919 * n as u32) % count)
            })
        };
        group.bench_function(format!("pass, {count} sessions"), |b| {
            b.iter_batched(
                &mut vector,
                |flows| {
                    // In the graph's order: hash and index line first, then the record's, then both.
                    let hashes = flows.map(|flow| table.hash(&flow));
                    hashes.iter().for_each(|hash| table.prefetch(*hash));
                    let candidates = hashes.map(|hash| table.candidate(hash));
                    for (flow, candidate) in flows.iter().zip(candidates) {
                        let adjacency = table.fast_path(candidate, flow, || info(flow));
                        assert_ne!(black_box(adjacency), Adjacency::NONE, "its session");
                    }
                },
                criterion::BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("find, {count} sessions"), |b| {
            b.iter_batched(
                &mut vector,
                |flows| {
                    for flow in &flows {
                        let hash = table.hash(flow);
                        black_box(
                            table.find(hash, flow, TupleOrigin::Entering, 1).expect("its session"),
                        );
                    }
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
    let table = Sessions::new(1 << 16, 1, Timeouts::default());
    let mut at = 0;
    group.bench_function("open and end", |b| {
        b.iter(|| {
            for _ in 0..VECTOR {
                at += 1;
                let flow = flow(at % 50_000);
                table.open(&Tuples::plain(flow), &OPENING, 0).expect("room");
                let found = table.find(table.hash(&flow), &flow, TupleOrigin::Entering, 0);
                table.end(&found.expect("it was just opened"));
            }
        });
    });
    group.finish();
}

fn packets(c: &mut Criterion) {
    let build = |payload: usize| {
        testkit::packet::tcp("10.1.0.2:4000", "10.1.0.3:80").data(&vec![7; payload]).build()
    };
    let v6 = testkit::packet::udp("[fd01::2]:4000", "[fd01::3]:53").payload(b"question").build();
    let mut group = c.benchmark_group("parse");
    for (name, frame) in [("IPv4, TCP", build(64)), ("IPv6, UDP", v6)] {
        group.bench_function(name, |b| {
            b.iter(|| wire::parse(black_box(&frame)).expect("a sound packet"));
        });
    }
    group.finish();
    let mut group = c.benchmark_group("checksum");
    for length in [64, 1_448, 60_000] {
        let bytes = vec![7; length];
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(format!("{length} bytes"), |b| {
            b.iter(|| checksum::fold(checksum::sum(black_box(&bytes))));
        });
    }
    group.finish();
}

criterion_group!(benches, sessions, packets);
criterion_main!(benches);
