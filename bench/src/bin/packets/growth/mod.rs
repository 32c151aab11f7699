//! Growth of rates with workers, sessions and rules.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- growth [--out bench]
//! ```
//!
//! Whole workers, each pinned to a core, with their loop, free frames and counters; 64-byte UDP
//! over memory, sessions in a file in memory, as `podgate run` keeps them. Every port has as many queues as there are workers, each with packets without
//! end, so that all workers share ports, the session table and the policy's table, and nothing else.
//!
//! A figure is what all workers do in a second, and (per core) what one does in a second that the
//! operating system really gave it: on a machine with other work the second is the one to compare,
//! and what the last column does. The making of packets is left out of both.

mod picture;
mod traffic;

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use bench::{Samples, end_progress, print_table, show_progress};
use clap::Parser;
use picture::plural;
use traffic::{Rig, Way};

#[derive(Parser)]
struct Args {
    /// Workers compared: 1, 2, 4, … up to this; without it the cores there are
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Rounds in which the cases take turns
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Sessions that packets are of
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    sessions: Vec<u32>,
    /// Milliseconds that are measured in a round
    #[arg(long, default_value_t = 500, value_name = "MS")]
    time: u64,
    /// Write growth.md and growth.svg into this folder too
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

const RULES: [u32; 5] = [1, 100, 1_000, 10_000, 100_000];
/// Room for what is opened in one round.
const NEW_SESSIONS: u32 = 8_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// A measurement, with the figures for each number of workers.
struct Case {
    name: String,
    kind: Kind,
    rates: Vec<Samples>,
    per_core: Vec<Samples>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Packets of so many sessions that are there.
    Established(u32, Way),
    /// Packets that each open a session under so many rules.
    Opening(u32),
}

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let cores = thread::available_parallelism()?.get();
    let most = args.workers.unwrap_or(cores).max(1);
    let workers: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= most).collect();
    let mut cases = cases(&args.sessions, workers.len());
    let before = load()?;
    for round in 0..args.rounds.max(1) {
        for case in &mut cases {
            for (place, workers) in workers.iter().enumerate() {
                let (round, s) = (round + 1, plural(*workers));
                show_progress(&format!("round {round}: {}, {workers} worker{s}", case.name));
                let time = Duration::from_millis(args.time.max(1));
                let (rate, per_core) = measure(case.kind, *workers, time)?;
                case.rates[place].add(rate);
                case.per_core[place].add(per_core);
            }
        }
    }
    end_progress();
    let mut head = vec!["Mpps".to_owned()];
    for n in &workers {
        head.extend([format!("{n} worker{}", plural(*n)), "per core".to_owned()]);
    }
    head.push(format!("{} to 1, each with a core", workers.last().copied().unwrap_or(1)));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let most = workers.last().copied().unwrap_or(1);
    let rows: Vec<Vec<String>> = cases.iter().map(|case| row(case, most)).collect();
    println!("\nload of the machine before and after: {before}, {}\n", load()?);
    print_table(&head, &rows);
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder)?;
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let names: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
        let rule = vec!["---".to_owned(); head.len()];
        let mut text = line(&names) + &line(&rule);
        rows.iter().for_each(|row| text += &line(row));
        fs::write(folder.join("growth.md"), text + "\n![rates](growth.svg)\n")?;
        fs::write(folder.join("growth.svg"), picture::draw(&cases, &workers))?;
    }
    Ok(())
}

fn cases(sessions: &[u32], columns: usize) -> Vec<Case> {
    let case = |name: String, kind| Case {
        name,
        kind,
        rates: vec![Samples::new(); columns],
        per_core: vec![Samples::new(); columns],
    };
    let established = |way: Way, words: &'static str| {
        let case =
            move |n| (format!("{} sessions{words}", thousands(n)), Kind::Established(n, way));
        sessions.iter().copied().map(case)
    };
    let sessions = established(Way::Straight, "")
        .chain(established(Way::Crossed, ", answers at another worker"))
        .chain(established(Way::Handed, ", handed to another worker"));
    let opening = |n: u32| {
        let plural = plural(n as usize);
        (format!("new sessions, {} rule{plural}", thousands(n)), Kind::Opening(n))
    };
    let all = sessions.chain(RULES.map(opening));
    all.map(|(name, kind)| case(name, kind)).collect()
}

/// A line of the table; `most` workers are in its last column.
fn row(case: &Case, most: usize) -> Vec<String> {
    let mut row = vec![case.name.clone()];
    for (rate, per_core) in case.rates.iter().zip(&case.per_core) {
        row.extend([rate.to_string(), format!("{:.2}", per_core.median())]);
    }
    let first = case.per_core.first().map_or(0.0, Samples::median);
    let last = case.per_core.last().map_or(0.0, Samples::median);
    row.push(format!("{:.2}", last * most as f64 / first));
    row
}

fn thousands(n: u32) -> String {
    match n {
        n if n >= 1_000 => format!("{},{:03}", thousands(n / 1_000), n % 1_000),
        n => n.to_string(),
    }
}

/// Million packets a second, by the clock and by the time that workers had a core.
fn measure(kind: Kind, workers: usize, time: Duration) -> Result<(f64, f64), Box<dyn Error>> {
    let rig = match kind {
        Kind::Established(sessions, way) => {
            let rig = Rig::start(workers, 1_000, 2 * sessions, way, sessions)?;
            let deadline = Instant::now() + PATIENCE;
            while rig.sessions() < sessions {
                if Instant::now() > deadline {
                    return Err(format!("{} of {sessions} sessions", rig.sessions()).into());
                }
                thread::sleep(Duration::from_millis(1));
            }
            rig.run();
            thread::sleep(time / 5);
            rig
        }
        Kind::Opening(rules) => {
            let rig = Rig::start(workers, rules, NEW_SESSIONS, Way::Straight, 0)?;
            rig.run();
            rig
        }
    };
    let (began, packets) = (Instant::now(), rig.packets());
    let (spent, making) = (rig.worker_time()?, rig.making_time());
    let opens = matches!(kind, Kind::Opening(_));
    while began.elapsed() < time && !(opens && rig.sessions() > NEW_SESSIONS / 10 * 8) {
        thread::sleep(Duration::from_millis(2));
    }
    let elapsed = began.elapsed();
    let (packets, spent) = (rig.packets() - packets, rig.worker_time()? - spent);
    let making = rig.making_time() - making;
    rig.check()?;
    let millions = packets as f64 / 1e6;
    let each = elapsed.saturating_sub(making / workers as u32);
    Ok((millions / each.as_secs_f64(), millions / spent.saturating_sub(making).as_secs_f64()))
}

/// Processes that run or want to, over the last minute.
fn load() -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}
