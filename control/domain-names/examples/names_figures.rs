//! Memory and times of the table and of reading an answer.
//!
//! ```text
//! cargo run --release -p domain-names --example names_figures [PODS [NAMES]]
//! ```
//!
//! By default 100 pods with 128 names of 8 addresses each. A figure is a median of ten rounds, with the
//! least and the most in brackets.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain_names::message::response;
use domain_names::{Limits, NameTable};

const PODS: u32 = 100;
const NAMES: u32 = 128;
const ADDRESSES: u32 = 8;
const ROUNDS: usize = 10;
const READS: u32 = 100_000;

/// Two aliases and one address, as a resolver with EDNS sends them.
const ANSWER: &[u8] = include_bytes!("../tests/corpus/answers/aliases");

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| {
        args.get(at).map_or(default, |text| text.parse().expect("PODS and NAMES are numbers"))
    };
    let (pods, names) = (number(0, PODS), number(1, NAMES));
    let count = pods * names * ADDRESSES;
    let [mut filled, mut expired, mut read] = [const { Vec::new() }; 3];
    // All of them stay, so that memory is each time taken anew.
    let mut tables = Vec::new();
    let before = resident();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut table = fill(pods, names);
        filled.push(began.elapsed() / (pods * names));
        let began = Instant::now();
        assert!(table.expire(Duration::from_secs(1)).is_empty());
        expired.push(began.elapsed());
        let began = Instant::now();
        for _ in 0..READS {
            black_box(response(black_box(ANSWER)));
        }
        read.push(began.elapsed() / READS);
        tables.push(table);
    }
    let bytes = (resident() - before) / (u64::from(count) * ROUNDS as u64);
    println!("{count} addresses of {} names: {bytes} bytes an address", pods * names);
    println!("an answer with {ADDRESSES} addresses into the table: {}", spread(filled));
    println!("a look for expired ones (none): {}", spread(expired));
    println!("reading an answer with two aliases: {}", spread(read));
}

/// A table in which each pod has so many names.
fn fill(pods: u32, names: u32) -> NameTable<String> {
    let addresses = (names * ADDRESSES) as usize;
    let limits = Limits { burst: names, ..Limits::default() };
    let mut table = NameTable::new(Limits { per_pod: addresses.max(limits.per_pod), ..limits });
    for pod in 0..pods {
        for name in 0..names {
            let addresses: Vec<_> = (0..ADDRESSES)
                .map(|n| (std::net::Ipv4Addr::from(pod << 16 | name << 4 | n).into(), 300))
                .collect();
            let name: Arc<str> = format!("service-{name}.example.org").into();
            table.answer(&format!("default/pod-{pod}"), &name, &addresses, Duration::ZERO);
        }
    }
    table
}

/// The median, the least and the most.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.2?} ({:.2?} to {:.2?})", times[times.len() / 2], times[0], times[times.len() - 1])
}

/// Bytes of memory in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}
