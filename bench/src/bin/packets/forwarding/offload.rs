//! Flow offload beside what else forwards between pods: the kernel's bridge, its router, testpmd, and
//! the switch's own AF_XDP ports.
//!
//! The pods' ends are their kernels' own sockets. Everything may use all cores. All ways of a round
//! take turns; a new pair of pods stands behind each figure. `offload` is all of it with a picture, `http` connections of
//! one request alone, `nodes` streams between pods of two nodes, `nodes http` connections there, `nodes encrypted`
//! streams over WireGuard devices (boringtun's, where the kernel has none) beside these devices alone.

use bench::forwarder::Forwarder;
use bench::nodes::{Between, pod_address};
use bench::rig::{RECEIVER, SERVICE, joined};
use bench::{Group, Samples, draw, in_turns, print_table};
use testkit::{Namespace, has_program};

use super::measure::{
    questions_between, requests_between, round_trips, small_datagrams, stream_between,
};
use super::{Result, WARM_UP};

/// Rounds, where nothing else is said: about two minutes each.
pub(super) const ROUNDS: usize = 3;

/// Options of iperf3 for a stream with a congestion control: those that distributions choose.
const BBR: &str = "-t 3 -C bbr";
const CUBIC: &str = "-t 3 -C cubic";

/// Places of the bridges and of AF_XDP ports among the forwarders of [`compare`].
const BRIDGE: usize = 1;
const BRIDGE_FILTERED: usize = 2;
const AF_XDP: usize = 4;
/// Rows of [`compare`]: what a figure is, the goal, and the place of the forwarder that it names; without it the veth
/// pair alone.
const ROWS: [(&str, &str, Option<usize>); 8] = [
    ("TCP, one stream, BBR (Gb/s)", "at least 0.95", Some(BRIDGE)),
    ("processor seconds for a gigabyte of it", "at most 1.1", Some(BRIDGE)),
    ("TCP, one stream, cubic (Gb/s)", "at least 0.95", Some(BRIDGE)),
    ("processor seconds for a gigabyte of it", "at most 1.1", Some(BRIDGE)),
    ("UDP, 64-byte frames (Mpps)", "at least 1.0", Some(BRIDGE_FILTERED)),
    ("round trip, 64 bytes, p50 (µs)", "at most 1.15", None),
    ("round trip, 64 bytes, p99 (µs)", "at most 1.15", None),
    ("HTTP, a connection for each request (1/s)", "at least 1.0", Some(AF_XDP)),
];
/// Rows of the picture.
const DRAWN: [usize; 5] = [0, 1, 2, 4, 5];

/// Measures all of it in so many rounds, prints the tables, and draws the picture.
pub(super) fn compare(rounds: usize, picture: &str) -> Result<()> {
    for (program, package) in [("iperf3", "iperf3"), ("nginx", "nginx-light"), ("nft", "nftables")]
    {
        if !has_program(program) {
            return Err(format!("{program} is not installed (Debian: {package})").into());
        }
    }
    let forwarders = Forwarder::with_testpmd([
        Forwarder::Offload,
        Forwarder::Bridge,
        Forwarder::BridgeFiltered,
        Forwarder::Route,
        Forwarder::Podgate,
        Forwarder::Redirect,
    ]);
    for forwarder in &forwarders {
        // A reader can judge the comparison by what each is measured with.
        let described = forwarder.start()?.rig.described();
        println!("{}:\n  {}", forwarder.name(), described.join("\n  "));
    }
    let mut names: Vec<&str> = forwarders.iter().map(|forwarder| forwarder.name()).collect();
    names.push("a veth pair alone");
    let all = in_turns(rounds, &names, |way| match forwarders.get(way) {
        Some(forwarder) => every_row(*forwarder),
        None => {
            let [a, b] = joined();
            let trips = round_trips(&a, &b)?;
            let [none, p50, p99] = [f64::NAN, trips.quantile(0.5), trips.quantile(0.99)];
            Ok([none, none, none, none, none, p50, p99, none])
        }
    })?;
    let lines = ROWS.iter().enumerate().map(|(n, (what, goal, against))| {
        let against = against.unwrap_or(forwarders.len());
        let mut line = vec![(*what).to_owned()];
        line.extend(all.iter().map(|figures| figures[n].to_string()));
        line.push(ratio(&all[0][n], &all[against][n]));
        line.push(format!("{goal} × {}", names[against]));
        line
    });
    let head = [&["pod → pod"], &names[..], &["ratio", "goal"]].concat();
    println!();
    print_table(&head, &lines.collect::<Vec<_>>());
    print_nodes(rounds)?;
    let group = |row: usize| -> Group {
        let bars = names.iter().zip(&all).map(|(name, it)| ((*name).to_owned(), it[row].median()));
        (ROWS[row].0.to_owned(), bars.collect())
    };
    std::fs::write(picture, draw(&DRAWN.map(group), false))?;
    eprintln!("the picture is in {picture}");
    Ok(())
}

/// The figures of a forwarder in a round, in the order of [`ROWS`].
fn every_row(forwarder: Forwarder) -> Result<[f64; ROWS.len()]> {
    let stream = |options| between(forwarder, |a, b| stream_between(a, b, RECEIVER, "", options));
    let ([bbr, of_bbr], [cubic, of_cubic]) = (stream(BBR)?, stream(CUBIC)?);
    let datagrams = between(forwarder, small_datagrams)?;
    let trips = between(forwarder, round_trips)?;
    let [p50, p99] = [0.5, 0.99].map(|share| trips.quantile(share));
    let [requests, ..] = requests(forwarder, RECEIVER, Asks::Http)?;
    Ok([bbr, of_bbr, cubic, of_cubic, datagrams, p50, p99, requests])
}

/// A measurement between new pods.
fn between<T>(
    forwarder: Forwarder,
    measure: impl FnOnce(&Namespace, &Namespace) -> Result<T>,
) -> Result<T> {
    let running = forwarder.start()?;
    measure(&running.rig.a, &running.rig.b)
}

fn ratio(one: &Samples, other: &Samples) -> String {
    format!("{:.2}", one.median() / other.median())
}

/// Requests a second, microseconds of processor time and the p99 of one, and packets of one that programs of flow
/// offload forwarded and that they left to the switch.
fn requests(forwarder: Forwarder, to: &str, asks: Asks) -> Result<[f64; 5]> {
    let running = forwarder.start()?;
    let (a, b) = (&running.rig.a, &running.rig.b);
    let [rate, spent, p99, all] = match asks {
        Asks::Http => requests_between(a, b, to)?,
        Asks::Dns => questions_between(a, b, to)?,
    };
    // The last counters are of a moment later.
    std::thread::sleep(WARM_UP);
    let [forwarded, punted] = running.counted().unwrap_or([f64::NAN; 2]).map(|it| it / all);
    Ok([rate, spent, p99, forwarded, punted])
}

/// The question of clients.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    /// A web server, each time over a connection of its own.
    Http,
    /// A resolver, each time from a port of its own.
    Dns,
}

/// Connections of one request, with flow offload, by the kernel's bridge and router, and without either; where there are
/// services through a ClusterIP too.
pub(super) fn print_requests(asks: Asks, rounds: usize) -> Result<()> {
    let ways = [
        ("flow offload", Forwarder::Offload, RECEIVER),
        ("flow offload, a ClusterIP", Forwarder::Offload, SERVICE),
        (Forwarder::Bridge.name(), Forwarder::Bridge, RECEIVER),
        (Forwarder::Podgate.name(), Forwarder::Podgate, RECEIVER),
        ("the same, a ClusterIP", Forwarder::Podgate, SERVICE),
        (Forwarder::Route.name(), Forwarder::Route, RECEIVER),
        (Forwarder::RouteTracked.name(), Forwarder::RouteTracked, RECEIVER),
        ("the same, a ClusterIP", Forwarder::RouteTracked, SERVICE),
        (Forwarder::Redirect.name(), Forwarder::Redirect, RECEIVER),
    ];
    let names = ways.map(|(name, ..)| name);
    let all = in_turns(rounds, &names, |way| requests(ways[way].1, ways[way].2, asks))?;
    let line = |(name, figures)| request_line(name, figures, &all[2]);
    let lines: Vec<Vec<String>> = names.into_iter().zip(&all).map(line).collect();
    let what = match asks {
        Asks::Http => "HTTP, a connection a request",
        Asks::Dns => "DNS, a port a question",
    };
    let ratios = ["rate : the bridge's", "p99 : the bridge's"];
    let counts = ["packets of one in the kernel", "punted"];
    println!();
    print_table(&[&[what], &REQUEST[..], &ratios, &counts].concat(), &lines);
    Ok(())
}

/// The first figures of requests.
const REQUEST: [&str; 3] = ["1/s", "processor time (µs)", "p99, connect to answer (µs)"];

/// A line of requests: the figures of [`REQUEST`], rate and p99 over the peer's, and the other figures.
fn request_line<const N: usize>(
    name: &str,
    figures: &[Samples; N],
    peer: &[Samples; N],
) -> Vec<String> {
    let ratios = [0, 2].map(|n| figures[n].over(&peer[n]));
    let shown = figures[..3].iter().chain(&ratios).chain(&figures[3..]);
    std::iter::once(name.to_owned()).chain(shown.map(Samples::to_string)).collect()
}

/// Forwarders between two nodes; the switch's two ways beside the kernel's.
const BETWEEN: [Between; 3] = [Between::Offload, Between::Kernel, Between::Podgate];

/// Connections of one request between pods of two nodes.
pub(super) fn print_requests_of_nodes(rounds: usize) -> Result<()> {
    let underlays = [(true, "VXLAN"), (false, "routed")];
    let name = |n: usize| format!("{}: {}", underlays[n / 3].1, BETWEEN[n % 3].name());
    let names: Vec<String> = (0..underlays.len() * BETWEEN.len()).map(name).collect();
    let all = in_turns(rounds, &names, |n| {
        let nodes = BETWEEN[n % 3].start(underlays[n / 3].0)?;
        let [rate, spent, p99, _] =
            requests_between(&nodes.pods[0], &nodes.pods[1], &pod_address(2))?;
        Ok([rate, spent, p99])
    })?;
    let lines = names.iter().enumerate();
    let lines = lines.map(|(n, name)| request_line(name, &all[n], &all[n / 3 * 3 + 1]));
    let ratios = ["rate : the kernel's", "p99 : the kernel's"];
    println!();
    let head = [&["HTTP between two nodes"], &REQUEST[..], &ratios].concat();
    print_table(&head, &lines.collect::<Vec<_>>());
    Ok(())
}

/// Streams between pods of two nodes.
pub(super) fn print_nodes(rounds: usize) -> Result<()> {
    let ways = [
        (true, "VXLAN, BBR", BBR, "its VXLAN device"),
        (true, "VXLAN, cubic", CUBIC, "its VXLAN device"),
        (false, "routed, BBR", BBR, "its route"),
        (false, "routed, cubic", CUBIC, "its route"),
    ];
    let name = |n: usize| format!("{}, {}", ways[n / 3].1, BETWEEN[n % 3].name());
    let names: Vec<String> = (0..ways.len() * BETWEEN.len()).map(name).collect();
    let all = in_turns(rounds, &names, |n| {
        let (tunnel, _, control, _) = ways[n / 3];
        stream_of_nodes(BETWEEN[n % 3], tunnel, control)
    })?;
    let mut lines = Vec::new();
    for ((_, name, _, device), figures) in ways.iter().zip(all.chunks(3)) {
        let what = ["TCP, one stream (Gb/s)", "processor seconds for a gigabyte of it"];
        for (n, (what, goal)) in what.into_iter().zip(["at least 0.95", "at most 1.1"]).enumerate()
        {
            let mut line = vec![format!("{name}: {what}")];
            line.extend(figures.iter().map(|samples| samples[n].to_string()));
            line.push(ratio(&figures[0][n], &figures[1][n]));
            line.push(format!("{goal} × the kernel, {device}"));
            lines.push(line);
        }
    }
    let names = BETWEEN.map(Between::name);
    println!();
    print_table(&["between two nodes", names[0], names[1], names[2], "ratio", "goal"], &lines);
    Ok(())
}

/// Streams between pods of two nodes over WireGuard devices, beside the devices alone: the kernel routes into them.
pub(super) fn print_encrypted(rounds: usize) -> Result<()> {
    let ways = [Between::Encrypted, Between::WireGuard];
    let names = ways.map(Between::name);
    let all = in_turns(rounds, &names, |way| stream_of_nodes(ways[way], false, CUBIC))?;
    let [ours, alone] = [&all[0][0], &all[1][0]];
    let mut line = vec!["routed, cubic: TCP, one stream (Gb/s)".to_owned()];
    line.extend([ours, alone, &ours.over(alone)].map(Samples::to_string));
    println!();
    print_table(&["between two nodes", names[0], names[1], "ratio, at least 0.95"], &[line]);
    Ok(())
}

/// As [`stream_between`], between pods of two nodes, in a tunnel or routed.
fn stream_of_nodes(between: Between, tunnel: bool, options: &str) -> Result<[f64; 2]> {
    let nodes = between.start(tunnel)?;
    stream_between(&nodes.pods[0], &nodes.pods[1], &pod_address(2), "", options)
}
