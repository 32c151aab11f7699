//! Pod → switch → pod over veth and AF_XDP, beside DPDK's testpmd on the same interfaces, and
//! with large packets beside the kernel's bridge.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- forwarding     (as root; Debian: dpdk-dev iperf3 ethtool)
//! cargo run --release -p bench --bin packets -- forwarding large cubic
//! cargo run --release -p bench --bin packets -- forwarding tcp ROUNDS [PROGRAM…]
//! cargo run --release -p bench --bin packets -- forwarding offload [ROUNDS [PICTURE.svg]]
//! cargo run --release -p bench --bin packets -- forwarding nodes [http|encrypted] [ROUNDS]
//! ```
//!
//! The forwarder is on core 0; the generator (an AF_XDP socket inside the sending pod) or iperf3
//! on core 1. Frames that reached the receiving pod are counted by its interface. Each figure is a
//! median over rounds that take turns. `usual` and `large` are the two tables alone; a congestion
//! control behind them is iperf3's instead of the kernel's usual one. `tcp` is the last row of `usual`
//! alone, with the switches of other builds of this command (`PROGRAM`, or a script that starts one with
//! other settings) beside this one's, and with pods that receive in threads of their own: rounds take
//! turns between all of them. `offload` is another table
//! ([`offload`]), `nodes` the part of it that is about two nodes, `http [ROUNDS]` the row of
//! connections of one request alone, through a ClusterIP too, `nodes http` the same between two nodes, and
//! `nodes encrypted` streams of pods of two nodes over WireGuard devices (boringtun's, where the kernel has none) beside
//! these devices alone. `BENCH_RX_MODE=polling` or
//! `adaptive` has this switch poll, or not, in both; else it polls without flow offload only.
//!
//! With `--vpp PROGRAM` in front, `usual` and `tcp` measure FD.io VPP too: a bridge between AF_XDP ports with
//! the same rules as a reflexive ACL. A peer that fails loses its figures, and says why.

mod offload;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bench::forwarder::{Forwarder, Running, own_path};
use bench::rig::{PATIENCE, Rig, needs_root, rate, words};
use bench::{Samples, print_table};
use dataplane::port::af_xdp::Umem;
use testkit::has_program;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(700);

pub(crate) fn main(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let (vpp, args) = match args[..] {
        // Forwarders are copied about; the program's name is there to the end.
        ["--vpp", program, ref rest @ ..] => {
            (Some(Path::new(&*Box::leak(program.to_owned().into_boxed_str()))), rest)
        }
        ref rest => (None, rest),
    };
    match *args {
        [] => usual(vpp, None).and_then(|()| large(None)),
        ["usual"] => usual(vpp, None),
        ["usual", congestion] => usual(vpp, Some(congestion)),
        ["large"] => large(None),
        ["tcp", rounds, ref programs @ ..] => tcp(vpp, rounds.parse()?, programs),
        ["offload"] => offload::compare(offload::ROUNDS, None),
        ["offload", rounds] => offload::compare(rounds.parse()?, None),
        ["offload", rounds, picture] => offload::compare(rounds.parse()?, Some(picture)),
        ["http"] => offload::print_requests(offload::ROUNDS),
        ["http", rounds] => offload::print_requests(rounds.parse()?),
        ["nodes", "http"] => offload::print_requests_of_nodes(offload::ROUNDS),
        ["nodes", "http", rounds] => offload::print_requests_of_nodes(rounds.parse()?),
        ["nodes", "encrypted"] => offload::print_encrypted(offload::ROUNDS),
        ["nodes", "encrypted", rounds] => offload::print_encrypted(rounds.parse()?),
        ["nodes"] => offload::print_nodes(offload::ROUNDS),
        ["nodes", rounds] => offload::print_nodes(rounds.parse()?),
        ["large", congestion] => large(Some(congestion)),
        ["sink"] => sink(),
        ["kernels-end", ..] => offload::run_end(&args[1..]),
        _ => {
            let words = "[--vpp PROGRAM] [usual|large|tcp|offload|nodes|http] [CONGESTION-CONTROL]";
            Err(format!("forwarding takes {words}").into())
        }
    }
}

/// The MTU of the Internet, beside a forwarder that looks at nothing.
fn usual(vpp: Option<&'static Path>, congestion: Option<&str>) -> Result<()> {
    let forwarders = Forwarder::usual(vpp);
    let rig = rig(1500)?;
    let mut rows = Vec::new();
    for size in [64, 1518] {
        let rates = among(&forwarders, &format!("{size} bytes"), |it| packets(&rig, it, size))?;
        rows.push(row(format!("UDP, {size}-byte frames (Mpps)"), &rates));
    }
    if has_iperf3() {
        let rates = among(&forwarders, "iperf3", |it| stream(&rig, it, congestion))?;
        rows.push(row("TCP, iperf3, MTU 1500 (Gb/s)".to_owned(), &rates));
    }
    print(&forwarders, &rows);
    Ok(())
}

/// Path of a stream in [`tcp`].
#[derive(Clone, Copy)]
enum Way<'a> {
    /// The switch of a build of this command.
    Build(&'a str),
    /// This one, between pods that receive in kernel threads of their own, which merge segments.
    Threads(&'a str),
    Peer(Forwarder),
}

impl<'a> Way<'a> {
    fn name(&self) -> &'a str {
        match self {
            Way::Build(program) => program,
            Way::Threads(_) => "the first, pods receive in threads",
            Way::Peer(forwarder) => forwarder.name(),
        }
    }
}

/// TCP at the usual MTU alone, through the switches of several builds and through their peers.
fn tcp(vpp: Option<&'static Path>, rounds: usize, programs: &[&str]) -> Result<()> {
    if !has_iperf3() {
        return Ok(());
    }
    let rig = rig(1500)?;
    let own = own_path()?;
    let builds = [&own].into_iter().map(String::as_str).chain(programs.iter().copied());
    let mut ways: Vec<Way<'_>> = builds.map(Way::Build).collect();
    ways.insert(1, Way::Threads(&own));
    ways.extend(Forwarder::usual(vpp).split_off(1).into_iter().map(Way::Peer));
    let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    let all = in_turn(&names, rounds, "iperf3", |way| {
        let running = match ways[way] {
            Way::Build(program) => Forwarder::start_build(&rig, program)?,
            Way::Threads(program) => {
                rig.receive_in_threads();
                Forwarder::start_build(&rig, program)?
            }
            Way::Peer(forwarder) => forwarder.start(&rig, 0)?,
        };
        stream_through(&rig, running, None)
    })?;
    let row = |(name, Measured { rates, ratios }): (&&str, &Measured)| {
        vec![(*name).to_owned(), cell(rates), cell(ratios)]
    };
    let rows: Vec<Vec<String>> = names.iter().zip(&all).map(row).collect();
    print_table(&["pod → switch → pod, TCP, MTU 1500", "Gb/s", "the first : this"], &rows);
    Ok(())
}

/// TCP at growing MTUs, beside the kernel's bridge. (testpmd's AF_XDP ports take no packets of
/// several frames.)
fn large(congestion: Option<&str>) -> Result<()> {
    let forwarders = [Forwarder::Podgate, Forwarder::Bridge, Forwarder::BridgeUncut];
    let mut rows = Vec::new();
    if !has_iperf3() {
        return Ok(());
    }
    for mtu in [1500, 9000, 32_000, 65_000] {
        let rig = rig(mtu)?;
        let what = format!("iperf3, MTU {mtu}");
        let rates = among(&forwarders, &what, |it| stream(&rig, it, congestion))?;
        rows.push(row(format!("TCP, iperf3, MTU {mtu} (Gb/s)"), &rates));
    }
    print(&forwarders, &rows);
    Ok(())
}

fn rig(mtu: u32) -> Result<Rig> {
    needs_root()?;
    Ok(Rig::new(mtu, 0))
}

fn has_iperf3() -> bool {
    let has = has_program("iperf3");
    if !has {
        eprintln!("iperf3 is not installed; TCP is not measured");
    }
    has
}

/// Results of one forwarder by round; empty if a round failed.
#[derive(Clone, Default)]
struct Measured {
    rates: Samples,
    /// The first forwarder's rate in the same round, of this one's.
    ratios: Samples,
}

/// Rounds that take turns between the first forwarder and its peers.
fn in_turn(
    names: &[&str],
    rounds: usize,
    what: &str,
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Measured>> {
    let mut all = vec![Some(Measured::default()); names.len()];
    for round in 1..=rounds {
        let mut first = 0.0;
        for (way, (name, place)) in names.iter().zip(&mut all).enumerate() {
            let Some(measured) = place else {
                continue;
            };
            eprintln!("{what}, round {round} of {rounds}: {name}");
            match measure(way) {
                Ok(rate) => {
                    first = if way == 0 { rate } else { first };
                    measured.rates.add(rate);
                    measured.ratios.add(first / rate);
                }
                Err(error) if way == 0 => return Err(error),
                Err(error) => {
                    eprintln!("{what}: {name} is left out: {error}");
                    *place = None;
                }
            }
        }
    }
    Ok(all.into_iter().map(Option::unwrap_or_default).collect())
}

fn among(
    forwarders: &[Forwarder],
    what: &str,
    mut measure: impl FnMut(Forwarder) -> Result<f64>,
) -> Result<Vec<Measured>> {
    in_turn(&names(forwarders), ROUNDS, what, |way| measure(forwarders[way]))
}

fn names(forwarders: &[Forwarder]) -> Vec<&'static str> {
    forwarders.iter().map(|forwarder| forwarder.name()).collect()
}

fn print(forwarders: &[Forwarder], rows: &[Vec<String>]) {
    println!();
    let names = names(forwarders);
    let ratios: Vec<String> = names.iter().skip(1).map(|name| format!("ratio to {name}")).collect();
    let mut head = vec!["pod → switch → pod"];
    head.extend(names);
    head.extend(ratios.iter().map(String::as_str));
    print_table(&head, rows);
}

fn row(name: String, all: &[Measured]) -> Vec<String> {
    let rates = all.iter().map(|measured| cell(&measured.rates));
    let ratios = all.iter().skip(1).map(|measured| cell(&measured.ratios));
    std::iter::once(name).chain(rates).chain(ratios).collect()
}

fn cell(samples: &Samples) -> String {
    if samples.is_empty() { "failed".to_owned() } else { samples.to_string() }
}

/// Million frames a second that reach the receiving pod.
fn packets(rig: &Rig, forwarder: Forwarder, size: usize) -> Result<f64> {
    let running = forwarder.start(rig, 0)?;
    let own = own_path()?;
    let mut sink = rig.b.spawn([own.as_str(), "forwarding", "sink"]);
    sink.wait_for_line("closed", PATIENCE);
    let size = size.to_string();
    let mut generator = rig.a.spawn([own.as_str(), "generate", &size, &rig.mac_a, &rig.mac_b]);
    generator.wait_for_line("sending", PATIENCE);
    std::thread::sleep(WARM_UP);
    let rate = rate(MEASURED, || rig.arrived())?;
    generator.kill();
    sink.kill();
    drop(running);
    rig.clear();
    Ok(rate)
}

/// Gigabits of payload a second from pod to pod.
fn stream(rig: &Rig, forwarder: Forwarder, congestion: Option<&str>) -> Result<f64> {
    stream_through(rig, forwarder.start(rig, 0)?, congestion)
}

fn stream_through(rig: &Rig, running: Running<'_>, congestion: Option<&str>) -> Result<f64> {
    let server = rig.b.spawn(words("taskset -c 1 iperf3 -s -1 --forceflush"));
    server.wait_for_line("Server listening", PATIENCE);
    let congestion = congestion.map(|name| format!("-C {name}")).unwrap_or_default();
    let client = format!("taskset -c 1 iperf3 -c 10.88.0.3 -t 4 -f m {congestion}");
    let output = rig.a.try_exec(words(&client));
    drop(running);
    let report = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("iperf3: {report}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let line = report.lines().find(|line| line.contains("receiver"));
    let fields: Vec<&str> = line.ok_or("iperf3 reported nothing")?.split_whitespace().collect();
    let unit = fields.iter().position(|field| field.starts_with("Mbits"));
    let rate: f64 = fields[unit.ok_or("iperf3 reported no rate")? - 1].parse()?;
    Ok(rate / 1e3)
}

/// Drops all that reaches the pod, as cheaply as the kernel can; runs until it is killed.
fn sink() -> Result<()> {
    Umem::close("eth0")?;
    println!("closed");
    loop {
        std::thread::park();
    }
}
