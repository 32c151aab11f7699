//! Memory and times of the table and of reading an answer.
//!
//! `cargo run --release -p domain-names --example figures`

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain_names::message::response;
use domain_names::{Limits, NameTable};

const PODS: u32 = 100;
const NAMES: u32 = 128;
const ADDRESSES: u32 = 8;

/// Two aliases and one address, as a resolver with EDNS sends them.
const ANSWER: &[u8] = include_bytes!("../tests/corpus/answers/aliases");

fn main() {
    let before = resident();
    let began = Instant::now();
    let mut table = NameTable::new(Limits { burst: NAMES, ..Limits::default() });
    for pod in 0..PODS {
        for name in 0..NAMES {
            let addresses: Vec<_> = (0..ADDRESSES)
                .map(|n| (std::net::Ipv4Addr::from(pod << 16 | name << 8 | n).into(), 300))
                .collect();
            let name: Arc<str> = format!("service-{name}.example.org").into();
            table.answer(&format!("default/pod-{pod}"), &name, &addresses, Duration::ZERO);
        }
    }
    let count = PODS * NAMES * ADDRESSES;
    let took = began.elapsed();
    let bytes = (resident() - before) / u64::from(count);
    println!("{count} addresses of {} names: {bytes} bytes an address", PODS * NAMES);
    println!("an answer with {ADDRESSES} addresses into the table: {:?}", took / (PODS * NAMES));
    let began = Instant::now();
    let none = table.expire(Duration::from_secs(1)).len();
    println!("a look for expired ones ({none}): {:?}", began.elapsed());
    let began = Instant::now();
    for _ in 0..100_000 {
        black_box(response(black_box(ANSWER)));
    }
    println!("reading an answer with two aliases: {:?}", began.elapsed() / 100_000);
}

/// Bytes of memory in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}
