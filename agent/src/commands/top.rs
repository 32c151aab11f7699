//! `podgate top`: shows packet rates of the running switch.
//!
//! Rates are the differences of two answers to `status`.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::call::{Socket, refused};
use crate::config::Span;
use crate::run::{PortStatus, Status};
use cli::{NO, UNUSABLE, fail};
use cli::{Output, print};
use local_api::{Client, Request};

/// Arguments of `podgate top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The busiest ports come first. On a terminal the screen is drawn anew each time.

Example:
  podgate top --interval 2s
  podgate top --count 1 -o json | jq .ports[0]"
)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// How long rates are measured
    #[arg(long, default_value = "1s", value_name = "TIME")]
    interval: Span,

    /// How often; without it until it is ended
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Ports shown at most
    #[arg(long, default_value_t = 20, value_name = "N")]
    ports: usize,

    /// How the answer is written; JSON is one line each time
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Rates over one interval; all are a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rates {
    /// The cluster node.
    node: String,
    /// How long they were measured, in seconds.
    seconds: f64,
    /// Packets that were forwarded, dropped, or meant for the switch.
    forwarded: f64,
    dropped: f64,
    consumed: f64,
    /// Share of rounds that found packets, of each worker.
    busy: Vec<f64>,
    /// Sessions there are, and how many fit.
    sessions: u32,
    capacity: u32,
    /// Ports, the busiest first.
    ports: Vec<PortRates>,
}

/// One port's rates a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PortRates {
    name: String,
    worker: Option<usize>,
    received: f64,
    received_bits: f64,
    sent: f64,
    sent_bits: f64,
    /// Frames that could not leave, or were not taken in time.
    lost: f64,
    sessions: u32,
}

/// Measures and writes the given number of times.
pub fn run(args: &Args) -> ExitCode {
    if args.interval.0 < Duration::from_millis(10) {
        return fail(UNUSABLE, format_args!("--interval {}: is too short", args.interval));
    }
    let mut client = match args.socket.connect() {
        Ok(client) => client,
        Err(error) => return refused(&error),
    };
    let mut before = match ask(&mut client) {
        Ok(answer) => answer,
        Err(code) => return code,
    };
    let screen = args.output == Output::Text && std::io::stdout().is_terminal();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        std::thread::sleep(args.interval.0);
        let now = match ask(&mut client) {
            Ok(answer) => answer,
            Err(code) => return code,
        };
        let mut rates = rates(&before, &now);
        rates.ports.truncate(args.ports);
        before = now;
        let text = match args.output {
            Output::Text if screen => format!("\x1b[H\x1b[2J{}", text(&rates)),
            Output::Text => text(&rates),
            Output::Json => match serde_json::to_string(&rates) {
                Ok(line) => line + "\n",
                Err(error) => return fail(NO, error),
            },
        };
        let written = print(&text);
        if written != ExitCode::SUCCESS {
            return written;
        }
        let _ = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

/// Requests the status; the error is the command's exit code.
fn ask(client: &mut Client) -> Result<(Instant, Status), ExitCode> {
    let value = client.call(&Request::Status).map_err(|error| refused(&error))?;
    let at = Instant::now();
    let status = serde_json::from_value(value);
    Ok((at, status.map_err(|error| fail(NO, format_args!("podgate's answer: {error}")))?))
}

fn rates(before: &(Instant, Status), now: &(Instant, Status)) -> Rates {
    let seconds = (now.0 - before.0).as_secs_f64().max(1e-6);
    let (before, now) = (&before.1, &now.1);
    // The counters of a restarted switch begin at zero.
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let packets = |name: &str| {
        let of = |status: &Status| status.packets.get(name).copied().unwrap_or(0);
        rate(of(now), of(before))
    };
    let port = |port: &PortStatus| {
        let known = before.ports.iter().find(|it| it.name == port.name && it.id == port.id);
        let since = |of: fn(&PortStatus) -> u64| rate(of(port), known.map_or(0, of));
        PortRates {
            name: port.name.clone(),
            worker: port.worker,
            received: since(|it| it.received),
            received_bits: 8.0 * since(|it| it.received_bytes),
            sent: since(|it| it.sent),
            sent_bits: 8.0 * since(|it| it.sent_bytes),
            lost: since(|it| it.refused) + since(|it| it.missed),
            sessions: port.sessions,
        }
    };
    let mut ports: Vec<PortRates> = now.ports.iter().map(port).collect();
    ports.sort_by(|a, b| {
        let both = |it: &PortRates| it.received + it.sent;
        both(b).total_cmp(&both(a)).then_with(|| a.name.cmp(&b.name))
    });
    let busy = now.workers.iter().map(|worker| {
        let known = before.workers.iter().find(|it| it.worker == worker.worker);
        let (busy, idle) = known.map_or((0, 0), |it| (it.busy_rounds, it.idle_rounds));
        let (busy, idle) = (rate(worker.busy_rounds, busy), rate(worker.idle_rounds, idle));
        if busy + idle > 0.0 { busy / (busy + idle) } else { 0.0 }
    });
    Rates {
        node: now.node.clone(),
        seconds,
        forwarded: packets("forward"),
        dropped: packets("drop"),
        consumed: packets("consume"),
        busy: busy.collect(),
        sessions: now.sessions.used,
        capacity: now.sessions.capacity,
        ports,
    }
}

fn text(rates: &Rates) -> String {
    let mut text = String::new();
    let busy: Vec<String> =
        rates.busy.iter().map(|share| format!("{:.0} %", share * 100.0)).collect();
    let lines = [
        ("Node:", rates.node.clone()),
        (
            "Packets:",
            format!(
                "{} forwarded, {} dropped, {} for the switch itself, a second",
                short(rates.forwarded),
                short(rates.dropped),
                short(rates.consumed)
            ),
        ),
        ("Workers:", format!("{} of their rounds busy", busy.join(", "))),
        ("Sessions:", format!("{} of {}", rates.sessions, rates.capacity)),
    ];
    for (name, value) in lines {
        // A string grows.
        let _ = writeln!(text, "{name:<10}{value}");
    }
    let head = ["PORT", "RX/s", "RX bit/s", "TX/s", "TX bit/s", "LOST/s", "SESSIONS"];
    let cells = |port: &PortRates| {
        [
            port.name.clone(),
            short(port.received),
            short(port.received_bits),
            short(port.sent),
            short(port.sent_bits),
            short(port.lost),
            port.sessions.to_string(),
        ]
    };
    let rows: Vec<[String; 7]> = rates.ports.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    text.push('\n');
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    for row in std::iter::once(head).chain(rows) {
        let first = width(0);
        let _ = write!(text, "{:<first$}", row[0]);
        for (column, cell) in row.iter().enumerate().skip(1) {
            let width = width(column);
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

/// A rate with three figures at most and a unit: `1.2M`.
fn short(rate: f64) -> String {
    let units = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match units.into_iter().find(|(_, factor)| rate >= *factor) {
        Some((unit, factor)) if rate < 10.0 * factor => format!("{:.1}{unit}", rate / factor),
        Some((unit, factor)) => format!("{:.0}{unit}", rate / factor),
        None => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        let cases =
            [(0.0, "0"), (999.0, "999"), (1500.0, "1.5k"), (12_345.0, "12k"), (3.4e9, "3.4G")];
        for (rate, expected) in cases {
            assert_eq!(short(rate), expected);
        }
    }
}
