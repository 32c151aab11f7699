//! The notation scenarios are written in.
//!
//! ```
//! use pcap_fixtures::Scenario;
//! use testkit::packet::tcp;
//!
//! let mut s = Scenario::new("two-pods", "node1", "what this is for");
//! s.from("default/a", tcp("10.1.1.2:40000", "10.1.1.3:80").syn())
//!     .allowed("default/b", &["default-allow"]);
//! s.from("default/b", tcp("10.1.1.3:80", "10.1.1.2:40000").syn_ack()).session("default/a");
//! assert_eq!(s.expected().len(), 2);
//! ```

use std::io;
use std::time::Duration;

use dataplane::capture::Writer;

use crate::expectation::Expected;

/// The moment every scenario begins: 2026-01-01 00:00 UTC, in seconds since 1970.
const START: Duration = Duration::from_secs(1_767_225_600);

/// Packets, each with the verdict it must get.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The folder's name.
    pub name: &'static str,
    /// The node whose switch the packets pass.
    pub node: &'static str,
    /// Purpose of the fixture, in a line.
    pub point: &'static str,
    /// Whether the capture is classic pcap: big-endian, nanoseconds, no interface names.
    pub classic: bool,
    /// Further arguments of `podgate replay`, beside manifests, node and capture.
    pub arguments: &'static [&'static str],
    now: Duration,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    time: Duration,
    /// The interface the capture names.
    interface: Option<String>,
    frame: Vec<u8>,
    original_length: usize,
    expected: Expected,
}

impl Scenario {
    /// A scenario without packets.
    pub fn new(name: &'static str, node: &'static str, point: &'static str) -> Self {
        Self { name, node, point, classic: false, arguments: &[], now: START, steps: Vec::new() }
    }

    /// Writes the capture as classic pcap, which names no interfaces: the switch finds the port by the
    /// source address.
    pub fn classic(mut self) -> Self {
        self.classic = true;
        self
    }

    /// Replays the capture with these arguments.
    pub fn with(mut self, arguments: &'static [&'static str]) -> Self {
        self.arguments = arguments;
        self
    }

    /// The next packet, a millisecond after the last: enters by `port`, which the capture
    /// names. The verdict is to follow.
    pub fn from(&mut self, port: &str, frame: impl Into<Vec<u8>>) -> Sent<'_> {
        Sent {
            port: port.to_string(),
            named: Some(port.to_string()),
            original_length: None,
            frame: frame.into(),
            scenario: self,
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// The expected line of each packet.
    pub fn expected(&self) -> Vec<Expected> {
        self.steps.iter().map(|step| step.expected.clone()).collect()
    }

    /// The capture.
    ///
    /// # Errors
    /// If the writer fails, which it does not in memory.
    pub fn capture(&self) -> io::Result<Vec<u8>> {
        if self.classic {
            return Ok(self.classic_capture());
        }
        let mut writer = Writer::new(Vec::new())?;
        for step in &self.steps {
            let length = step.original_length as u32;
            writer.write(step.interface.as_deref(), step.time, &step.frame, length)?;
        }
        writer.finish()
    }

    /// draft-ietf-opsawg-pcap, in its rare variant.
    fn classic_capture(&self) -> Vec<u8> {
        let header = [0xa1b2_3c4d, 0x0002_0004, 0, 0, 65_535, 1];
        let mut bytes = header.map(u32::to_be_bytes).concat();
        for step in &self.steps {
            let (seconds, nanos) = (step.time.as_secs() as u32, step.time.subsec_nanos());
            let lengths = [step.frame.len() as u32, step.original_length as u32];
            bytes.extend([seconds, nanos, lengths[0], lengths[1]].map(u32::to_be_bytes).concat());
            bytes.extend(&step.frame);
        }
        bytes
    }
}

/// A packet on its way; one of the verdicts ends the sentence.
#[must_use = "a packet without an expected verdict is not sent"]
#[derive(Debug)]
pub struct Sent<'a> {
    scenario: &'a mut Scenario,
    port: String,
    named: Option<String>,
    frame: Vec<u8>,
    original_length: Option<usize>,
}

impl Sent<'_> {
    /// The capture does not say which interface the packet entered by.
    pub fn unnamed(mut self) -> Self {
        self.named = None;
        self
    }

    /// The capture names `interface`; the port it must be taken for stays.
    pub fn named(mut self, interface: &str) -> Self {
        self.named = Some(interface.to_string());
        self
    }

    /// The capture kept only the first `length` bytes.
    pub fn snapped(mut self, length: usize) -> Self {
        self.original_length = Some(self.frame.len());
        self.frame.truncate(length);
        self
    }

    /// Opens a session and leaves by `out`; `by` are the rules that let it.
    pub fn allowed(self, out: &str, by: &[&str]) {
        self.expect(Some(out), "forward", "policy-allowed", by);
    }

    /// Belongs to a session and leaves by `out`.
    pub fn session(self, out: &str) {
        self.expect(Some(out), "forward", "session", &[]);
    }

    /// Leaves by `out` for another `reason`.
    pub fn forwarded(self, out: &str, reason: &'static str) {
        self.expect(Some(out), "forward", reason, &[]);
    }

    /// May not open a session; `by` are the policies that keep it from doing so.
    pub fn denied(self, by: &[&str]) {
        self.expect(None, "drop", "policy-denied", by);
    }

    /// Is dropped for another `reason`.
    pub fn dropped(self, reason: &'static str) {
        self.expect(None, "drop", reason, &[]);
    }

    /// Ends in the switch, which may answer.
    pub fn consumed(self, reason: &'static str) {
        self.expect(None, "consume", reason, &[]);
    }

    fn expect(self, out: Option<&str>, verdict: &'static str, reason: &'static str, by: &[&str]) {
        let Self { scenario, port, named, frame, original_length } = self;
        scenario.now += Duration::from_millis(1);
        scenario.steps.push(Step {
            time: scenario.now,
            interface: named,
            original_length: original_length.unwrap_or(frame.len()),
            frame,
            expected: Expected {
                n: scenario.steps.len() + 1,
                r#in: port,
                out: out.map(str::to_string),
                verdict,
                reason,
                by: by.iter().map(|origin| origin.to_string()).collect(),
            },
        });
    }
}
