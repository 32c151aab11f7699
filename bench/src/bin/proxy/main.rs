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

use bench::{Samples, print_table};
use clap::Parser;
use cli::commands::Cli;
use tokio::runtime::Builder;

use measures::{dials, latency, memory, slow, stalled, throughput};
use rig::Rig;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

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
        Some("target") => run(Builder::new_current_thread(), rig::target()),
        _ => run(Builder::new_multi_thread(), measure(Args::parse())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut runtime: Builder, future: impl Future<Output = Result<()>>) -> Result<()> {
    files_limit()?;
    runtime.enable_all().build()?.block_on(future)
}

/// Every connection is a file.
fn files_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// The proxies to measure, and the table so far.
struct Run {
    rigs: Vec<Arc<Rig>>,
    rounds: usize,
    length: Duration,
    rows: Vec<Vec<String>>,
}

impl Run {
    /// Measures each proxy and at last none in turns, a row for each figure.
    async fn each<const N: usize>(
        &mut self,
        what: &str,
        rows: [impl Into<String>; N],
        measure: impl AsyncFn(Arc<Rig>, bool) -> Result<[f64; N]>,
    ) -> Result<()> {
        let mut all = [(); N].map(|()| vec![Samples::new(); self.rigs.len() + 1]);
        for round in 1..=self.rounds {
            let proxies = self.rigs.iter().map(|rig| (rig, true)).chain([(&self.rigs[0], false)]);
            for (way, (rig, proxied)) in proxies.enumerate() {
                eprintln!("{what}, round {round} of {}", self.rounds);
                let figures = measure(Arc::clone(rig), proxied).await?;
                all.iter_mut().zip(figures).for_each(|(row, figure)| row[way].add(figure));
            }
        }
        rows.into_iter().zip(&all).for_each(|(name, cells)| self.row(name, cells));
        Ok(())
    }

    /// A row of figures; those that are missing are dashes.
    fn row(&mut self, name: impl Into<String>, cells: &[impl Display]) {
        let mut row = vec![name.into()];
        row.extend(cells.iter().map(ToString::to_string));
        row.resize(self.rigs.len() + 2, "–".to_owned());
        self.rows.push(row);
    }
}

async fn measure(args: Args) -> Result<()> {
    let mut rigs = vec![Arc::new(Rig::new()?)];
    let mut head = vec!["measure", "podgate"];
    if let (Some(server), Some(agent)) = (&args.peer_server, &args.peer_agent) {
        rigs.push(Arc::new(Rig::of(server, agent)?));
        head.push("peer");
    }
    head.push("direct");
    let length = Duration::from_secs(args.seconds);
    let mut run = Run { rigs, rounds: args.rounds, length, rows: Vec::new() };
    dials(&mut run).await?;
    latency(&mut run).await?;
    memory(&mut run, args.connections).await?;
    throughput(&mut run, 1).await?;
    // At last: a peer may not survive that its readers go away in the middle of their downloads.
    throughput(&mut run, 100).await?;
    slow(&mut run).await?;
    stalled(&mut run).await?;
    println!();
    print_table(&head, &run.rows);
    Ok(())
}
