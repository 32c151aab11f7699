//! Pods that start at once: how long each waits until its tables are in force, for how long
//! the control loop delays other requests during that time, and the memory that they take.
//!
//! ```text
//! cargo run --release -p bench --bin node -- attach [PODS]     (as root)
//! ```
//!
//! The switch is `podgate run` with manifests. Interfaces are there already: what the plugin and
//! its IPAM take is not counted.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::attach::{NODE, PATIENCE, milliseconds, pods, start, write_manifests};
use bench::process::used_memory;
use bench::rig::needs_root;
use bench::{Samples, argument, print_table};
use local_api::{Client, ClientError};
use testkit::{Namespace, TempDir};

/// Names and values of `--flow-offload`.
const MODES: [(&str, &str); 2] = [("flow offload", "on"), ("AF_XDP ports", "off")];
const ROUNDS: usize = 3;
/// Pods that are attached one after the other, before the others.
const ALONE: usize = 10;
/// Figures; those of the whole machine are one a round.
const ROWS: [&str; 5] = [
    "all pods at once, until all are attached",
    "each of them",
    "a pod alone",
    "another request to the control loop meanwhile",
    "memory of the machine for the switch and its pods, MB",
];

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    needs_root()?;
    let pods = argument(args, 1, 100)?;
    let mut figures = MODES.map(|_| ROWS.map(|_| Samples::new()));
    for round in 1..=ROUNDS {
        for ((name, mode), figures) in MODES.iter().zip(&mut figures) {
            eprintln!("round {round} of {ROUNDS}: {name}");
            let measured = measure(pods, &["--flow-offload", mode])?;
            figures.iter_mut().zip(measured).for_each(|(all, of_round)| all.extend(of_round));
        }
    }
    for ((name, _), figures) in MODES.iter().zip(&figures) {
        let rows: Vec<_> = ROWS.iter().zip(figures).map(|(row, it)| it.tail(*row, 1)).collect();
        let head = format!("{name}, {pods} pods: milliseconds");
        print_table(&[&head, "median", "p99", "most"], &rows);
        println!();
    }
    Ok(())
}

/// Attaches [`ALONE`] pods one after the other, then `count` at once, to a switch with these further arguments;
/// returns the values of [`ROWS`].
fn measure(count: usize, arguments: &[&str]) -> Result<[Vec<f64>; ROWS.len()], Box<dyn Error>> {
    let (node, others) = (Namespace::new("bench-node"), Namespace::new("bench-pods"));
    let folder = TempDir::new("bench-attach");
    let (objects, requests) = pods(&node, count + ALONE, |_| &others)?;
    let umem = ((count + ALONE) * 512 + 4096).to_string();
    let before = used_memory()?;
    let manifests = write_manifests(folder.path(), &objects)?;
    let source = ["--node-name", NODE, "--manifests", &manifests, "--umem-frames", &umem];
    let (_switch, socket) = start(&node, folder.path(), &[&source, arguments].concat())?;
    let attach = |request| timed(&socket, |client| client.attach_pod(request).map(drop));
    let (first, together) = requests.split_at(ALONE);
    let alone = first.iter().map(attach).collect::<Result<_, _>>()?;
    let is_over = AtomicBool::new(false);
    let [all, single, others] = thread::scope(|scope| -> Result<_, Box<dyn Error>> {
        let asking = scope.spawn(|| {
            let mut times = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                times.push(timed(&socket, |client| client.list_pods().map(drop))?);
                thread::sleep(Duration::from_millis(1));
            }
            Ok::<_, String>(times)
        });
        let began = Instant::now();
        let attaching = together.iter().map(|request| scope.spawn(move || attach(request)));
        let attaching: Vec<_> = attaching.collect();
        let times = attaching.into_iter().map(|it| it.join().map_err(|_| "a panic".to_owned())?);
        let times = times.collect::<Result<_, String>>();
        let all = milliseconds(began.elapsed());
        is_over.store(true, Ordering::Relaxed);
        Ok([vec![all], times?, asking.join().map_err(|_| "a panic")??])
    })?;
    Ok([all, single, alone, others, vec![used_memory()? - before]])
}

/// Milliseconds of a request.
fn timed(
    socket: &Path,
    request: impl FnOnce(&mut Client) -> Result<(), ClientError>,
) -> Result<f64, String> {
    let began = Instant::now();
    let mut client = Client::connect(socket, PATIENCE).map_err(|error| error.to_string())?;
    request(&mut client).map_err(|error| error.to_string())?;
    Ok(milliseconds(began.elapsed()))
}
