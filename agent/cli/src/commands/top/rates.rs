//! Rates: the differences of two measurements.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use agent::run::{PortStatus, Status, Table};
use local_api::{Client, ClientError, Request, Show};

/// Rates over one interval; all are a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Rates {
    /// The node.
    pub(super) node: String,
    /// Length of the measurement, in seconds.
    pub(super) seconds: f64,
    /// Packets that were forwarded, dropped, or meant for the switch.
    pub(super) forwarded: f64,
    pub(super) dropped: f64,
    pub(super) consumed: f64,
    /// Share of rounds that found packets, of each worker.
    pub(super) busy: Vec<f64>,
    /// Sessions there are, and how many fit.
    pub(super) sessions: u32,
    pub(super) capacity: u32,
    /// Ports, the busiest first.
    pub(super) ports: Vec<PortRates>,
    /// Dropped packets by reason, the most frequent first.
    pub(super) drops: Vec<DropRate>,
    /// Pairs with the most sessions.
    pub(super) peers: Vec<Peers>,
}

/// Packets dropped for one reason, a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DropRate {
    pub(super) reason: String,
    pub(super) rate: f64,
}

/// Two ends with their sessions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Peers {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sessions: usize,
}

/// One port's rates a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PortRates {
    pub(crate) name: String,
    pub(crate) worker: Option<usize>,
    pub(crate) received: f64,
    pub(crate) received_bits: f64,
    pub(crate) sent: f64,
    pub(crate) sent_bits: f64,
    /// Frames that could not leave, or were not taken in time.
    pub(crate) lost: f64,
    pub(crate) sessions: u32,
}

impl PortRates {
    /// The rates of a port; one that was not there before has counted from 0.
    pub(crate) fn between(before: Option<&PortStatus>, now: &PortStatus, seconds: f64) -> Self {
        let since = |read: fn(&PortStatus) -> u64| {
            let (earlier, later) = (before.map_or(0, read), read(now));
            // So does one of a switch that was restarted.
            later.checked_sub(earlier).unwrap_or(later) as f64 / seconds
        };
        Self {
            name: now.name.clone(),
            worker: now.worker,
            received: since(|it| it.received),
            received_bits: 8.0 * since(|it| it.received_bytes),
            sent: since(|it| it.sent),
            sent_bits: 8.0 * since(|it| it.sent_bytes),
            lost: since(|it| it.refused) + since(|it| it.missed),
            sessions: now.sessions,
        }
    }

    /// The order of ports by their packets.
    pub(crate) fn busiest_first(&self, other: &Self) -> Ordering {
        let both = |it: &Self| it.received + it.sent;
        both(other).total_cmp(&both(self))
    }
}

/// One measurement.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Status,
    /// Packets dropped so far, by reason.
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) peers: Vec<Peers>,
}

/// Measures now.
pub(super) fn sample(client: &mut Client) -> Result<Sample, ClientError> {
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

/// The rates between two measurements.
pub(super) fn rates(earlier: &Sample, later: &Sample) -> Rates {
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
        PortRates::between(known, port, seconds)
    };
    let mut ports: Vec<PortRates> = now.ports.iter().map(port).collect();
    ports.sort_by(|a, b| a.busiest_first(b).then_with(|| a.name.cmp(&b.name)));
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
