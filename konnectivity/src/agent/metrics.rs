//! The agent's metrics: the original's names, labels, buckets and HELP texts, and some more.

use telemetry::prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use crate::metrics::{Families, Packets, Requests, StreamErrors};

/// Dials: 5 ms to 30 s.
const LATENCIES: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    families: Families,
    pub(crate) dial_duration: Histogram,
    pub(crate) server_failures: IntCounterVec,
    pub(crate) dial_failures: IntCounterVec,
    pub(crate) open_servers: IntGauge,
    pub(crate) known_servers: IntGauge,
    pub(crate) open_endpoints: IntGauge,
    pub(crate) lease_lists: Requests,
    pub(crate) stream_errors: StreamErrors,
    pub(crate) from_server: Packets,
    pub(crate) to_server: Packets,
    // From here on not the original's.
    pub(crate) connect_failures: IntCounterVec,
    pub(crate) pending: IntGauge,
    pub(crate) slow_targets: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let families = Families::new("agent");
        let packets = families.stream_packets();
        Self {
            dial_duration: families.histogram(
                "dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                LATENCIES,
            ),
            server_failures: families.counters(
                "server_connection_failure_count",
                "Count of failures to send to or receive from the proxy server, labeled by the \
                 direction (from_server or to_server). DEPRECATED, please use \
                 stream_events_error_total",
                &["direction"],
            ),
            dial_failures: families.counters(
                "endpoint_dial_failure_total",
                "Number of failures dialing the remote endpoint, by reason (example: timeout).",
                &["reason"],
            ),
            open_servers: families
                .gauge("open_server_connections", "Current number of open server connections."),
            known_servers: families.gauge(
                "known_server_count",
                "Current number of servers agent is trying to connect to.",
            ),
            open_endpoints: families
                .gauge("open_endpoint_connections", "Current number of open endpoint connections."),
            lease_lists: Requests::new(
                families.counters(
                    "lease_lists_total",
                    "Count of server lease list calls made by the agent to the k8s apiserver, \
                     labeled by HTTP response code and reason",
                    &["http_response_code", "reason"],
                ),
                families.histograms(
                    "lease_list_latency_seconds",
                    "Latency of server lease listing in seconds",
                    LATENCIES,
                    "http_response_code",
                ),
            ),
            stream_errors: families.stream_errors(),
            from_server: Packets::new(&packets, "to_agent"),
            to_server: Packets::new(&packets, "from_agent"),
            connect_failures: families.counters(
                "server_connect_failures_total",
                "Attempts to connect to a server that failed, by the step at which they failed.",
                &["reason"],
            ),
            pending: families
                .gauge("pending_endpoint_dials", "Current number of pending endpoint dials."),
            slow_targets: families.counter(
                "slow_target_closes_total",
                "Connections closed because their target took nothing for too long.",
            ),
            families,
        }
    }
}

impl Metrics {
    pub(crate) fn page(&self) -> String {
        self.families.text()
    }
}
