//! Sessions of a busy node: DNS questions and short TCP connections of 100 pods for ten minutes.
//!
//! ```text
//! cargo run --release -p bench --bin node -- sessions [--seconds 60] [--only podgate|bridge]
//! ```
//!
//! 99 pods ask 20 questions and open 20 TCP connections of one request a second each. One more asks 20,000
//! questions a second, and in a second part of the run opens 5,000 connections a second. All are answered by one
//! further pod.
//!
//! - *podgate*: a whole worker, with the session table, timeouts and shares that `podgate run` has by default. Time
//!   is that of the packets, a millisecond a step, so ten minutes take one or two; every packet goes through.
//! - *bridge*: the kernel's bridge, whose packets pass conntrack at its defaults (`br_netfilter`, as root), in real
//!   time over veth pairs. A machine that is too slow for that takes more seconds (the last column): conntrack has
//!   less to hold then. What it refused is its own count; packets that got lost elsewhere are lost too.

mod bridge;
#[path = "../../../../../dataplane/tests/nodes/load.rs"]
mod load;
mod switch;

use std::error::Error;

use bench::print_table;
use clap::{Parser, ValueEnum};
use load::{Count, Flood, Load};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Args {
    /// Seconds of load
    #[arg(long, default_value_t = 600, value_name = "N")]
    seconds: u64,
    /// Pods that ask
    #[arg(long, default_value_t = 100, value_name = "N")]
    pods: u16,
    /// Measure one of them alone
    #[arg(long, value_name = "NAME")]
    only: Option<Tracker>,
}

/// The connection tracker that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tracker {
    Podgate,
    Bridge,
}

/// Figures of a run.
struct Report {
    /// The most connections that were held.
    held: u64,
    /// Connections that gave up their place, by class.
    evicted: String,
    /// Connections that were refused for want of a place.
    refused: u64,
    /// Duration of the load, in seconds.
    seconds: u64,
}

pub(crate) fn main(args: &[String]) -> Result<()> {
    let args = Args::parse_from(args);
    let mut rows = Vec::new();
    for flood in [Flood::Questions, Flood::Connections] {
        for tracker in [Tracker::Podgate, Tracker::Bridge] {
            if args.only.is_some_and(|only| only != tracker) {
                continue;
            }
            let mut load = Load::new(flood, args.pods);
            let what = format!("{}, {flood:?}", name(tracker));
            let report = match tracker {
                Tracker::Podgate => switch::run(&mut load, args.pods, args.seconds, &what)?,
                Tracker::Bridge => bridge::run(&mut load, args.seconds, &what)?,
            };
            rows.push(row(flood, tracker, &load, &report));
        }
    }
    println!("{} s of load, {} pods\n", args.seconds, args.pods);
    let head = [
        "one pod asks",
        "tracked by",
        "asked : answered : lost",
        "others' questions",
        "others' connections",
        "held at most",
        "evicted",
        "refused",
        "s",
    ];
    print_table(&head, &rows);
    Ok(())
}

/// Says each minute of the load how far it is.
fn progress(what: &str, tick: u64, seconds: u64) {
    let second = tick / Load::TICKS;
    if second.is_multiple_of(60) {
        eprintln!("{what}: second {second} of {seconds}");
    }
}

fn name(tracker: Tracker) -> &'static str {
    match tracker {
        Tracker::Podgate => "podgate",
        Tracker::Bridge => "bridge, conntrack",
    }
}

fn row(flood: Flood, tracker: Tracker, load: &Load, report: &Report) -> Vec<String> {
    let count = |it: Count| format!("{} : {} : {}", it.asked, it.answered, it.lost());
    let asks = match flood {
        Flood::Questions => "20,000 questions/s",
        Flood::Connections => "5,000 connections/s",
    };
    let [questions, connections] = load.others;
    vec![
        asks.to_owned(),
        name(tracker).to_owned(),
        count(load.one),
        count(questions),
        count(connections),
        report.held.to_string(),
        report.evicted.clone(),
        report.refused.to_string(),
        report.seconds.to_string(),
    ]
}
