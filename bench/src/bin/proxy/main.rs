//! The API server network proxy: dials, throughput, memory, a stalled reader, latency.
//!
//! ```text
//! cargo run --release -p bench --bin proxy
//! ```
//!
//! Server and agent are processes of their own with one thread each, and so is the target; the
//! clients share what is left of the machine. The frontend is gRPC over a unix socket, the
//! agent's connection TLS. `direct` is the same client without a proxy, in the same run, and so is
//! another server and agent with the original's flags.

mod measures;
mod rig;

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bench::{Samples, in_turns, print_table};
use clap::Parser;
use cli::commands::Cli;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

use measures::{dials, latency, memory, slow, stalled, throughput};
use rig::Rig;

/// A result of a task.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Done<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The API server network proxy: dials a second, throughput of 1 and 100 connections, memory of idle ones, 100 slow
/// readers, a stalled one beside 100 busy ones, added latency.
#[derive(Parser)]
#[command(after_help = "Example:\n  cargo run --release -p bench --bin proxy -- --rounds 5")]
struct Args {
    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Length of a round
    #[arg(long, value_name = "N", default_value_t = 3)]
    seconds: u64,
    /// Idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: usize,
    /// Server to measure beside this one, with the original's flags
    #[arg(long, value_name = "PROGRAM", requires = "peer_agent")]
    peer_server: Option<PathBuf>,
    /// Agent that goes with it
    #[arg(long, value_name = "PROGRAM", requires = "peer_server")]
    peer_agent: Option<PathBuf>,
}

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("konnectivity-server" | "konnectivity-agent") => {
            return Cli::parse_from(konnectivity::commands::arguments(std::env::args_os())).run();
        }
        Some("target") => {
            start(Builder::new_current_thread()).and_then(|it| it.block_on(rig::target()))
        }
        _ => start(Builder::new_multi_thread()).and_then(|it| measure(&Args::parse(), it)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a runtime, with as many files as the system has: every connection is one.
fn start(mut runtime: Builder) -> Done<Runtime> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(runtime.enable_all().build()?)
}

/// The proxies to measure, and the table so far.
struct Run {
    runtime: Runtime,
    /// Names of the proxies, and of none at last.
    names: Vec<&'static str>,
    rigs: Vec<Arc<Rig>>,
    rounds: usize,
    length: Duration,
    rows: Vec<Vec<String>>,
}

impl Run {
    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Done<T> {
        self.runtime.block_on(future).map_err(|error| error as Box<dyn Error>)
    }

    /// Measures each proxy and at last none in turns, a row for each figure.
    fn each<const N: usize>(
        &mut self,
        what: &str,
        rows: [impl Into<String>; N],
        measure: impl AsyncFn(Arc<Rig>, bool) -> Result<[f64; N]>,
    ) -> Done {
        let names: Vec<String> = self.names.iter().map(|name| format!("{what}, {name}")).collect();
        let all = in_turns(self.rounds, &names, |way| {
            let (rig, proxied) = (self.rigs.get(way), way < self.rigs.len());
            let rig = Arc::clone(rig.unwrap_or(&self.rigs[0]));
            self.block_on(measure(rig, proxied))
        })?;
        for (n, name) in rows.into_iter().enumerate() {
            let cells: Vec<&Samples> = all.iter().map(|figures| &figures[n]).collect();
            self.row(name, &cells);
        }
        Ok(())
    }

    /// A row of figures; those that are missing are dashes.
    fn row(&mut self, name: impl Into<String>, cells: &[impl Display]) {
        let mut row = vec![name.into()];
        row.extend(cells.iter().map(ToString::to_string));
        row.resize(self.names.len() + 1, "–".to_owned());
        self.rows.push(row);
    }
}

fn measure(args: &Args, runtime: Runtime) -> Done {
    let (mut rigs, mut names) = (vec![Arc::new(Rig::new()?)], vec!["podgate"]);
    if let (Some(server), Some(agent)) = (&args.peer_server, &args.peer_agent) {
        rigs.push(Arc::new(Rig::of(server, agent)?));
        names.push("peer");
    }
    names.push("direct");
    let length = Duration::from_secs(args.seconds);
    let mut run = Run { runtime, names, rigs, rounds: args.rounds, length, rows: Vec::new() };
    dials(&mut run)?;
    latency(&mut run)?;
    memory(&mut run, args.connections)?;
    throughput(&mut run, 1)?;
    // At last: a peer may not survive that its readers go away in the middle of their downloads.
    throughput(&mut run, 100)?;
    slow(&mut run)?;
    stalled(&mut run)?;
    println!();
    print_table(&[&["measure"], &run.names[..]].concat(), &run.rows);
    Ok(())
}
