//! The expected verdict on a packet, in the form that `podgate replay -o json` prints.

use std::collections::BTreeMap;

use serde::Serialize;

/// The line printed for one packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// The packet's place in the capture, from 1.
    pub n: usize,
    /// The port it entered by.
    pub r#in: String,
    /// The port it left by; none if it did not leave.
    pub out: Option<String>,
    /// `forward`, `drop` or `consume`.
    pub verdict: &'static str,
    /// The name of the outcome.
    pub reason: &'static str,
    /// The deciding policies.
    pub by: Vec<String>,
}

/// The last line: counts over all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Packets in the capture.
    pub packets: usize,
    /// Packets that left the switch.
    pub forward: usize,
    /// Packets that did not.
    pub drop: usize,
    /// Packets that the switch answered or kept for itself.
    pub consume: usize,
    /// Packets by the name of their outcome.
    pub reasons: BTreeMap<&'static str, usize>,
}

impl Summary {
    /// Counts `lines`.
    pub fn of(lines: &[Expected]) -> Self {
        let mut summary = Self { packets: lines.len(), ..Self::default() };
        for line in lines {
            match line.verdict {
                "forward" => summary.forward += 1,
                "drop" => summary.drop += 1,
                _ => summary.consume += 1,
            }
            *summary.reasons.entry(line.reason).or_default() += 1;
        }
        summary
    }
}
