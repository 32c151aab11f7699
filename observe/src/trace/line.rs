//! One packet's trace, as scripts and people read it.

use std::fmt;
use std::sync::Arc;

use dataplane::graph::trace::{End, PacketTrace};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::words;

/// One packet's trace. The names of its fields are fixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its number in the trace, from 1.
    pub n: u64,
    /// Time at which its vector was handled, RFC 3339 in UTC; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Number of the worker.
    pub worker: u16,
    /// Packets in its vector.
    pub vector: u16,
    /// Generation of the snapshot it was decided by.
    pub generation: u64,
    /// Bytes it came with.
    pub length: u32,
    /// The port it came in by: `ns/pod`, `host` or `uplink`.
    #[serde(rename = "in")]
    pub in_port: Option<Arc<str>>,
    /// The port that it, or the switch's answer to it, left by.
    pub out: Option<Arc<str>>,
    /// `forward`, `drop`, `consume`, or `wait` for a fragment that waits for its first.
    pub verdict: String,
    /// Name of the outcome, as in metrics; absent while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in words.
    pub meaning: String,
    /// True if the switch sent an ICMP error to its sender.
    pub answered: bool,
    /// The nodes it passed, in order.
    pub trace: Vec<NodeDecision>,
}

/// Decision of one graph node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDecision {
    /// The node.
    pub node: String,
    /// The next node; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The node's findings and decision, in words.
    pub says: String,
    /// The same in fields that belong to the node.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Description of a packet that waits.
const WAITS: &str = "A later fragment that waits for its first.";

impl Line {
    /// The line of a trace.
    pub fn new(n: u64, time: Option<String>, trace: &PacketTrace) -> Self {
        let (verdict, reason, meaning, out, answered) = match &trace.end {
            End::Waits => ("wait", None, WAITS, None, false),
            End::Done { outcome, out_port, answered } => (
                outcome.verdict().name(),
                Some(outcome.name().to_owned()),
                outcome.meaning(),
                out_port.clone(),
                *answered,
            ),
        };
        Self {
            n,
            time,
            worker: trace.worker,
            vector: trace.vector,
            generation: trace.generation,
            length: trace.length,
            in_port: trace.in_port.clone(),
            out,
            verdict: verdict.to_owned(),
            reason,
            meaning: meaning.to_owned(),
            answered,
            trace: decisions(trace),
        }
    }

    /// The end, in words.
    fn write_end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.as_deref().map(|reason| format!(" {reason}")).unwrap_or_default();
        let out = match (&self.out, self.answered) {
            (None, _) => String::new(),
            (Some(out), false) => format!(", out by {out}"),
            (Some(out), true) => format!(", an answer out by {out}"),
        };
        writeln!(f, "    = {}{reason}{out}: {}", self.verdict, self.meaning)
    }
}

/// A line for each node.
pub fn write_decisions(
    f: &mut impl fmt::Write,
    decisions: impl IntoIterator<Item = NodeDecision>,
) -> fmt::Result {
    let mut decisions = decisions.into_iter();
    decisions.try_for_each(|it| writeln!(f, "    {:<14} {}", it.node, it.says))
}

/// Returns the decision of each node of a trace.
pub fn decisions(trace: &PacketTrace) -> Vec<NodeDecision> {
    let decision = |step| {
        let (says, fields) = words::of(step);
        NodeDecision {
            node: step.node.name().to_owned(),
            next: step.next.map(|next| next.name().to_owned()),
            says,
            fields,
        }
    };
    trace.steps.iter().map(decision).collect()
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, worker, vector, generation, length, .. } = self;
        let time = self.time.as_deref().unwrap_or("-");
        let port = self.in_port.as_deref().unwrap_or("a port that is gone");
        writeln!(
            f,
            "{n}: {time} in by {port}, {length} bytes (worker {worker}, vector of {vector}, \
             snapshot {generation})"
        )?;
        write_decisions(f, self.trace.iter().cloned())?;
        self.write_end(f)
    }
}
