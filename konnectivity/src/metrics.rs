//! Metric families of both roles, under the original's names.

use std::fmt;
use std::sync::OnceLock;

use telemetry::prometheus::core::Collector;
use telemetry::prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use telemetry::{Text, process_metrics};

use crate::grpc::Code;
use crate::kubernetes::Answered;
use crate::packet::Packet;

/// Registers one role's families.
#[derive(Debug)]
pub(crate) struct Families {
    registry: Registry,
    subsystem: &'static str,
}

impl Families {
    /// `role` stands between prefix and name: `server` or `agent`.
    pub(crate) fn new(role: &'static str) -> Self {
        Self { registry: Registry::new(), subsystem: role }
    }

    pub(crate) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::with_opts(self.options(name, help)))
    }

    pub(crate) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(self.options(name, help), labels))
    }

    pub(crate) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::with_opts(self.options(name, help)))
    }

    pub(crate) fn gauges(&self, name: &str, help: &str, label: &str) -> IntGaugeVec {
        self.add(IntGaugeVec::new(self.options(name, help), &[label]))
    }

    /// Upper bounds of the buckets are in seconds.
    pub(crate) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let options = HistogramOpts::from(self.options(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(options))
    }

    pub(crate) fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        label: &str,
    ) -> HistogramVec {
        let options = HistogramOpts::from(self.options(name, help)).buckets(buckets.to_vec());
        self.add(HistogramVec::new(options, &[label]))
    }

    pub(crate) fn stream_packets(&self) -> IntCounterVec {
        let help = "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)";
        self.counters("stream_packets_total", help, &["segment", "packet_type"])
    }

    pub(crate) fn stream_errors(&self) -> StreamErrors {
        let help = "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: \
                    from_agent, Code.Unavailable, DIAL_RSP)";
        let labels = ["segment", "code", "packet_type"];
        StreamErrors(self.counters("stream_errors_total", help, &labels))
    }

    /// Every family that has a sample, and the process's own.
    pub(crate) fn text(&self) -> String {
        self.registry.text() + &process_metrics()
    }

    fn options(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace("konnectivity_network_proxy").subsystem(self.subsystem)
    }

    fn add<C: Collector + Clone + 'static>(
        &self,
        family: Result<C, telemetry::prometheus::Error>,
    ) -> C {
        let family = family.expect("a family's name and labels are constants");
        self.registry.register(Box::new(family.clone())).expect("a family's name is used once");
        family
    }
}

/// Requests of one kind to the API server: their number and latency.
#[derive(Debug)]
pub(crate) struct Requests {
    number: IntCounterVec,
    latency: HistogramVec,
}

impl Requests {
    /// The labels of `number` are code and reason, that of `latency` is the code.
    pub(crate) fn new(number: IntCounterVec, latency: HistogramVec) -> Self {
        Self { number, latency }
    }

    pub(crate) fn observe(&self, answered: &Answered) {
        let (code, reason) = (answered.code.to_string(), answered.reason.as_str());
        self.number.with_label_values(&[code.as_str(), reason]).inc();
        let seconds = answered.took.as_secs_f64();
        self.latency.with_label_values(&[code.as_str()]).observe(seconds);
    }
}

/// Streams that ended with an error.
#[derive(Debug)]
pub(crate) struct StreamErrors(IntCounterVec);

impl StreamErrors {
    /// No packet is at fault; the original calls its type `Unknown`.
    pub(crate) fn add(&self, segment: &str, code: Code) {
        self.0.with_label_values(&[segment, &format!("{code:?}"), "Unknown"]).inc();
    }
}

/// Packets by type, on one segment.
pub(crate) struct Packets {
    family: IntCounterVec,
    segment: &'static str,
    /// Looked up at the first packet of its type, so that only types that occurred are shown.
    counters: [OnceLock<IntCounter>; KINDS.len()],
}

const KINDS: [&str; 8] =
    ["DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN", "CREDIT"];
const DATA: usize = 4;

impl Packets {
    pub(crate) fn new(family: &IntCounterVec, segment: &'static str) -> Self {
        Self { family: family.clone(), segment, counters: Default::default() }
    }

    pub(crate) fn count(&self, packet: &Packet) {
        self.add(match packet {
            Packet::DialRequest { .. } => 0,
            Packet::DialResponse { .. } => 1,
            Packet::CloseRequest { .. } => 2,
            Packet::CloseResponse { .. } => 3,
            Packet::Data { .. } => DATA,
            Packet::DialClosed { .. } => 5,
            Packet::Drain => 6,
            Packet::Credit { .. } => 7,
        });
    }

    /// Counts a data packet that never was a [`Packet`].
    pub(crate) fn count_data(&self) {
        self.add(DATA);
    }

    fn add(&self, kind: usize) {
        let look_up = || self.family.with_label_values(&[self.segment, KINDS[kind]]);
        self.counters[kind].get_or_init(look_up).inc();
    }
}

impl fmt::Debug for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").field("segment", &self.segment).finish_non_exhaustive()
    }
}
