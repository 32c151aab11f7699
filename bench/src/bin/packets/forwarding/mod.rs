//! Pod → switch → pod over veth and AF_XDP, beside DPDK's testpmd on the same interfaces, and flow offload beside
//! the kernel's forwarders.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- forwarding     (as root; Debian: dpdk-dev iperf3 ethtool)
//! cargo run --release -p bench --bin packets -- forwarding tcp ROUNDS [PROGRAM…]
//! cargo run --release -p bench --bin packets -- forwarding offload [ROUNDS [PICTURE.svg]]
//! cargo run --release -p bench --bin packets -- forwarding http|dns [ROUNDS]
//! cargo run --release -p bench --bin packets -- forwarding nodes [http|encrypted] [ROUNDS]
//! ```
//!
//! The forwarder is on core 0; the generator (an AF_XDP socket inside the sending pod) or iperf3
//! on core 1. Frames that reached the receiving pod are counted by its interface. Each figure is a
//! median over rounds that take turns. `usual` is this table alone; a congestion
//! control behind it is iperf3's instead of the kernel's usual one. `tcp` is its last row
//! alone, with the switches of other builds of this command (`PROGRAM`, or a script that starts one with
//! other settings) beside this one's. The others are [`offload`]'s tables. `BENCH_RX_MODE=polling` or
//! `adaptive` has this switch poll, or not, in both; else it polls without flow offload only.
//! A peer that fails loses its figures, and says why.

mod measure;
mod offload;

use std::error::Error;
use std::time::Duration;

use bench::forwarder::{Forwarder, Running, SERVER_PORT, own_path};
use bench::rig::{PATIENCE, RECEIVER, SENDER, needs_root, rate};
use bench::{Samples, in_turns, print_table};
use dataplane::port::af_xdp::Umem;
use testkit::has_program;

use measure::stream_between;
use offload::Asks;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(700);
/// Core of both ends.
const ENDS: &str = "taskset -c 1";

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let rounds = || args.last().and_then(|text| text.parse().ok()).unwrap_or(offload::ROUNDS);
    match args[..] {
        [] | ["usual"] => usual(None),
        ["usual", congestion] => usual(Some(congestion)),
        ["tcp", rounds, ref programs @ ..] => tcp(rounds.parse()?, programs),
        ["offload", rounds, picture] => offload::compare(rounds.parse()?, picture),
        ["offload"] | ["offload", _] => offload::compare(rounds(), "flow-offload.svg"),
        ["http"] | ["http", _] => offload::print_requests(Asks::Http, rounds()),
        ["dns"] | ["dns", _] => offload::print_requests(Asks::Dns, rounds()),
        ["nodes", "http"] | ["nodes", "http", _] => offload::print_requests_of_nodes(rounds()),
        ["nodes", "encrypted"] | ["nodes", "encrypted", _] => offload::print_encrypted(rounds()),
        ["nodes"] | ["nodes", _] => offload::print_nodes(rounds()),
        _ => {
            let words = "[usual|tcp|offload|nodes|http|dns] [CONGESTION-CONTROL]";
            Err(format!("forwarding takes {words}").into())
        }
    }
}

/// The MTU of the Internet, beside a forwarder that looks at nothing: the rate of each, then the first one's in the same
/// round over each other's.
fn usual(congestion: Option<&str>) -> Result<()> {
    let forwarders = Forwarder::with_testpmd([Forwarder::Podgate]);
    let names: Vec<&str> = forwarders.iter().map(|forwarder| forwarder.name()).collect();
    let mut whats = vec!["UDP, 64-byte frames (Mpps)", "UDP, 1518-byte frames (Mpps)"];
    whats.extend(has_iperf3().then_some("TCP, iperf3, MTU 1500 (Gb/s)"));
    let row = |(n, what): (usize, &&str)| -> Result<Vec<String>> {
        let all = in_turns(ROUNDS, &names, |way| match n {
            0 => packets(forwarders[way], 64),
            1 => packets(forwarders[way], 1518),
            _ => stream(&forwarders[way].start()?, congestion),
        })?;
        let rates = all.iter().map(|[rates]| rates.to_string());
        let ratios = all.iter().skip(1).map(|[rates]| all[0][0].over(rates).to_string());
        Ok(std::iter::once((*what).to_owned()).chain(rates).chain(ratios).collect())
    };
    let rows = whats.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
    let ratios: Vec<String> = names.iter().skip(1).map(|name| format!("ratio to {name}")).collect();
    let mut head = vec!["pod → switch → pod"];
    head.extend(names.iter().copied().chain(ratios.iter().map(String::as_str)));
    println!();
    print_table(&head, &rows);
    Ok(())
}

/// TCP at the usual MTU alone, through the switches of several builds and through their peers.
fn tcp(rounds: usize, programs: &[&str]) -> Result<()> {
    if !has_iperf3() {
        return Ok(());
    }
    let (own, peers) = (own_path()?, Forwarder::with_testpmd([]));
    let mut names = vec![own.as_str()];
    names.extend(programs);
    let builds = names.len();
    names.extend(peers.iter().map(|peer| peer.name()));
    let all = in_turns(rounds, &names, |way| match names.get(way) {
        Some(program) if way < builds => stream(&Forwarder::start_build(program), None),
        _ => stream(&peers[way - builds].start()?, None),
    })?;
    let row = |(name, [rates]): (&&str, &[Samples; 1])| {
        vec![(*name).to_owned(), rates.to_string(), all[0][0].over(rates).to_string()]
    };
    let rows: Vec<Vec<String>> = names.iter().zip(&all).map(row).collect();
    print_table(&["pod → switch → pod, TCP, MTU 1500", "Gb/s", "the first : this"], &rows);
    Ok(())
}

fn has_iperf3() -> bool {
    let has = has_program("iperf3");
    if !has {
        eprintln!("iperf3 is not installed; TCP is not measured");
    }
    has
}

/// Million frames a second that reach the receiving pod, which drops them as cheaply as the kernel can.
fn packets(forwarder: Forwarder, size: usize) -> Result<[f64; 1]> {
    let running = forwarder.start()?;
    let rig = &running.rig;
    rig.b.enter(|| Umem::close("eth0"))?;
    let (own, size, port) = (own_path()?, size.to_string(), SERVER_PORT.to_string());
    let macs = ["--from-mac", &rig.mac_a, "--to-mac", &rig.mac_b, "--port", &port];
    let ends = ["--interface", "eth0", "--from", SENDER, "--to", RECEIVER, "--size", &size];
    let command = ["taskset", "-c", "1", &own, "pktgen", "--duration", "600"];
    let generator = rig.a.spawn([&command[..], &macs, &ends].concat());
    generator.wait_for_line("sending", PATIENCE);
    std::thread::sleep(WARM_UP);
    Ok([rate(&rig.node, "pgb/statistics/tx_packets", MEASURED)?])
}

/// Gigabits of payload a second from pod to pod.
fn stream(running: &Running, congestion: Option<&str>) -> Result<[f64; 1]> {
    let options = format!("-t 4 {}", congestion.map(|it| format!("-C {it}")).unwrap_or_default());
    let [rate, _] = stream_between(&running.rig.a, &running.rig.b, RECEIVER, ENDS, &options)?;
    Ok([rate])
}
