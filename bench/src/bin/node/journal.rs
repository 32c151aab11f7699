//! A journal of a million openings: its size on disk, and how long it takes to decide about them again.
//!
//! ```text
//! cargo run --release -p bench --bin node -- journal [OPENINGS]
//! ```
//!
//! It is that of a day: 1,000 pods of 200 workloads, each with a policy. *Repeated* openings are those of pods to ten
//! destinations each; *distinct* ones all have other ends or another port, so each is a row.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use bench::{argument, print_table};
use clap::Parser as _;
use cli::commands::Cli;
use local_api::Verdict;
use observe::journal::{Hour, hour_of};
use observe::verdicts::{End, Event, Protocol, TcpFlags};
use serde_json::json;
use testkit::TempDir;

/// Bytes that the journal may take, as suggested; an hour half of them, before it is compressed.
const SIZE: u64 = 256 << 20;
const PODS: usize = 1_000;
const WORKLOADS: usize = 200;
const HOURS: usize = 24;
/// A whole hour of the year 2025, in seconds of the Unix epoch.
const BEGIN: u64 = 1_764_000_000;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let openings = argument(args, 1, 1_000_000)?;
    let folder = TempDir::new("bench-journal");
    let manifests = folder.path().join("manifests.json");
    fs::write(&manifests, cluster())?;
    let mut rows = Vec::new();
    for (name, destinations) in [("repeated", 10), ("distinct", usize::MAX)] {
        let journal = folder.path().join(name);
        fs::create_dir(&journal)?;
        let (left_out, writing) = write(&journal, openings, destinations)?;
        let sizes = fs::read_dir(&journal)?.map(|entry| Ok(entry?.metadata()?.len()));
        let bytes = sizes.sum::<std::io::Result<u64>>()?;
        let began = Instant::now();
        let paths = [&journal, &manifests].map(|path| path.display().to_string());
        let arguments = ["podgate", "policy", "replay-journal", "--journal", &paths[0]];
        let cli = Cli::try_parse_from(arguments.into_iter().chain(["--with", &paths[1]]))?;
        cli.run();
        rows.push(vec![
            name.to_owned(),
            openings.to_string(),
            left_out.to_string(),
            format!("{:.1}", bytes as f64 / 1e6),
            format!("{:.1}", writing.as_secs_f64()),
            format!("{:.1}", began.elapsed().as_secs_f64()),
        ]);
    }
    let head = ["openings", "number", "in no row", "MB", "written in s", "replayed in s"];
    print_table(&head, &rows);
    Ok(())
}

/// Writes the hours of a day.
fn write(
    journal: &Path,
    openings: usize,
    destinations: usize,
) -> Result<(u64, Duration), Box<dyn Error>> {
    let began = Instant::now();
    let mut left_out = 0;
    for hour in 0..HOURS {
        let mut rows = Hour::new(SIZE / 2);
        let first = openings * hour / HOURS;
        for n in first..openings * (hour + 1) / HOURS {
            let begin = Duration::from_secs(BEGIN + 3_600 * hour as u64);
            let since = Duration::from_millis(
                3_600_000 * (n - first) as u64 * HOURS as u64 / openings.max(1) as u64,
            );
            let time = SystemTime::UNIX_EPOCH + begin + since;
            rows.count(&event(n, destinations, time));
        }
        left_out += rows.left_out();
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(BEGIN + 3_600 * hour as u64);
        let mut file = fs::File::create(journal.join(format!("{}.json.gz", hour_of(begin))))?;
        rows.write("node-1", &mut file)?;
    }
    Ok((left_out, began.elapsed()))
}

/// The `n`th opening: of one pod after the other.
fn event(n: usize, destinations: usize, time: SystemTime) -> Event {
    let from = n % PODS;
    let which = n / PODS % destinations;
    let to = (from * 7 + which * 13 + 1) % PODS;
    let end = |pod: usize, port| End {
        pod: Some(pod_name(pod).into()),
        ip: Some(format!("10.1.{}.{}", pod / 250, pod % 250 + 1).parse().expect("an address")),
        port,
        ..End::default()
    };
    let is_denied = n.is_multiple_of(20);
    let policy = format!("NetworkPolicy shop/w{}", to % WORKLOADS);
    let by = if is_denied { format!("default-deny of {policy}") } else { policy + " ingress[0]" };
    Event {
        time,
        node: "node-1".into(),
        verdict: if is_denied { Verdict::Dropped } else { Verdict::Forwarded },
        reason: if is_denied { "policy-denied" } else { "policy-allowed" }.into(),
        by: vec![by.into()],
        from: end(from, Some(40_000)),
        to: end(to, Some(8_000 + (which / PODS) as u16)),
        protocol: Some(Protocol(6)),
        icmp_type: None,
        tcp_flags: Some(TcpFlags(2)),
        in_port: Some(pod_name(from).into()),
        out_port: Some(pod_name(to).into()),
        staged: None,
        process: None,
        denied: None,
    }
}

fn pod_name(pod: usize) -> String {
    format!("shop/w{}-5d4f6c8b9-{pod:05}", pod % WORKLOADS)
}

/// The workloads, each with a policy.
fn cluster() -> String {
    let objects = (0..WORKLOADS).flat_map(|n| {
        let (name, labels) = (format!("w{n}"), json!({"app": format!("w{n}")}));
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": []}});
        let from = json!([{"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn",
            "values": [format!("w{}", n + 1)]}]}}]);
        [
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": name, "namespace": "shop"}, "spec": {"template": template}}),
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "shop"},
                "spec": {"podSelector": {"matchLabels": labels}, "ingress": [{"from": from}]}}),
        ]
    });
    json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()}).to_string()
}
