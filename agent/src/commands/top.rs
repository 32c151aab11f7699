//! `podgate top`: shows packet rates of the running switch.
//!
//! Rates are the differences of two answers to `status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;
use serde_json::Value;

use super::call::{Socket, refused};
use super::observe::reconnect;
use crate::config::Span;
use crate::run::{PortStatus, Status, Table};
use cli::{NO, UNUSABLE, fail, write};
use cli::{Output, print};
use local_api::{Client, ClientError, Request, Show};

/// Arguments of `podgate top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The busiest ports come first. On a terminal the screen is drawn anew each time, and keys work:
  q  end
  s  sort by the next column: packets, lost, sessions, name
  /  show only ports whose name holds what is typed up to Enter
When the switch is restarted, the next one is measured.

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

    /// How long the next switch is waited for after one has ended
    #[arg(long, value_name = "TIME", default_value = "30s")]
    reconnect: Span,

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
    /// Dropped packets by reason, the most frequent first.
    drops: Vec<DropRate>,
    /// Pairs with the most sessions.
    peers: Vec<Peers>,
}

/// Packets dropped for one reason, a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct DropRate {
    reason: String,
    rate: f64,
}

/// Two ends with their sessions.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Peers {
    from: String,
    to: String,
    sessions: usize,
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

/// One measurement.
struct Sample {
    at: Instant,
    status: Status,
    /// Packets dropped so far, by reason.
    drops: BTreeMap<String, u64>,
    peers: Vec<Peers>,
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
    let mut before = match sample(&mut client) {
        Ok(sample) => sample,
        Err(error) => return refused(&error),
    };
    let screen = args.output == Output::Text && std::io::stdout().is_terminal();
    let keys = if screen { Keys::new() } else { None };
    let mut shown = Shown::default();
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut last: Option<Rates> = None;
    while left > 0 {
        if wait(args, keys.as_ref(), &mut shown, last.as_ref()) {
            return ExitCode::SUCCESS;
        }
        let now = match sample(&mut client) {
            Ok(sample) => sample,
            Err(error @ ClientError::Refused(_)) => return refused(&error),
            Err(_) => {
                eprintln!("podgate: the switch has ended; waiting for another one");
                client = match reconnect(&args.socket, args.reconnect.0) {
                    Some(client) => client,
                    None => return fail(NO, "the switch has ended, and no other one has begun"),
                };
                eprintln!("podgate: connected again");
                match sample(&mut client) {
                    // It counts from 0: this interval gives no rates.
                    Ok(sample) => before = sample,
                    Err(error) => return refused(&error),
                }
                continue;
            }
        };
        left -= 1;
        let mut rates = rates(&before, &now);
        before = now;
        let text = match args.output {
            Output::Text if screen => shown.screen(&rates, args.ports),
            Output::Text => {
                rates.ports.truncate(args.ports);
                text(&rates)
            }
            Output::Json => {
                rates.ports.truncate(args.ports);
                match serde_json::to_string(&rates) {
                    Ok(line) => line + "\n",
                    Err(error) => return fail(NO, error),
                }
            }
        };
        last = Some(rates);
        let written = print(&text);
        if written != ExitCode::SUCCESS {
            return written;
        }
        let _ = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

/// Waits for the next measurement and follows keys; `true` if one ends the command.
fn wait(args: &Args, keys: Option<&Keys>, shown: &mut Shown, last: Option<&Rates>) -> bool {
    let next = Instant::now() + args.interval.0;
    while let Some(time) = next.checked_duration_since(Instant::now()) {
        let Some(keys) = keys else {
            std::thread::sleep(time);
            return false;
        };
        let Some(key) = keys.next(time) else { return false };
        if shown.press(key) {
            return true;
        }
        if let Some(rates) = last {
            let _ = write(&shown.screen(rates, args.ports));
        }
    }
    false
}

/// What a screen shows, as keys have set it.
#[derive(Default)]
struct Shown {
    order: usize,
    filter: String,
    typing: bool,
}

const ORDERS: [&str; 4] = ["packets", "lost", "sessions", "name"];

impl Shown {
    /// Whether a key ends the command.
    fn press(&mut self, key: u8) -> bool {
        match (self.typing, key) {
            (true, b'\r' | b'\n') => self.typing = false,
            (true, 8 | 127) => drop(self.filter.pop()),
            (true, 27) => (self.typing, self.filter) = (false, String::new()),
            (true, key) if key.is_ascii_graphic() => self.filter.push(key.into()),
            (true, _) => {}
            (false, b'q' | b'Q') => return true,
            (false, b's') => self.order = (self.order + 1) % ORDERS.len(),
            (false, b'/') => (self.typing, self.filter) = (true, String::new()),
            (false, _) => {}
        }
        false
    }

    /// The ports that are shown, in their order.
    fn apply(&self, rates: &mut Rates, most: usize) {
        rates.ports.retain(|port| port.name.contains(&self.filter));
        rates.ports.sort_by(|a, b| {
            let by_name = || a.name.cmp(&b.name);
            match self.order {
                1 => b.lost.total_cmp(&a.lost).then_with(by_name),
                2 => b.sessions.cmp(&a.sessions).then_with(by_name),
                3 => by_name(),
                _ => {
                    let both = |it: &PortRates| it.received + it.sent;
                    both(b).total_cmp(&both(a)).then_with(by_name)
                }
            }
        });
        rates.ports.truncate(most);
    }

    fn screen(&self, rates: &Rates, most: usize) -> String {
        let mut rates = rates.clone();
        self.apply(&mut rates, most);
        let cursor = if self.typing { "_" } else { "" };
        let filter = match (self.typing, self.filter.is_empty()) {
            (false, true) => String::new(),
            _ => format!("   /{}{cursor}", self.filter),
        };
        let keys = format!("by {}{filter}   (q end, s sort, / filter)\n", ORDERS[self.order]);
        format!("\x1b[H\x1b[2J{}\n{keys}", text(&rates))
    }
}

/// Keys of the terminal, one at a time. The terminal is as before once this is dropped.
struct Keys {
    pressed: Receiver<u8>,
    before: Termios,
}

impl Keys {
    /// `None` if standard input is no terminal.
    fn new() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        // Keys as they are pressed, without an echo; signals and line feeds stay.
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        let (sender, pressed) = channel();
        std::thread::spawn(move || {
            for key in std::io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(key).is_err() {
                    return;
                }
            }
        });
        Some(Self { pressed, before })
    }

    fn next(&self, wait: Duration) -> Option<u8> {
        match self.pressed.recv_timeout(wait) {
            Ok(key) => Some(key),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(wait);
                None
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn sample(client: &mut Client) -> Result<Sample, ClientError> {
    let broken = |error: serde_json::Error| ClientError::Broken {
        socket: Default::default(),
        cause: error.to_string(),
    };
    let status = client.call(&Request::Status)?;
    let at = Instant::now();
    let status = serde_json::from_value(status).map_err(broken)?;
    let mut table = |what: &str| -> Result<Table, ClientError> {
        let request = Request::Show(Show { what: what.to_owned(), ..Show::default() });
        serde_json::from_value(client.call(&request)?).map_err(broken)
    };
    let (errors, sessions) = (table("errors")?, table("sessions")?);
    let drops = errors.rows.iter().filter(|row| cell(&errors, row, "verdict") == "drop");
    let drops = drops.map(|row| {
        let count = cell(&errors, row, "packets").parse().unwrap_or(0);
        (cell(&errors, row, "reason"), count)
    });
    Ok(Sample { at, status, drops: drops.collect(), peers: peers(&sessions) })
}

/// The text of a cell, empty where there is no such column.
fn cell(table: &Table, row: &[Value], column: &str) -> String {
    match table.column(column).and_then(|at| row.get(at)) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// Pairs shown at most.
const PEERS: usize = 5;

/// The pairs of ends with the most sessions.
fn peers(sessions: &Table) -> Vec<Peers> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for row in &sessions.rows {
        let end = |name: &str, address: &str| {
            let name = cell(sessions, row, name);
            if name.is_empty() { cell(sessions, row, address) } else { name }
        };
        *counts.entry((end("from", "from_address"), end("to", "to_address"))).or_default() += 1;
    }
    let mut peers: Vec<Peers> =
        counts.into_iter().map(|((from, to), sessions)| Peers { from, to, sessions }).collect();
    peers.sort_by_key(|it| std::cmp::Reverse(it.sessions));
    peers.truncate(PEERS);
    peers
}

fn rates(earlier: &Sample, later: &Sample) -> Rates {
    let seconds = (later.at - earlier.at).as_secs_f64().max(1e-6);
    let (before, now) = (&earlier.status, &later.status);
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
    let drops = later.drops.iter().map(|(reason, count)| {
        let known = earlier.drops.get(reason).copied().unwrap_or(0);
        DropRate { reason: reason.clone(), rate: rate(*count, known) }
    });
    let mut drops: Vec<DropRate> = drops.filter(|it| it.rate > 0.0).collect();
    drops.sort_by(|a, b| b.rate.total_cmp(&a.rate));
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
        drops,
        peers: later.peers.clone(),
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
    let drops = rates.drops.iter().map(|it| format!("{} {}", short(it.rate), it.reason));
    let drops: Vec<String> = drops.collect();
    let peers = rates.peers.iter().map(|it| format!("{} -> {} ({})", it.from, it.to, it.sessions));
    let peers: Vec<String> = peers.collect();
    let more = [("Drops:", drops.join(", ")), ("Peers:", peers.join(", "))];
    let more = more.into_iter().filter(|(_, value)| !value.is_empty());
    for (name, value) in lines.into_iter().chain(more) {
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

    #[test]
    fn keys_sort_filter_and_end() {
        let port = |name: &str, received: f64, lost: f64| PortRates {
            name: name.into(),
            worker: None,
            received,
            received_bits: 0.0,
            sent: 0.0,
            sent_bits: 0.0,
            lost,
            sessions: 0,
        };
        let rates = Rates {
            node: "n".into(),
            seconds: 1.0,
            forwarded: 0.0,
            dropped: 0.0,
            consumed: 0.0,
            busy: Vec::new(),
            sessions: 0,
            capacity: 1,
            ports: vec![port("a/db", 1.0, 9.0), port("b/web", 5.0, 0.0), port("host", 2.0, 0.0)],
            drops: vec![DropRate { reason: "policy-denied".into(), rate: 3.0 }],
            peers: vec![Peers { from: "b/web".into(), to: "a/db".into(), sessions: 2 }],
        };
        let mut shown = Shown::default();
        let names = |shown: &Shown| -> Vec<String> {
            let mut rates = rates.clone();
            shown.apply(&mut rates, 20);
            rates.ports.into_iter().map(|port| port.name).collect()
        };
        assert_eq!(names(&shown), ["b/web", "host", "a/db"]);
        assert!(!shown.press(b's'));
        assert_eq!(names(&shown), ["a/db", "b/web", "host"]);
        "/dbx".bytes().for_each(|key| assert!(!shown.press(key)));
        assert!(!shown.press(127) && !shown.press(b'q') && !shown.press(127));
        assert!(!shown.press(b'\r'));
        assert_eq!(names(&shown), ["a/db"]);
        let screen = shown.screen(&rates, 20);
        for part in
            ["Drops:    3 policy-denied\n", "Peers:    b/web -> a/db (2)\n", "by lost   /db "]
        {
            assert!(screen.contains(part), "{screen}");
        }
        assert!(shown.press(b'q'));
    }
}
