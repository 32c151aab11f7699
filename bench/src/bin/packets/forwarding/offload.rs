//! Flow offload beside what else forwards between pods: the kernel's bridge, its router, testpmd, and
//! the switch's own AF_XDP ports.
//!
//! The pods' ends are their kernels' own sockets. Everything may use all cores. All ways of a round
//! take turns; a new pair of pods stands behind each figure. `offload` is all of it with a picture, `http` connections of
//! one request alone, `nodes` streams between pods of two nodes, `nodes http` connections there, `nodes encrypted`
//! streams over WireGuard devices (boringtun's, where the kernel has none) beside these devices alone.

use bench::forwarder::Forwarder;
use bench::nodes::{Between, pod_address};
use bench::rig::{RECEIVER, Rig, SERVICE, joined};
use bench::{Group, Samples, draw, in_turns, print_table};
use testkit::has_program;

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
        Forwarder::BridgeUncut,
        Forwarder::BridgeFiltered,
        Forwarder::Route,
        Forwarder::Podgate,
        Forwarder::Redirect,
    ]);
    for forwarder in &forwarders {
        // A reader can judge the comparison by what each is measured with.
        let rig = Rig::new(1500);
        let _running = forwarder.start(&rig)?;
        println!("{}:\n  {}", forwarder.name(), rig.described().join("\n  "));
    }
    let mut names: Vec<&str> = forwarders.iter().map(|forwarder| forwarder.name()).collect();
    names.push("a veth pair alone");
    let all = in_turns(rounds, &names, |way| match forwarders.get(way) {
        Some(forwarder) => every_row(*forwarder),
        None => {
            let [a, b] = joined(1500);
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
    let stream = |options| {
        let rig = Rig::new(1500);
        let _running = forwarder.start(&rig)?;
        stream_between(&rig.a, &rig.b, RECEIVER, "", options)
    };
    let ([bbr, of_bbr], [cubic, of_cubic]) = (stream(BBR)?, stream(CUBIC)?);
    let rig = Rig::new(1500);
    let running = forwarder.start(&rig)?;
    let datagrams = small_datagrams(&rig.a, &rig.b)?;
    drop(running);
    let rig = Rig::new(1500);
    let running = forwarder.start(&rig)?;
    let trips = round_trips(&rig.a, &rig.b)?;
    drop(running);
    let [p50, p99] = [0.5, 0.99].map(|share| trips.quantile(share));
    Ok([
        bbr,
        of_bbr,
        cubic,
        of_cubic,
        datagrams,
        p50,
        p99,
        requests(forwarder, RECEIVER, Asks::Http)?[0],
    ])
}

fn ratio(one: &Samples, other: &Samples) -> String {
    format!("{:.2}", one.median() / other.median())
}

/// Requests a second, microseconds of processor time and the p99 of one, and packets of one that programs of flow
/// offload forwarded and that they left to the switch.
fn requests(forwarder: Forwarder, to: &str, asks: Asks) -> Result<[f64; 5]> {
    let rig = Rig::new(1500);
    let running = forwarder.start(&rig)?;
    let measure = match asks {
        Asks::Http => requests_between,
        Asks::Dns => questions_between,
    };
    let [rate, spent, p99, all] = measure(&rig.a, &rig.b, to)?;
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
        (Forwarder::BridgeUncut.name(), Forwarder::BridgeUncut, RECEIVER),
        (Forwarder::Podgate.name(), Forwarder::Podgate, RECEIVER),
        ("the same, a ClusterIP", Forwarder::Podgate, SERVICE),
        (Forwarder::Route.name(), Forwarder::Route, RECEIVER),
        (Forwarder::RouteTracked.name(), Forwarder::RouteTracked, RECEIVER),
        ("the same, a ClusterIP", Forwarder::RouteTracked, SERVICE),
        (Forwarder::Redirect.name(), Forwarder::Redirect, RECEIVER),
    ];
    let names = ways.map(|(name, ..)| name);
    let all = in_turns(rounds, &names, |way| requests(ways[way].1, ways[way].2, asks))?;
    let bridge = &all[2];
    let line = |(name, figures): (&&str, &[Samples; 5])| {
        let ratios = [0, 2].map(|n| figures[n].over(&bridge[n]));
        let shown = figures[..3].iter().chain(&ratios).chain(&figures[3..]);
        std::iter::once((*name).to_owned()).chain(shown.map(Samples::to_string)).collect()
    };
    let lines: Vec<Vec<String>> = names.iter().zip(&all).map(line).collect();
    println!();
    let head = [
        match asks {
            Asks::Http => "HTTP, a connection a request",
            Asks::Dns => "DNS, a port a question",
        },
        "1/s",
        "processor time (µs)",
        "p99, connect to answer (µs)",
        "rate : the bridge's",
        "p99 : the bridge's",
        "packets of one in the kernel",
        "punted",
    ];
    print_table(&head, &lines);
    Ok(())
}

/// Forwarders between two nodes; the switch's two ways beside the kernel's.
const BETWEEN: [Between; 3] = [Between::Offload, Between::Kernel, Between::Podgate];

/// Connections of one request between pods of two nodes.
pub(super) fn print_requests_of_nodes(rounds: usize) -> Result<()> {
    let underlays = [(true, "VXLAN"), (false, "routed")];
    let ways = underlays.iter().flat_map(|underlay| BETWEEN.map(|it| (underlay, it)));
    let ways: Vec<_> = ways.collect();
    let name =
        |((_, underlay), it): &(&(bool, &str), Between)| format!("{underlay}: {}", it.name());
    let names: Vec<String> = ways.iter().map(name).collect();
    let all = in_turns(rounds, &names, |way| {
        let ((tunnel, _), between) = ways[way];
        let nodes = between.start(*tunnel)?;
        requests_between(&nodes.pods[0], &nodes.pods[1], &pod_address(2))
    })?;
    let lines = names.iter().zip(&all).enumerate().map(|(n, (name, figures))| {
        let kernel = &all[n / 3 * 3 + 1];
        let ratios = [0, 2].map(|n| figures[n].over(&kernel[n]));
        let shown = figures[..3].iter().chain(&ratios).map(Samples::to_string);
        std::iter::once(name.clone()).chain(shown).collect()
    });
    println!();
    let head = [
        "HTTP between two nodes",
        "1/s",
        "processor time (µs)",
        "p99, connect to answer (µs)",
        "rate : the kernel's",
        "p99 : the kernel's",
    ];
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
    let names = ways.iter().flat_map(|way| BETWEEN.map(|it| format!("{}, {}", way.1, it.name())));
    let names: Vec<String> = names.collect();
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
