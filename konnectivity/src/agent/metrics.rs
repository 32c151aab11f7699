//! The agent's metrics, under the original's names.

use crate::metrics::{Counter, Gauge, Histogram, LATENCIES, Labelled, Packets, Page};

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) dial_duration: Histogram,
    pub(crate) dial_failures: Labelled,
    pub(crate) server_failures: Labelled,
    pub(crate) open_servers: Gauge,
    pub(crate) known_servers: Gauge,
    pub(crate) open_endpoints: Gauge,
    pub(crate) pending: Gauge,
    pub(crate) stream_errors: Labelled,
    pub(crate) from_server: Packets,
    pub(crate) to_server: Packets,
    pub(crate) slow_targets: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            dial_duration: Histogram::new(LATENCIES),
            dial_failures: Labelled::default(),
            server_failures: Labelled::default(),
            open_servers: Gauge::default(),
            known_servers: Gauge::default(),
            open_endpoints: Gauge::default(),
            pending: Gauge::default(),
            stream_errors: Labelled::default(),
            from_server: Packets::default(),
            to_server: Packets::default(),
            slow_targets: Counter::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("agent");
        page.histogram("dial_duration_seconds", "Dials to targets.", &self.dial_duration);
        page.labelled(
            "endpoint_dial_failure_total",
            "Dials to targets that failed.",
            &["reason"],
            &self.dial_failures,
        );
        page.labelled(
            "server_connection_failure_count",
            "Connections to servers that failed.",
            &["reason"],
            &self.server_failures,
        );
        page.gauge("open_server_connections", "Connections to servers.", self.open_servers.value());
        page.gauge("known_server_count", "How many servers there are.", self.known_servers.value());
        page.gauge("open_endpoint_connections", "Targets.", self.open_endpoints.value());
        page.gauge("pending_endpoint_dials", "Dials to targets.", self.pending.value());
        page.packets(&[("from_agent", &self.to_server), ("to_agent", &self.from_server)]);
        page.labelled(
            "stream_errors_total",
            "Streams that ended badly.",
            &["segment", "code", "packet_type"],
            &self.stream_errors,
        );
        page.counter(
            "slow_target_closes_total",
            "Connections closed because their target took nothing for too long.",
            self.slow_targets.value(),
        );
        page.into_text()
    }
}
