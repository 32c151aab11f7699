//! The server's metrics: the original's names, labels, buckets and HELP texts, and some more.

use telemetry::prometheus::{
    DEFAULT_BUCKETS, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use crate::metrics::{Families, Packets, Requests, StreamErrors};

/// Dials and writes.
const LATENCIES: &[f64] = &[0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
/// Whole connections: 1 s to 24 h.
const LIFETIMES: &[f64] =
    &[1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0];

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    families: Families,
    pub(crate) dial_duration: Histogram,
    pub(crate) frontend_write: Histogram,
    pub(crate) connection_duration: Histogram,
    pub(crate) proxy_streams: IntGauge,
    pub(crate) connect_streams: IntGauge,
    pub(crate) http_connections: IntGauge,
    backend_connections: IntGauge,
    ready_backends: IntGaugeVec,
    pub(crate) pending: IntGauge,
    pub(crate) established: IntGauge,
    pub(crate) full_from_agent: IntGauge,
    pub(crate) dial_failures: IntCounterVec,
    pub(crate) stream_errors: StreamErrors,
    pub(crate) from_client: Packets,
    pub(crate) to_client: Packets,
    pub(crate) from_agent: Packets,
    pub(crate) to_agent: Packets,
    pub(crate) culled_leases: IntCounter,
    pub(crate) lease_lists: Requests,
    pub(crate) lease_deletes: Requests,
    // From here on not the original's.
    pub(crate) slow_readers: IntCounter,
    pub(crate) agents_refused: IntCounterVec,
    pub(crate) tls_failures: IntCounterVec,
    pub(crate) agents_lost: IntCounter,
    pub(crate) bytes_to_agent: IntCounter,
    pub(crate) bytes_from_agent: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let families = Families::new("server");
        let grpc_connections = families.gauges(
            "grpc_connections",
            "Number of current grpc connections, partitioned by service method.",
            "service_method",
        );
        let full = families.gauges(
            "full_receive_channels",
            "Number of current connections blocked by a full receive channel, partitioned by \
             service method.",
            "service_method",
        );
        let packets = families.stream_packets();
        Self {
            dial_duration: families.histogram(
                "dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                LATENCIES,
            ),
            frontend_write: families.histogram(
                "frontend_write_duration_seconds",
                "Latency of write to the frontend in seconds",
                LATENCIES,
            ),
            connection_duration: families.histogram(
                "connection_duration_seconds",
                "Duration in seconds a proxied end-to-end connection was established (post-dial) \
                 before being closed.",
                LIFETIMES,
            ),
            proxy_streams: grpc_connections.with_label_values(&["Proxy"]),
            connect_streams: grpc_connections.with_label_values(&["Connect"]),
            http_connections: families
                .gauge("http_connections", "Number of current HTTP CONNECT connections"),
            backend_connections: families.gauge(
                "ready_backend_connections",
                "Number of konnectivity agent connected to the proxy server. DEPRECATED, please \
                 use ready_backends",
            ),
            ready_backends: families.gauges(
                "ready_backends",
                "Number of konnectivity agent connected to the proxy server",
                "proxy_strategy",
            ),
            pending: families
                .gauge("pending_backend_dials", "Current number of pending backend dial requests"),
            established: families.gauge(
                "established_connections",
                "Current number of established end-to-end connections (post-dial).",
            ),
            full_from_agent: full.with_label_values(&["Connect"]),
            dial_failures: families.counters(
                "dial_failure_count",
                "Number of dial failures observed. Multiple failures can occur for a single dial \
                 request.",
                &["reason"],
            ),
            stream_errors: families.stream_errors(),
            from_client: Packets::new(&packets, "from_client"),
            to_client: Packets::new(&packets, "to_client"),
            from_agent: Packets::new(&packets, "from_agent"),
            to_agent: Packets::new(&packets, "to_agent"),
            culled_leases: families.counter(
                "culled_leases_count",
                "Count of expired leases that the lease garbage collection controller has culled.",
            ),
            lease_lists: Requests::new(
                families.counters(
                    "lease_list_total",
                    // The original's text, its slip included.
                    "Count of lease deletion calls by the garbage collection controller. Labeled by \
                     HTTP status code and reason.",
                    &["http_status_code", "reason"],
                ),
                families.histograms(
                    "lease_list_latency_seconds",
                    "Latency of lease list calls by the garbage collection controller in seconds.",
                    DEFAULT_BUCKETS,
                    "http_status_code",
                ),
            ),
            lease_deletes: Requests::new(
                families.counters(
                    "lease_delete_total",
                    "Count of lease delection calls by the garbage collection controller. Labeled \
                     by HTTP status code and reason.",
                    &["http_status_code", "reason"],
                ),
                families.histograms(
                    "lease_delete_latency_seconds",
                    "Latency of lease deletion calls by the garbage collection controller in \
                     seconds.",
                    DEFAULT_BUCKETS,
                    "http_status_code",
                ),
            ),
            slow_readers: families.counter(
                "slow_reader_closes_total",
                "Connections closed because their reader took nothing for too long.",
            ),
            agents_refused: families.counters(
                "agents_refused_total",
                "Agents that were refused.",
                &["reason"],
            ),
            tls_failures: families.counters(
                "tls_handshake_failures_total",
                "Connections whose TLS handshake failed.",
                &["port"],
            ),
            agents_lost: families.counter(
                "agents_lost_total",
                "Agents whose connection was closed because they answered no ping.",
            ),
            bytes_to_agent: families.counter("to_agent_bytes_total", "Bytes sent to agents."),
            bytes_from_agent: families
                .counter("from_agent_bytes_total", "Bytes received from agents."),
            families,
        }
    }
}

impl Metrics {
    /// The page; `agents` are connected, and `ready` of them for each strategy.
    pub(crate) fn page(&self, agents: usize, ready: Vec<(&'static str, usize)>) -> String {
        self.backend_connections.set(count(agents));
        for (strategy, agents) in ready {
            self.ready_backends.with_label_values(&[strategy]).set(count(agents));
        }
        self.families.text()
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
