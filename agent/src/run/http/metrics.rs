//! The switch's metrics, read from its counters at each scrape.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use dataplane::Outcome;
use dataplane::graph::Node;
use local_api::Verdict;
use telemetry::prometheus::{GaugeVec, IntCounterVec};
use telemetry::{Scrape, process_metrics};

use crate::run::shared_status::SharedStatus;
use crate::run::source::{Restored, WatchState};
use crate::run::status::{
    EncryptionStatus, FlowOffloadStatus, FramesStatus, PortStatus, Reason, SocketPoliciesStatus,
    Status,
};

/// Renders all metrics as of now.
pub(super) fn text(shared: &SharedStatus) -> String {
    let status = Status::of(shared);
    let mut page = Page::new();
    page.family("build_info", "gauge", "Always 1; the version is in the label.");
    page.sample(&[("version", &status.version)], 1);
    page.family("ready", "gauge", "Whether pods can be attached.");
    page.sample(&[], u8::from(status.ready));
    page.family(
        "not_enforced",
        "gauge",
        "Things that are not enforced or weaken what is, by reason; podgate status says what.",
    );
    for reason in Reason::ALL {
        let found = status.not_enforced.iter().find(|it| it.reason == reason.name());
        page.sample(&[("reason", reason.name())], found.map_or(0, |it| it.count));
    }
    page.family("packets_total", "counter", "Packets by what became of them, and why.");
    for outcome in Outcome::ALL {
        let count: u64 = shared.switch.counters().map(|worker| worker.of(*outcome)).sum();
        let labels = [("verdict", outcome.verdict().name()), ("reason", outcome.name())];
        page.sample(&labels, count);
    }
    ports(&mut page, &status.ports);
    frames(&mut page, &status.frames);
    page.family("ports_lost_total", "counter", "Ports whose interfaces vanished or failed.");
    page.sample(&[], status.ports_lost);
    page.family("sessions", "gauge", "Connections that were allowed and have not ended.");
    page.sample(&[], status.sessions.used);
    page.family("sessions_capacity", "gauge", "Connections that fit.");
    page.sample(&[], status.sessions.capacity);
    page.family(
        "sessions_evicted_total",
        "counter",
        "Connections that gave up their place for a new one of the same pod or sender, by their state.",
    );
    for (state, count) in status.sessions.evicted.by_state() {
        page.sample(&[("state", state)], count);
    }
    page.family(
        "sessions_damaged",
        "gauge",
        "Records of the last process that were damaged and dropped.",
    );
    page.sample(&[], status.sessions.damaged);
    flow_offload(&mut page, &status.flow_offload);
    encryption(&mut page, &status.encryption);
    socket_policies(&mut page, &status.socket_policies);
    names(&mut page, shared);
    page.family("generation", "gauge", "The last snapshot published.");
    page.sample(&[], status.generation);
    page.family("generation_in_force", "gauge", "The oldest snapshot a worker still decides by.");
    page.sample(&[], status.generation_in_force);
    page.family("objects", "gauge", "Kubernetes objects known.");
    for (kind, count) in &status.objects {
        page.sample(&[("kind", kind)], count);
    }
    page.family("documents_skipped", "gauge", "Documents of kinds that are not read.");
    for (kind, count) in &status.skipped {
        page.sample(&[("kind", kind)], count);
    }
    page.family("policy_faults", "gauge", "What is wrong with the objects read.");
    page.sample(&[], shared.state().faults_count);
    source(&mut page, shared);
    page.family("pods_waiting", "gauge", "Pods whose attachment waits for their policies.");
    page.sample(&[], status.waiting.len());
    page.family(
        "verdict_events_lost_total",
        "counter",
        "Verdicts that were not delivered to observers.",
    );
    page.sample(&[], shared.broker.lost());
    if shared.config.flow_export.file.is_some() {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        page.family("flow_export_written_total", "counter", "Verdicts written to the export file.");
        page.sample(&[], of(&shared.flow_export.written));
        page.family(
            "flow_export_dropped_total",
            "counter",
            "Verdicts that came too fast for the export file, or could not be written.",
        );
        page.sample(&[], of(&shared.flow_export.dropped));
    }
    if shared.config.verify_decisions > 0 {
        let sum = |of: fn(&dataplane::Counters) -> u64| -> u64 {
            shared.switch.counters().map(|worker| of(worker)).sum()
        };
        page.family("decisions_verified_total", "counter", "Decisions made again by definition.");
        page.sample(&[], sum(|it| it.verified.value()));
        page.family(
            "decisions_contradicted_total",
            "counter",
            "Those of them that came out otherwise: the tables are wrong.",
        );
        page.sample(&[], sum(|it| it.contradicted.value()));
    }
    if shared.config.journal.is_some() {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        page.family("journal_bytes", "gauge", "Size of the journal's files.");
        page.sample(&[], shared.journal.files.lock().bytes);
        page.family(
            "journal_lost_total",
            "counter",
            "Verdicts that came too fast for the journal.",
        );
        page.sample(&[], of(&shared.journal.lost));
    }
    page.family(
        "policy_denied_packets_total",
        "counter",
        "Packets denied by each policy, of the verdicts that were not lost.",
    );
    for (policy, count) in shared.broker.denials() {
        page.sample(&[("policy", &policy)], count);
    }
    page.family(
        "staged_connections_total",
        "counter",
        "Connections that staged policies would deny or allow, by the policy that would decide.",
    );
    for count in shared.broker.staged_counts() {
        let would = if count.verdict == Verdict::Dropped { "deny" } else { "allow" };
        page.sample(&[("policy", &count.policy), ("would", would)], count.connections);
    }
    let durations = &shared.durations;
    for family in [&durations.attach, &durations.in_force, &durations.api, &durations.answers] {
        page.scrape.keep(family);
    }
    workers(&mut page, &status);
    nodes(&mut page, shared);
    page.scrape.text() + &process_metrics()
}

fn flow_offload(page: &mut Page, status: &FlowOffloadStatus) {
    page.family("flow_offload", "gauge", "Whether programs in the kernel forward connections.");
    page.sample(&[], u8::from(status.state == "on"));
    page.family("flow_offload_connections", "gauge", "Connections that they forward.");
    page.sample(&[], status.connections);
    page.family("flow_offload_refused_total", "counter", "Connections that found no room there.");
    page.sample(&[], status.refused);
    let help = "Connections whose entries made room for others.";
    page.family("flow_offload_evicted_total", "counter", help);
    page.sample(&[], status.evicted);
    let help = "TCP connections opened in the kernel, like one that the switch had allowed.";
    page.family("flow_offload_opened_total", "counter", help);
    page.sample(&[], status.opened);
    page.family("flow_offload_packets_total", "counter", "Packets forwarded in the kernel.");
    page.sample(&[], status.packets);
    page.family("flow_offload_bytes_total", "counter", "Their bytes.");
    page.sample(&[], status.bytes);
    page.family("flow_offload_over_share_total", "counter", "Frames beyond a pod's share.");
    page.sample(&[], status.over_share);
    page.family("flow_offload_missed_total", "counter", "Frames lost on the punt link.");
    page.sample(&[], status.missed);
    page.family("flow_offload_punted_total", "counter", "Frames left to the switch, by reason.");
    for (reason, count) in &status.punted {
        page.sample(&[("reason", reason)], count);
    }
}

fn encryption(page: &mut Page, status: &EncryptionStatus) {
    page.family("encryption", "gauge", "Whether traffic between nodes' pods is encrypted.");
    page.sample(&[], u8::from(status.state == "on"));
    page.family("encryption_configured", "gauge", "Whether the WireGuard device is configured.");
    page.sample(&[], u8::from(status.state == "on" && status.reason.is_none()));
    page.family("encryption_peers", "gauge", "Nodes that are sent encrypted packets.");
    page.sample(&[], status.peers.len());
    page.family("encryption_nodes_without_peer", "gauge", "Nodes that nothing is sent to.");
    page.sample(&[], status.without_peer.len());
    let help = "Seconds since a peer's last handshake; absent before the first one.";
    page.family("encryption_handshake_age_seconds", "gauge", help);
    for (node, peer) in &status.peers {
        let age = peer.handshake_age_seconds;
        age.into_iter().for_each(|age| page.sample(&[("peer", node)], age));
    }
    page.family("encryption_received_bytes_total", "counter", "Encrypted bytes of a peer.");
    for (node, peer) in &status.peers {
        page.sample(&[("peer", node)], peer.received_bytes);
    }
    page.family("encryption_sent_bytes_total", "counter", "Encrypted bytes to a peer.");
    for (node, peer) in &status.peers {
        page.sample(&[("peer", node)], peer.sent_bytes);
    }
    page.family("encryption_packets_total", "counter", "Packets between nodes, by what was done.");
    page.sample(&[("action", "encrypted")], status.encrypted);
    page.sample(&[("action", "decrypted")], status.decrypted);
    let help =
        "Packets between nodes that were dropped since they were not or could not be encrypted.";
    page.family("encryption_dropped_total", "counter", help);
    for (reason, count) in &status.dropped {
        page.sample(&[("reason", reason)], count);
    }
}

fn socket_policies(page: &mut Page, status: &SocketPoliciesStatus) {
    page.family("socket_policies", "gauge", "Whether programs at pods' cgroups deny calls.");
    page.sample(&[], u8::from(status.state == "on"));
    page.family("socket_policies_pods", "gauge", "Pods whose cgroups have the programs.");
    page.sample(&[], status.attached);
    page.family("socket_policies_missing", "gauge", "Pods whose cgroups do not have them.");
    page.sample(&[], status.missing.len());
    let help = "Calls that the programs were asked about.";
    page.family("socket_policies_asked_total", "counter", help);
    page.sample(&[], status.asked);
    page.family("socket_policies_denied_total", "counter", "Calls that they denied, by reason.");
    page.sample(&[("reason", "policy-denied")], status.denied);
    page.sample(&[("reason", "closed")], status.closed);
    let help = "Packets that rules denied to sockets of pods on the host network.";
    page.family("socket_policies_arrivals_denied_total", "counter", help);
    page.sample(&[], status.arrivals_denied);
    let help = "Raw sockets that were refused, and packets sent past the rules.";
    page.family("socket_policies_raw_denied_total", "counter", help);
    page.sample(&[], status.raw_denied);
    let help = "Open connections of pods on the host network that rules came to deny, and that were ended.";
    page.family("socket_policies_ended_total", "counter", help);
    page.sample(&[], status.ended);
    let help = "Decisions other than the switch's, by which of both denied.";
    page.family("socket_policies_differences_total", "counter", help);
    page.sample(&[("denied_by", "socket")], status.stricter);
    page.sample(&[("denied_by", "switch")], status.looser);
}

fn names(page: &mut Page, shared: &SharedStatus) {
    let [names, open, lingering, evicted] = shared.names.figures();
    page.family("domain_names", "gauge", "Domain names with addresses, of all pods.");
    page.sample(&[], names);
    page.family("domain_addresses", "gauge", "Addresses of domain names, by state.");
    page.sample(&[("state", "open")], open);
    page.sample(&[("state", "lingering")], lingering);
    page.family(
        "domain_addresses_evicted_total",
        "counter",
        "Addresses that made room for others.",
    );
    page.sample(&[], evicted);
    let counters = &shared.names.counters;
    page.family(
        "dns_answers_total",
        "counter",
        "Answers that gave addresses to names of policies.",
    );
    page.sample(&[], counters.answers.load(Ordering::Relaxed));
    page.family(
        "dns_addresses_ignored_total",
        "counter",
        "Addresses in them of the cluster itself.",
    );
    page.sample(&[], counters.ignored.load(Ordering::Relaxed));
    page.family("dns_answers_missed_total", "counter", "Answers that were not held to the end.");
    for (reason, count) in shared.names.missed() {
        page.sample(&[("reason", reason)], count);
    }
}

fn source(page: &mut Page, shared: &SharedStatus) {
    let state = shared.state();
    let source = &state.source;
    let seconds = |at: Option<SystemTime>| {
        at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |it| it.as_secs_f64())
    };
    page.family("source_info", "gauge", "Always 1; where objects come from is in the labels.");
    page.sample(&[("kind", source.kind), ("place", &source.place)], 1);
    page.family("source_synced", "gauge", "Whether every kind was listed at least once.");
    page.sample(&[], u8::from(source.synced));
    page.family("source_restored", "gauge", "Whether a saved state was read at the start.");
    page.sample(&[], u8::from(matches!(source.restored, Restored::From(_))));
    page.family(
        "source_last_event_timestamp_seconds",
        "gauge",
        "Time of the last event received, in Unix time.",
    );
    page.sample(&[], seconds(source.last_event));
    page.family("source_strange_events_total", "counter", "Events that named no object.");
    page.sample(&[], source.strange);
    page.family(
        "source_unchanged_events_total",
        "counter",
        "Events that were passed over: they changed nothing that the switch reads.",
    );
    page.sample(&[], source.unchanged);
    page.family("watch_up", "gauge", "Whether the watch is answered.");
    for (kind, watch) in &source.watches {
        page.sample(&[("kind", kind.name())], u8::from(watch.state == WatchState::Watching));
    }
    page.family("watch_installed", "gauge", "Whether the API server has the kind.");
    for (kind, watch) in &source.watches {
        page.sample(&[("kind", kind.name())], u8::from(watch.state != WatchState::Absent));
    }
    page.family("watch_retries_total", "counter", "Requests that failed and were retried.");
    for (kind, watch) in &source.watches {
        page.sample(&[("kind", kind.name())], watch.retries);
    }
    page.family(
        "state_saved_timestamp_seconds",
        "gauge",
        "When the state was last saved, in Unix time.",
    );
    page.sample(&[], seconds(source.saved_at));
    page.family("state_save_failed", "gauge", "Whether it could not be saved the last time.");
    page.sample(&[], u8::from(source.save_error.is_some()));
}

fn ports(page: &mut Page, ports: &[PortStatus]) {
    type Read = fn(&PortStatus) -> u64;
    let families: [(&str, &str, Read); 6] = [
        ("port_received_packets_total", "Frames that came in.", |port| port.received),
        ("port_received_bytes_total", "Bytes that came in.", |port| port.received_bytes),
        ("port_sent_packets_total", "Frames that left.", |port| port.sent),
        ("port_sent_bytes_total", "Bytes that left.", |port| port.sent_bytes),
        ("port_refused_packets_total", "Frames that could not leave.", |port| port.refused),
        (
            "port_missed_packets_total",
            "Frames the kernel dropped because the port did not take them in time.",
            |port| port.missed,
        ),
    ];
    for (name, help, read) in families {
        page.family(name, "counter", help);
        for port in ports {
            page.sample(&port_labels(port), read(port));
        }
    }
    page.family("port_frames", "gauge", "Frames of the port that the kernel has, by place.");
    for port in ports {
        let [name, namespace, pod, interface] = port_labels(port);
        for (place, count) in &port.frames {
            page.sample(&[name, namespace, pod, interface, ("place", place)], *count);
        }
    }
    page.family("port_up", "gauge", "Whether the port is served, by the switch or by nftables.");
    for port in ports {
        page.sample(&port_labels(port), u8::from(!port.is_down()));
    }
}

fn frames(page: &mut Page, frames: &FramesStatus) {
    page.family(
        "frames",
        "gauge",
        "Frames of packets, by place: free, in rings of ports, with the kernel, on their way through workers.",
    );
    page.sample(&[("place", "free")], frames.free);
    for (place, count) in &frames.kernel {
        page.sample(&[("place", place)], *count);
    }
    page.sample(&[("place", "workers")], frames.on_their_way());
}

/// `namespace` and `pod` as everywhere in Kubernetes' metrics; empty for ports that are no pod's.
fn port_labels(port: &PortStatus) -> [(&'static str, &str); 4] {
    let (namespace, pod) = port.name.split_once('/').unwrap_or_default();
    let (name, interface) = (port.name.as_str(), port.interface.as_str());
    [("port", name), ("namespace", namespace), ("pod", pod), ("interface", interface)]
}

fn workers(page: &mut Page, status: &Status) {
    let numbers: Vec<String> =
        status.workers.iter().map(|worker| worker.worker.to_string()).collect();
    page.family("worker_rounds_total", "counter", "Rounds by whether they found packets.");
    for (worker, number) in status.workers.iter().zip(&numbers) {
        page.sample(&[("worker", number), ("found", "packets")], worker.busy_rounds);
        page.sample(&[("worker", number), ("found", "nothing")], worker.idle_rounds);
    }
    page.family("worker_sleeps_total", "counter", "Times a worker waited for the kernel.");
    for (worker, number) in status.workers.iter().zip(&numbers) {
        page.sample(&[("worker", number)], worker.sleeps);
    }
}

fn nodes(page: &mut Page, shared: &SharedStatus) {
    type Read = fn(&dataplane::counters::NodeCounters) -> u64;
    let families: [(&str, &str, Read); 3] = [
        ("node_packets_total", "Packets a stage of the graph handled.", |it| it.packets.value()),
        ("node_vectors_total", "Vectors it handled.", |it| it.vectors.value()),
        ("node_clocks_total", "Processor clocks it took.", |it| it.clocks.value()),
    ];
    for (name, help, read) in families {
        page.family(name, "counter", help);
        for node in Node::ALL {
            let sum: u64 = shared.switch.counters().map(|worker| read(worker.node(node))).sum();
            page.sample(&[("graph_node", node.name())], sum);
        }
    }
}

/// Families one after the other, each with its samples.
struct Page {
    scrape: Scrape,
    name: &'static str,
    kind: &'static str,
    help: String,
    family: Option<Family>,
}

enum Family {
    Counter(IntCounterVec),
    Gauge(GaugeVec),
}

impl Page {
    fn new() -> Self {
        let scrape = Scrape::new("podgate");
        Self { scrape, name: "", kind: "", help: String::new(), family: None }
    }

    fn family(&mut self, name: &'static str, kind: &'static str, help: &str) {
        (self.name, self.kind, self.help, self.family) = (name, kind, help.to_owned(), None);
    }

    /// A sample; those of one family have the same labels.
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Number) {
        let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
        let family = self.family.get_or_insert_with(|| match self.kind {
            "counter" => Family::Counter(self.scrape.counter(self.name, &self.help, &names)),
            _ => Family::Gauge(self.scrape.gauge(self.name, &self.help, &names)),
        });
        match family {
            Family::Counter(family) => family.with_label_values(&values).inc_by(value.whole()),
            Family::Gauge(family) => family.with_label_values(&values).set(value.real()),
        }
    }
}

/// Values of samples.
trait Number: Copy {
    fn whole(self) -> u64;
    fn real(self) -> f64;
}

macro_rules! numbers {
    ($($of:ty),*) => {$(
        impl Number for $of {
            fn whole(self) -> u64 {
                self as u64
            }

            fn real(self) -> f64 {
                self as f64
            }
        }
    )*};
}
numbers!(u8, u32, i32, u64, usize, f64);

impl<N: Number> Number for &N {
    fn whole(self) -> u64 {
        (*self).whole()
    }

    fn real(self) -> f64 {
        (*self).real()
    }
}
