//! Flow offload beside what else forwards between pods: the kernel's bridge, its router, testpmd, and
//! the switch's own AF_XDP ports.
//!
//! The pods' ends are their kernels' own sockets. Everything may use all cores. All rows of a round
//! take turns; a new pair of pods stands behind each figure.

mod ends;
mod measure;
mod picture;

use bench::attach;
use bench::forwarder::{Beside, Forwarder};
use bench::nodes::Between;
use bench::rig::{SERVICE, needs_root};
use bench::{Samples, print_table};
use testkit::has_program;

use super::Result;
pub(crate) use ends::run as run_end;
use measure::{
    BBR, CORE_EACH, CUBIC, Connection, direct_round_trips, requests, requests_of_nodes,
    round_trips, settings, small_datagrams, stream, stream_of_nodes,
};

/// Rounds, where nothing else is said: about two minutes each.
pub(crate) const ROUNDS: usize = 3;
/// The receiver's address.
const RECEIVER: &str = "10.88.0.3";
/// Pods whose memory is measured, and those that are attached at once.
const PODS: usize = 250;
const AT_ONCE: usize = 100;

/// A comparison: a figure for each forwarder, and the forwarder that the goal names.
#[derive(Clone)]
struct Row {
    name: &'static str,
    goal: &'static str,
    /// By the place in [`forwarders`]; empty where it was not measured.
    figures: Vec<Samples>,
    against: usize,
}

const OFFLOAD: usize = 0;
const BRIDGE: usize = 1;
const BRIDGE_FILTERED: usize = 2;
const AF_XDP: usize = 4;
/// A veth pair alone, in the rows of round trips.
const DIRECT: usize = 7;

fn forwarders() -> Vec<Forwarder> {
    let mut list = vec![
        Forwarder::Offload,
        Forwarder::BridgeUncut,
        Forwarder::BridgeFiltered,
        Forwarder::Route,
        Forwarder::Podgate,
        Forwarder::Redirect,
    ];
    match has_program("dpdk-testpmd") {
        true => list.push(Forwarder::Testpmd),
        false => eprintln!("dpdk-testpmd is not installed (Debian: dpdk-dev); it is left out"),
    }
    list
}

/// Measures all of it in so many rounds, prints the tables, and draws the picture.
pub(crate) fn compare(rounds: usize, picture: Option<&str>) -> Result<()> {
    needs_root()?;
    for (program, package) in [("iperf3", "iperf3"), ("nginx", "nginx-light"), ("nft", "nftables")]
    {
        if !has_program(program) {
            return Err(format!("{program} is not installed (Debian: {package})").into());
        }
    }
    let forwarders = forwarders();
    let row = |name, goal, against| Row {
        name,
        goal,
        figures: vec![Samples::default(); DIRECT + 1],
        against,
    };
    let mut ways = [
        row("TCP, one stream, BBR (Gb/s)", "at least 0.95", BRIDGE),
        row("processor seconds for a gigabyte of it", "at most 1.1", BRIDGE),
        row("TCP, one stream, cubic (Gb/s)", "at least 0.95", BRIDGE),
        row("processor seconds for a gigabyte of it", "at most 1.1", BRIDGE),
        row("UDP, 64-byte frames (Mpps)", "at least 1.0", BRIDGE_FILTERED),
        row("round trip, 64 bytes, p50 (µs)", "at most 1.15", DIRECT),
        row("round trip, 64 bytes, p99 (µs)", "at most 1.15", DIRECT),
    ];
    let http = "HTTP, a connection for each request (1/s)";
    let mut connections = vec![row(http, "at least 1.0", AF_XDP)];
    let mut variants = variants();
    for round in 1..=rounds {
        for (place, forwarder) in forwarders.iter().enumerate() {
            let progress = |what: &str| {
                eprintln!("round {round} of {rounds}: {what}, {}", forwarder.name());
            };
            for (n, control) in [BBR, CUBIC].into_iter().enumerate() {
                progress(&format!("TCP, iperf3 {control}"));
                let (rate, seconds) = stream(*forwarder, &Connection::direct(), control)?;
                ways[2 * n].figures[place].add(rate);
                ways[2 * n + 1].figures[place].add(seconds);
            }
            progress("UDP");
            ways[4].figures[place].add(small_datagrams(*forwarder)?);
            progress("round trips");
            let trips = round_trips(*forwarder)?;
            ways[5].figures[place].add(trips.quantile(0.5));
            ways[6].figures[place].add(trips.quantile(0.99));
            progress("HTTP");
            let way = Connection::direct();
            connections[0].figures[place].add(requests(*forwarder, &way)?.rate);
        }
        let trips = direct_round_trips()?;
        ways[5].figures[DIRECT].add(trips.quantile(0.5));
        ways[6].figures[DIRECT].add(trips.quantile(0.99));
        for variant in &mut variants {
            eprintln!("round {round} of {rounds}: {}", variant.name);
            let way = Connection { to: variant.to, beside: variant.beside };
            variant.requests.add(requests(Forwarder::Offload, &way)?.rate);
            variant.rates.add(stream(Forwarder::Offload, &way, CORE_EACH)?.0);
        }
    }
    print_settings(&forwarders)?;
    print_rows(&forwarders, &ways);
    print_rows(&forwarders, &connections);
    print_variants(&variants);
    print_nodes(rounds)?;
    print_attaching(rounds.min(3))?;
    let drawing = picture::draw(&forwarders, &[&ways[..3], &ways[4..6]].concat());
    let path = picture.unwrap_or("flow-offload.svg");
    std::fs::write(path, drawing)?;
    eprintln!("the picture is in {path}");
    Ok(())
}

/// Prints what each forwarder is measured with, so that a reader can judge the comparison.
fn print_settings(forwarders: &[Forwarder]) -> Result<()> {
    println!();
    for forwarder in forwarders {
        println!("{}:", forwarder.name());
        settings(*forwarder)?.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}

/// A measurement with flow offload alone; the variant must cost nothing.
struct Variant {
    name: &'static str,
    to: &'static str,
    beside: Beside,
    requests: Samples,
    rates: Samples,
}

fn variants() -> Vec<Variant> {
    let variant = |name, to, rules, entries| Variant {
        name,
        to,
        beside: Beside { rules, entries, ..Beside::default() },
        requests: Samples::default(),
        rates: Samples::default(),
    };
    vec![
        variant("flow offload, 100 rules", RECEIVER, 0, 0),
        variant("through a ClusterIP", SERVICE, 0, 0),
        variant("1,000 rules", RECEIVER, 1_000, 0),
        variant("100,000 rules", RECEIVER, 100_000, 0),
        variant("100,000 other entries", RECEIVER, 0, 100_000),
    ]
}

fn ratio(one: &Samples, other: &Samples) -> String {
    match other.median() {
        0.0 => "–".to_owned(),
        median => format!("{:.2}", one.median() / median),
    }
}

fn print_rows(forwarders: &[Forwarder], rows: &[Row]) {
    let has_direct = rows.iter().any(|row| row.figures[DIRECT].median() > 0.0);
    let mut head = vec!["pod → pod"];
    head.extend(forwarders.iter().map(|forwarder| forwarder.name()));
    if has_direct {
        head.push("a veth pair alone");
    }
    head.extend(["ratio", "goal"]);
    let lines = rows.iter().map(|row| {
        let shown = row.figures.iter().enumerate();
        let shown = shown.filter(|(n, _)| *n < forwarders.len() || *n == DIRECT && has_direct);
        let cell = |(_, samples): (usize, &Samples)| match samples.median() {
            0.0 => "–".to_owned(),
            _ => samples.to_string(),
        };
        let mut line = vec![row.name.to_owned()];
        line.extend(shown.map(cell));
        let name = match row.against {
            DIRECT => "the veth pair",
            other => forwarders[other].name(),
        };
        line.push(ratio(&row.figures[OFFLOAD], &row.figures[row.against]));
        line.push(format!("{} × {name}", row.goal));
        line
    });
    println!();
    print_table(&head, &lines.collect::<Vec<_>>());
}

fn print_variants(variants: &[Variant]) {
    let Some(plain) = variants.first() else { return };
    let lines = variants.iter().map(|it| {
        vec![
            it.name.to_owned(),
            it.requests.to_string(),
            ratio(&it.requests, &plain.requests),
            it.rates.to_string(),
            ratio(&it.rates, &plain.rates),
        ]
    });
    println!();
    let head = ["flow offload (goal: within 5 %)", "HTTP (1/s)", "ratio", "TCP (Gb/s)", "ratio"];
    print_table(&head, &lines.collect::<Vec<_>>());
}

/// Connections of one request, with flow offload, by the kernel's bridge and router, and without either; where there are
/// services through a ClusterIP too.
pub(crate) fn print_requests(rounds: usize) -> Result<()> {
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
    // Rate, processor time, p99, both of the bridge's, packets in the kernel and punted.
    let mut all = [const { [const { Samples::new() }; 7] }; 9];
    for round in 1..=rounds {
        let mut both = Vec::new();
        for ((name, forwarder, to), samples) in ways.iter().zip(&mut all) {
            eprintln!("round {round} of {rounds}: HTTP, {name}");
            let measured = requests(*forwarder, &Connection { to, ..Connection::direct() })?;
            both.push([measured.rate, measured.p99]);
            samples[0].add(measured.rate);
            samples[1].add(measured.spent);
            samples[2].add(measured.p99);
            if let Some(both) = measured.packets {
                samples[5..].iter_mut().zip(both).for_each(|(samples, count)| samples.add(count));
            }
        }
        for (samples, [rate, p99]) in all.iter_mut().zip(&both) {
            samples[3].add(rate / both[2][0]);
            samples[4].add(p99 / both[2][1]);
        }
    }
    let cell = |it: &Samples| if it.is_empty() { "–".to_owned() } else { it.to_string() };
    let line = |((name, ..), samples): (&(&str, Forwarder, &str), &[Samples; 7])| {
        let cells = samples.iter().map(cell);
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    let lines: Vec<Vec<String>> = ways.iter().zip(&all).map(line).collect();
    println!();
    let head = [
        "HTTP, a connection a request",
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

/// Connections of one request between pods of two nodes: two ways of the switch beside the kernel's.
pub(crate) fn print_requests_of_nodes(rounds: usize) -> Result<()> {
    let forwarders = [Between::Offload, Between::Kernel, Between::Podgate];
    let underlays = [(true, "VXLAN"), (false, "routed")];
    // Rates, processor time, p99, and the ratios to the kernel.
    let mut all = [const { [const { [const { Samples::new() }; 5] }; 3] }; 2];
    for round in 1..=rounds {
        for ((tunnel, underlay), figures) in underlays.iter().zip(&mut all) {
            let mut both = Vec::new();
            for (forwarder, figures) in forwarders.iter().zip(figures.iter_mut()) {
                eprintln!("round {round} of {rounds}: HTTP, {underlay}, {}", forwarder.name());
                let measured = requests_of_nodes(*forwarder, *tunnel)?;
                both.push([measured.rate, measured.p99]);
                figures[0].add(measured.rate);
                figures[1].add(measured.spent);
                figures[2].add(measured.p99);
            }
            for (figures, [rate, p99]) in figures.iter_mut().zip(&both) {
                figures[3].add(rate / both[1][0]);
                figures[4].add(p99 / both[1][1]);
            }
        }
    }
    let mut lines = Vec::new();
    for ((_, underlay), figures) in underlays.iter().zip(&all) {
        for (forwarder, figures) in forwarders.iter().zip(figures) {
            let mut line = vec![format!("{underlay}: {}", forwarder.name())];
            line.extend(figures.iter().map(Samples::to_string));
            lines.push(line);
        }
    }
    println!();
    let head = [
        "HTTP between two nodes",
        "1/s",
        "processor time (µs)",
        "p99, connect to answer (µs)",
        "rate : the kernel's",
        "p99 : the kernel's",
    ];
    print_table(&head, &lines);
    Ok(())
}

/// Streams between pods of two nodes.
pub(crate) fn print_nodes(rounds: usize) -> Result<()> {
    let forwarders = [Between::Offload, Between::Kernel, Between::Podgate];
    let ways = [
        (true, "VXLAN, BBR", BBR, "its VXLAN device"),
        (true, "VXLAN, cubic", CUBIC, "its VXLAN device"),
        (false, "routed, BBR", BBR, "its route"),
        (false, "routed, cubic", CUBIC, "its route"),
    ];
    // Rates, and processor seconds for a gigabyte.
    let mut figures = [const { [const { [Samples::new(), Samples::new()] }; 3] }; 4];
    for round in 1..=rounds {
        for ((tunnel, name, control, _), figures) in ways.iter().zip(&mut figures) {
            for (forwarder, figures) in forwarders.iter().zip(figures) {
                let name_of_forwarder = forwarder.name();
                eprintln!("round {round} of {rounds}: two nodes, {name}, {name_of_forwarder}");
                let (rate, seconds) = stream_of_nodes(*forwarder, *tunnel, control)?;
                figures[0].add(rate);
                figures[1].add(seconds);
            }
        }
    }
    let mut lines = Vec::new();
    for ((_, name, _, device), figures) in ways.iter().zip(&figures) {
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
    let mut head = vec!["between two nodes"];
    head.extend(forwarders.iter().map(|forwarder| forwarder.name()));
    head.extend(["ratio", "goal"]);
    println!();
    print_table(&head, &lines);
    Ok(())
}

/// Streams between pods of two nodes over WireGuard devices, beside the devices alone: the kernel routes into them.
pub(crate) fn print_encrypted(rounds: usize) -> Result<()> {
    needs_root()?;
    let (mut ours, mut alone, mut ratios) = (Samples::new(), Samples::new(), Samples::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: two nodes, encrypted");
        let (one, _) = stream_of_nodes(Between::Encrypted, false, CUBIC)?;
        let (other, _) = stream_of_nodes(Between::WireGuard, false, CUBIC)?;
        ours.add(one);
        alone.add(other);
        ratios.add(one / other);
    }
    let names = [Between::Encrypted, Between::WireGuard].map(Between::name);
    let mut line = vec!["routed, cubic: TCP, one stream (Gb/s)".to_owned()];
    line.extend([ours, alone, ratios].map(|samples| samples.to_string()));
    println!();
    print_table(&["between two nodes", names[0], names[1], "ratio, at least 0.95"], &[line]);
    Ok(())
}

/// Costs of attached pods, in both modes.
fn print_attaching(rounds: usize) -> Result<()> {
    let mut lines = Vec::new();
    let modes = [("flow offload", "on"), ("AF_XDP ports", "off")];
    let mut figures = [const { [Samples::new(), Samples::new()] }; 2];
    for round in 1..=rounds {
        for ((name, mode), figures) in modes.iter().zip(&mut figures) {
            eprintln!("round {round} of {rounds}: pods are attached, {name}");
            let arguments = ["--flow-offload", *mode];
            let attached = attach::measure(AT_ONCE, PODS - AT_ONCE, &arguments)?;
            figures[0].add(attached.memory);
            figures[1].add(attached.all);
        }
    }
    let names = [
        (format!("memory of the machine for the switch and {PODS} pods (MB)"), "at most 0.1"),
        (format!("{AT_ONCE} pods attached at once (ms)"), "at most 0.33"),
    ];
    for (n, (name, goal)) in names.into_iter().enumerate() {
        let [on, off] = [&figures[0][n], &figures[1][n]];
        lines.push(vec![name, on.to_string(), off.to_string(), ratio(on, off), goal.to_owned()]);
    }
    println!();
    print_table(&["attaching", modes[0].0, modes[1].0, "ratio", "goal"], &lines);
    Ok(())
}
