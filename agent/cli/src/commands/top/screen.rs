//! The screen of `top`: rates as text, and keys that choose among them.

use std::fmt::Write as _;

use agent::run::Table;
use cli_runtime::plain_lines;

use super::rates::Rates;

/// The state of a screen, as keys have set it.
#[derive(Default)]
pub(super) struct Shown {
    order: usize,
    filter: String,
    typing: bool,
}

const ORDERS: [&str; 4] = ["packets", "lost", "sessions", "name"];

impl Shown {
    /// Whether a key ends the command.
    pub(super) fn press(&mut self, key: u8) -> bool {
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
                _ => a.busiest_first(b).then_with(by_name),
            }
        });
        rates.ports.truncate(most);
    }

    /// The screen, whole.
    pub(super) fn screen(&self, rates: &Rates, most: usize) -> String {
        let mut rates = rates.clone();
        self.apply(&mut rates, most);
        let cursor = if self.typing { "_" } else { "" };
        let filter = match (self.typing, self.filter.is_empty()) {
            (false, true) => String::new(),
            _ => format!("   /{}{cursor}", self.filter),
        };
        let keys = format!("by {}{filter}   (q end, s sort, / filter)\n", ORDERS[self.order]);
        format!("\x1b[H\x1b[2J{}\n{keys}", plain_lines(&text(&rates)))
    }
}

/// Rates for people.
pub(super) fn text(rates: &Rates) -> String {
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
    let mut ports = Table::new(&[
        "port",
        "rx_per_s",
        "rx_bit_per_s",
        "tx_per_s",
        "tx_bit_per_s",
        "lost_per_s",
        "sessions",
    ]);
    for port in &rates.ports {
        let rates = [port.received, port.received_bits, port.sent, port.sent_bits, port.lost];
        let rates = rates.map(|rate| short(rate).into());
        let ends = ([port.name.as_str().into()], [port.sessions.into()]);
        ports.rows.push([&ends.0[..], &rates, &ends.1].concat());
    }
    format!("{text}\n{ports}")
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
    use crate::commands::top::rates::{DropRate, Peers, PortRates};

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
