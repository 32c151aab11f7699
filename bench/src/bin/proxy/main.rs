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
use std::sync::Arc;
use std::time::Duration;

use bench::{Samples, print_table};

use measures::{dials, latency, memory, slow, stalled, throughput};
use rig::{Programs, Rig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
The API server network proxy: dials a second, throughput of 1 and 100 connections, memory for
10,000 idle ones, 100 slow readers, a stalled one beside 100 busy ones, added latency.

Usage: proxy [--rounds N] [--seconds N] [--connections N]
             [--peer-server PROGRAM --peer-agent PROGRAM]

  --rounds N             rounds of each measurement [3]
  --seconds N            length of a round [3]
  --connections N        idle connections [10000]
  --peer-server PROGRAM  a server to measure beside this one, with the original's flags
  --peer-agent PROGRAM   the agent that goes with it

Example:
  cargo run --release -p bench --bin proxy -- --rounds 5
";

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["server", folder] => role(rig::serve(folder.to_owned())),
        ["agent", folder, server] => role(rig::dial(folder.to_owned(), server.parse()?)),
        ["target"] => role(rig::target()),
        _ => {
            let (mut rounds, mut seconds, mut connections) = (3, 3, 10_000);
            let (mut server, mut agent) = (None, None);
            let mut rest = words.iter();
            while let Some(word) = rest.next() {
                let value = rest.next().ok_or(HELP)?;
                match *word {
                    "--rounds" => rounds = value.parse().map_err(|_| HELP)?,
                    "--seconds" => seconds = value.parse().map_err(|_| HELP)?,
                    "--connections" => connections = value.parse().map_err(|_| HELP)?,
                    "--peer-server" => server = Some(value.into()),
                    "--peer-agent" => agent = Some(value.into()),
                    _ => return Err(HELP.into()),
                }
            }
            let peer = match (server, agent) {
                (Some(server), Some(agent)) => Some(Programs { server, agent }),
                (None, None) => None,
                _ => return Err(HELP.into()),
            };
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let length = Duration::from_secs(seconds);
            runtime.block_on(measure(rounds, length, connections, peer.as_ref()))
        }
    }
}

/// Runs one of the processes, on one thread.
fn role(future: impl Future<Output = Result<()>>) -> Result<()> {
    files_limit()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
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
    /// Each proxy in turn, and at last none; with its place in a row.
    fn ways(&self) -> Vec<(usize, Arc<Rig>, bool)> {
        let rigs = self.rigs.iter().map(|rig| (Arc::clone(rig), true));
        let direct = (Arc::clone(&self.rigs[0]), false);
        let ways = rigs.chain([direct]).enumerate();
        ways.map(|(at, (rig, proxied))| (at, rig, proxied)).collect()
    }

    /// Samples for each proxy, and for none.
    fn samples(&self) -> Vec<Samples> {
        vec![Samples::new(); self.rigs.len() + 1]
    }

    /// A row of figures; those that are missing are dashes.
    fn row(&mut self, name: impl Into<String>, cells: &[impl Display]) {
        let mut row = vec![name.into()];
        row.extend(cells.iter().map(ToString::to_string));
        row.resize(self.rigs.len() + 2, "–".to_owned());
        self.rows.push(row);
    }
}

async fn measure(
    rounds: usize,
    length: Duration,
    connections: usize,
    peer: Option<&Programs>,
) -> Result<()> {
    files_limit()?;
    let mut rigs = vec![Arc::new(Rig::new()?)];
    let mut head = vec!["measure", "podgate"];
    if let Some(peer) = peer {
        rigs.push(Arc::new(Rig::of(peer)?));
        head.push("peer");
    }
    head.push("direct");
    let mut run = Run { rigs, rounds, length, rows: Vec::new() };
    dials(&mut run).await?;
    latency(&mut run).await?;
    memory(&mut run, connections).await?;
    throughput(&mut run, 1).await?;
    // At last: a peer may not survive that its readers go away in the middle of their downloads.
    throughput(&mut run, 100).await?;
    slow(&mut run).await?;
    stalled(&mut run).await?;
    println!();
    print_table(&head, &run.rows);
    Ok(())
}
