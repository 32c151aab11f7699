//! Counters, gauges and histograms, and the text a scraper reads (Prometheus text format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::packet::Packet;

/// What every family's name begins with.
const PREFIX: &str = "konnectivity_network_proxy";

/// A number that goes up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    pub(crate) fn add(&self, count: i64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters by the values of their labels; for what happens rarely.
#[derive(Debug, Default)]
pub(crate) struct Labelled(Mutex<BTreeMap<Vec<String>, u64>>);

impl Labelled {
    pub(crate) fn add(&self, labels: &[&str]) {
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }
}

/// How long things took. Upper bounds in seconds, as the original has them.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<AtomicU64>,
    nanos: AtomicU64,
}

/// For dials and writes.
pub(crate) const LATENCIES: &[f64] =
    &[0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
/// For whole connections.
pub(crate) const LIFETIMES: &[f64] =
    &[0.005, 0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0];

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, nanos: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.iter().position(|bound| seconds <= *bound);
        self.buckets[at.unwrap_or(self.bounds.len())].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Packets by type, in one direction of one kind of stream.
#[derive(Debug, Default)]
pub(crate) struct Packets([Counter; KINDS.len()]);

const KINDS: [&str; 8] =
    ["DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN", "CREDIT"];

impl Packets {
    pub(crate) fn count(&self, packet: &Packet) {
        let index = match packet {
            Packet::DialRequest { .. } => 0,
            Packet::DialResponse { .. } => 1,
            Packet::CloseRequest { .. } => 2,
            Packet::CloseResponse { .. } => 3,
            Packet::Data { .. } => 4,
            Packet::DialClosed { .. } => 5,
            Packet::Drain => 6,
            Packet::Credit { .. } => 7,
        };
        self.0[index].add(1);
    }

    /// Counts a data packet that never was a [`Packet`].
    pub(crate) fn count_data(&self) {
        self.0[4].add(1);
    }
}

/// The text of all families, written one after the other.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    role: &'static str,
}

impl Page {
    /// `role` stands between prefix and name: `server` or `agent`.
    pub(crate) fn new(role: &'static str) -> Self {
        Self { text: String::new(), role }
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = self.family(name, "counter", help);
        self.sample(&name, &[], value);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        let name = self.family(name, "gauge", help);
        self.sample(&name, &[], value);
    }

    pub(crate) fn gauges(&mut self, name: &str, help: &str, label: &str, values: &[(&str, i64)]) {
        let name = self.family(name, "gauge", help);
        for (value_of_label, value) in values {
            self.sample(&name, &[(label, value_of_label)], value);
        }
    }

    pub(crate) fn labelled(&mut self, name: &str, help: &str, labels: &[&str], of: &Labelled) {
        let name = self.family(name, "counter", help);
        for (values, count) in of.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let pairs: Vec<(&str, &str)> =
                labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            self.sample(&name, &pairs, count);
        }
    }

    pub(crate) fn packets(&mut self, segments: &[(&str, &Packets)]) {
        let name = self.family("stream_packets_total", "counter", "Packets, by way and type.");
        for (segment, packets) in segments {
            for (kind, counter) in KINDS.iter().zip(&packets.0) {
                if counter.value() > 0 {
                    let labels = [("segment", *segment), ("packet_type", *kind)];
                    self.sample(&name, &labels, counter.value());
                }
            }
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, of: &Histogram) {
        let name = self.family(name, "histogram", help);
        let mut count = 0;
        let bucket = format!("{name}_bucket");
        for (at, cell) in of.buckets.iter().enumerate() {
            count += cell.load(Ordering::Relaxed);
            let bound = of.bounds.get(at).map_or("+Inf".to_owned(), f64::to_string);
            self.sample(&bucket, &[("le", &bound)], count);
        }
        let seconds = of.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        self.sample(&format!("{name}_sum"), &[], seconds);
        self.sample(&format!("{name}_count"), &[], count);
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) -> String {
        let name = format!("{PREFIX}_{}_{name}", self.role);
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        name
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string grows");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format() {
        let mut page = Page::new("server");
        let labelled = Labelled::default();
        labelled.add(&["a\"b"]);
        labelled.add(&["a\"b"]);
        page.labelled("dial_failure_count", "Failures.", &["reason"], &labelled);
        let packets = Packets::default();
        packets.count(&Packet::Drain);
        page.packets(&[("from_agent", &packets)]);
        let histogram = Histogram::new(&[0.5, 2.5]);
        histogram.observe(Duration::from_secs(1));
        histogram.observe(Duration::from_secs(3));
        page.histogram("dial_duration_seconds", "Dials.", &histogram);
        let name = "konnectivity_network_proxy_server";
        let wanted = format!(
            "# HELP {name}_dial_failure_count Failures.\n\
             # TYPE {name}_dial_failure_count counter\n\
             {name}_dial_failure_count{{reason=\"a\\\"b\"}} 2\n\
             # HELP {name}_stream_packets_total Packets, by way and type.\n\
             # TYPE {name}_stream_packets_total counter\n\
             {name}_stream_packets_total{{segment=\"from_agent\",packet_type=\"DRAIN\"}} 1\n\
             # HELP {name}_dial_duration_seconds Dials.\n\
             # TYPE {name}_dial_duration_seconds histogram\n\
             {name}_dial_duration_seconds_bucket{{le=\"0.5\"}} 0\n\
             {name}_dial_duration_seconds_bucket{{le=\"2.5\"}} 1\n\
             {name}_dial_duration_seconds_bucket{{le=\"+Inf\"}} 2\n\
             {name}_dial_duration_seconds_sum 4\n\
             {name}_dial_duration_seconds_count 2\n"
        );
        assert_eq!(page.into_text(), wanted);
    }
}
