//! Prints a line for each packet and a summary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use acl::{Address, Origin};
use cli_runtime::counted;
use dataplane::Verdict;
use dataplane::wire::{Flow, protocol};
use serde::Serialize;

use super::offline::Passed;
use observe::trace::{NodeDecision, decisions, write_decisions};
use observe::verdicts::Protocol;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table to read.
    Text,
    /// One line of JSON for each packet, one for the summary.
    Json,
}

/// One packet in JSON.
#[derive(Serialize)]
struct Line<'a> {
    n: u64,
    r#in: &'a str,
    out: Option<&'a str>,
    verdict: &'static str,
    reason: &'static str,
    by: &'a [Origin],
    /// True if the capture has only the beginning of the packet, with its headers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<Vec<NodeDecision>>,
}

/// The last line in JSON.
#[derive(Serialize)]
struct Last<'a> {
    summary: &'a Summary,
}

/// Counts over all packets.
#[derive(Default, Serialize)]
struct Summary {
    packets: u64,
    forward: u64,
    drop: u64,
    consume: u64,
    reasons: BTreeMap<&'static str, u64>,
    /// Packets that were decided about by their headers alone.
    #[serde(skip_serializing_if = "is_zero")]
    cut: u64,
    /// Packets of interfaces of another kind than Ethernet, raw IP and Linux's cooked captures.
    #[serde(skip_serializing_if = "is_zero")]
    other_link_types: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Prints verdicts as they come, and counts them.
pub(super) struct Report<'a, W> {
    output: Output,
    to: &'a mut W,
    summary: Summary,
    /// Packets that are done while earlier ones wait, by number.
    ahead: BTreeMap<u64, Passed>,
    /// Packets under way of which the capture has the beginning.
    cut: BTreeSet<u64>,
}

impl<'a, W: Write> Report<'a, W> {
    pub(super) fn new(output: Output, to: &'a mut W) -> Self {
        let (ahead, cut) = (BTreeMap::new(), BTreeSet::new());
        Self { output, to, summary: Summary::default(), ahead, cut }
    }

    /// Notes that the capture has only the beginning of a packet.
    pub(super) fn is_cut(&mut self, n: u64) {
        self.cut.insert(n);
    }

    /// Notes packets that were no records.
    pub(super) fn passed_over(&mut self, count: u64) {
        self.summary.other_link_types = count;
    }

    /// Takes packets that are done, and prints all up to the first one that is missing.
    pub(super) fn packets(&mut self, done: Vec<Passed>) -> io::Result<()> {
        self.ahead.extend(done.into_iter().map(|passed| (passed.n, passed)));
        while let Some(passed) = self.ahead.remove(&(self.summary.packets + 1)) {
            self.packet(&passed)?;
        }
        Ok(())
    }

    fn packet(&mut self, passed: &Passed) -> io::Result<()> {
        let (verdict, reason) = (passed.outcome.verdict(), passed.outcome.name());
        self.summary.count(verdict, reason);
        let n = self.summary.packets;
        let cut = self.cut.remove(&n);
        self.summary.cut += u64::from(cut);
        let by = &passed.by[..];
        let (entry, exit) = (&*passed.entry, passed.exit.as_deref());
        match self.output {
            Output::Json => {
                let followed = !passed.traces.is_empty();
                let trace = followed.then(|| passed.traces.iter().flat_map(decisions).collect());
                let verdict = verdict.name();
                let line = Line { n, r#in: entry, out: exit, verdict, reason, by, cut, trace };
                serde_json::to_writer(&mut *self.to, &line)?;
                writeln!(self.to)
            }
            Output::Text => {
                let seconds = passed.at.0.as_secs_f64();
                let way = format!("{entry} > {}", exit.unwrap_or("-"));
                let flow = passed.flow.map(|flow| Ends(flow).to_string()).unwrap_or_default();
                let why = match by {
                    [] => reason.to_string(),
                    by => {
                        let by: Vec<_> = by.iter().map(ToString::to_string).collect();
                        format!("{reason} ({})", by.join("; "))
                    }
                };
                let verdict = verdict.name();
                let why =
                    why + if cut { ", by its headers: the rest was not captured" } else { "" };
                writeln!(
                    self.to,
                    "{n:>6} {seconds:>12.6}  {way:<36} {flow:<44} {verdict:<8} {why}"
                )?;
                let mut trace = String::new();
                write_decisions(&mut trace, passed.traces.iter().flat_map(decisions))
                    .map_err(io::Error::other)?;
                self.to.write_all(trace.as_bytes())
            }
        }
    }

    /// Prints the counts.
    pub(super) fn summary(&mut self) -> io::Result<()> {
        let Self { output, to, summary, .. } = self;
        match output {
            Output::Json => {
                serde_json::to_writer(&mut *to, &Last { summary })?;
                writeln!(to)?;
            }
            Output::Text => {
                let Summary { packets, forward, drop, consume, .. } = summary;
                writeln!(
                    to,
                    "{}: {forward} forwarded, {drop} dropped, {consume} consumed",
                    counted(*packets, "packet")
                )?;
                if summary.other_link_types > 0 {
                    let other = counted(summary.other_link_types, "packet");
                    writeln!(to, "{other} of interfaces of another link type left out")?;
                }
                for (reason, count) in &summary.reasons {
                    writeln!(to, "{count:>6} {reason}")?;
                }
            }
        }
        self.flush()
    }

    /// Flushes the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Summary {
    fn count(&mut self, verdict: Verdict, reason: &'static str) {
        self.packets += 1;
        match verdict {
            Verdict::Forward => self.forward += 1,
            Verdict::Drop => self.drop += 1,
            Verdict::Consume => self.consume += 1,
        }
        *self.reasons.entry(reason).or_default() += 1;
    }
}

/// Both ends of a flow, such as `TCP 10.1.1.2:40000 > 10.1.1.3:6379`.
struct Ends(Flow);

impl Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(flow) = self;
        let end = |address: Address, port: u16| -> String {
            let ip: IpAddr = address.to_ip();
            match flow.protocol {
                protocol::TCP | protocol::UDP | protocol::SCTP => {
                    SocketAddr::new(ip, port).to_string()
                }
                _ => ip.to_string(),
            }
        };
        let (from, to) =
            (end(flow.source, flow.source_port), end(flow.destination, flow.destination_port));
        let name = Protocol(flow.protocol).to_string();
        let kind = if name.starts_with(|c: char| c.is_ascii_digit()) { "IP " } else { "" };
        write!(f, "{kind}{name} {from} > {to}")
    }
}
