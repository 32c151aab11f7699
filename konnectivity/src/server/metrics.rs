//! The server's metrics, under the original's names.

use crate::metrics::{Counter, Gauge, Histogram, LATENCIES, LIFETIMES, Labelled, Packets, Page};

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) dial_duration: Histogram,
    pub(crate) frontend_write: Histogram,
    pub(crate) connection_duration: Histogram,
    pub(crate) proxy_streams: Gauge,
    pub(crate) connect_streams: Gauge,
    pub(crate) http_connections: Gauge,
    pub(crate) pending: Gauge,
    pub(crate) established: Gauge,
    pub(crate) full_from_client: Gauge,
    pub(crate) full_from_agent: Gauge,
    pub(crate) dial_failures: Labelled,
    pub(crate) stream_errors: Labelled,
    pub(crate) culled_leases: Counter,
    pub(crate) from_client: Packets,
    pub(crate) to_client: Packets,
    pub(crate) from_agent: Packets,
    pub(crate) to_agent: Packets,
    /// Not the original's.
    pub(crate) slow_readers: Counter,
    pub(crate) agents_refused: Labelled,
    pub(crate) tls_failures: Labelled,
    pub(crate) agents_lost: Counter,
    pub(crate) bytes_to_agent: Counter,
    pub(crate) bytes_from_agent: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            dial_duration: Histogram::new(LATENCIES),
            frontend_write: Histogram::new(LATENCIES),
            connection_duration: Histogram::new(LIFETIMES),
            proxy_streams: Gauge::default(),
            connect_streams: Gauge::default(),
            http_connections: Gauge::default(),
            pending: Gauge::default(),
            established: Gauge::default(),
            full_from_client: Gauge::default(),
            full_from_agent: Gauge::default(),
            dial_failures: Labelled::default(),
            stream_errors: Labelled::default(),
            culled_leases: Counter::default(),
            from_client: Packets::default(),
            to_client: Packets::default(),
            from_agent: Packets::default(),
            to_agent: Packets::default(),
            slow_readers: Counter::default(),
            agents_refused: Labelled::default(),
            tls_failures: Labelled::default(),
            agents_lost: Counter::default(),
            bytes_to_agent: Counter::default(),
            bytes_from_agent: Counter::default(),
        }
    }
}

impl Metrics {
    /// The page. `ready` tells how many agents there are for each strategy, `agents` how many
    /// connections of agents there are.
    pub(crate) fn page(&self, agents: usize, ready: &[(&str, i64)]) -> String {
        let mut page = Page::new("server");
        page.histogram("dial_duration_seconds", "From a dial to its answer.", &self.dial_duration);
        page.histogram(
            "frontend_write_duration_seconds",
            "Handing a packet to its frontend.",
            &self.frontend_write,
        );
        page.histogram(
            "connection_duration_seconds",
            "Lifetime of connections.",
            &self.connection_duration,
        );
        page.gauges(
            "grpc_connections",
            "Streams, by the service they called.",
            "service_method",
            &[("Proxy", self.proxy_streams.value()), ("Connect", self.connect_streams.value())],
        );
        page.gauge("http_connections", "CONNECT requests.", self.http_connections.value());
        page.gauge("ready_backend_connections", "Connections of agents.", agents);
        page.gauges("ready_backends", "Agents a strategy may choose.", "proxy_strategy", ready);
        page.gauge("pending_backend_dials", "Dials without an answer.", self.pending.value());
        page.gauge("established_connections", "Connections.", self.established.value());
        page.gauges(
            "full_receive_channels",
            "Streams that are not read because what came before waits.",
            "service_method",
            &[("Proxy", self.full_from_client.value()), ("Connect", self.full_from_agent.value())],
        );
        page.labelled("dial_failure_count", "Dials that failed.", &["reason"], &self.dial_failures);
        page.packets(&[
            ("from_client", &self.from_client),
            ("to_client", &self.to_client),
            ("from_agent", &self.from_agent),
            ("to_agent", &self.to_agent),
        ]);
        page.labelled(
            "stream_errors_total",
            "Streams that ended badly.",
            &["segment", "code", "packet_type"],
            &self.stream_errors,
        );
        page.counter("culled_leases_count", "Leases collected.", self.culled_leases.value());
        page.counter(
            "slow_reader_closes_total",
            "Connections closed because their reader took nothing for too long.",
            self.slow_readers.value(),
        );
        page.labelled(
            "agents_refused_total",
            "Agents that were not let in.",
            &["reason"],
            &self.agents_refused,
        );
        page.labelled(
            "tls_handshake_failures_total",
            "Connections whose TLS handshake failed.",
            &["port"],
            &self.tls_failures,
        );
        page.counter(
            "agents_lost_total",
            "Agents given up because they answered no ping.",
            self.agents_lost.value(),
        );
        page.counter("to_agent_bytes_total", "Bytes clients sent.", self.bytes_to_agent.value());
        page.counter(
            "from_agent_bytes_total",
            "Bytes targets sent.",
            self.bytes_from_agent.value(),
        );
        page.into_text()
    }
}
