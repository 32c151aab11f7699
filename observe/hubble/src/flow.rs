//! A verdict as a flow.

use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;

use acl::{Direction, Origin, PolicyRef};
use dataplane::Outcome;
use dataplane::wire::protocol;
use fnv::FnvHasher;
use jiff::Timestamp as Moment;
use observe::verdicts::{End, Event, Verdict};

use crate::messages::Timestamp;
use crate::messages::flow::layer4::Protocol;
use crate::messages::flow::{
    CiliumEventType, Emitter, Endpoint, Flow, FlowType, IcmPv4, IcmPv6, Ip, IpVersion, Layer4,
    Policy, Sctp, Service, Tcp, TcpFlags, TraceObservationPoint, TraceReason, TrafficDirection,
    Udp, Verdict as FlowVerdict, Workload,
};
use crate::reason::drop_reason;

/// The cluster's name, as Hubble has it where none is configured.
pub const CLUSTER: &str = "default";
/// Ports of the switch that lead to no pod.
const HOST: &str = "host";
const UPLINK: &str = "uplink";

/// Message types of Cilium's monitor, in [`CiliumEventType`].
pub(crate) mod message_type {
    /// A dropped packet; the sub-type is the reason.
    pub(crate) const DROP: i32 = 1;
    /// A forwarded packet; the sub-type is where to.
    pub(crate) const TRACE: i32 = 4;
    /// A decision of policies.
    pub(crate) const POLICY_VERDICT: i32 = 5;
}

/// Reserved identities.
mod identity {
    /// Not known.
    pub(super) const UNKNOWN: u32 = 0;
    /// The node.
    pub(super) const HOST: u32 = 1;
    /// Outside of the cluster, as far as is known.
    pub(super) const WORLD: u32 = 2;
    /// The first number of a pod.
    pub(super) const FIRST_POD: u32 = 256;
    /// The number behind the last one of a pod, as clients take those of a single cluster.
    pub(super) const END_POD: u32 = 1 << 16;
}

/// The flow of a verdict.
pub fn flow(event: &Event) -> Flow {
    let (from, to) = (&event.from, &event.to);
    let drop_reason = drop_reason_of(event);
    let event_type = event_type(event);
    let is_trace = event_type.r#type == message_type::TRACE;
    let mut flow = Flow {
        time: event.time.try_into().ok().map(timestamp),
        verdict: number(event),
        drop_reason: drop_reason.unsigned_abs(),
        ip: addresses(event),
        l4: layer4(event),
        source: Some(endpoint(from, event.in_port.as_deref())),
        destination: Some(endpoint(to, event.out_port.as_deref())),
        r#type: FlowType::L3L4 as i32,
        node_name: event.node.to_string(),
        source_names: from.name.iter().map(|name| name.to_string()).collect(),
        destination_names: to.name.iter().map(|name| name.to_string()).collect(),
        event_type: Some(event_type),
        source_service: service(from),
        destination_service: service(to),
        traffic_direction: traffic_direction(event),
        trace_observation_point: match event_type.sub_type {
            _ if !is_trace => 0,
            0 => TraceObservationPoint::ToEndpoint as i32,
            other => other,
        },
        drop_reason_desc: drop_reason,
        is_reply: is_reply(event),
        trace_reason: if is_trace { TraceReason::New as i32 } else { 0 },
        emitter: Some(Emitter {
            name: "Podgate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }),
        summary: summary(event),
        ..Flow::default()
    };
    // Of a connection that staged policies decide otherwise about, what they decide.
    let enforced = (event.verdict, &event.by);
    let (verdict, rules) = event.staged.as_ref().map_or(enforced, |it| (it.verdict, &it.by));
    for rule in rules {
        // Without either: default-allow, which names no policy.
        let is_ingress = rule.direction().or(event.denied) != Some(Direction::Egress);
        let list = match (verdict, is_ingress) {
            (Verdict::Forwarded, true) => &mut flow.ingress_allowed_by,
            (Verdict::Forwarded, false) => &mut flow.egress_allowed_by,
            (Verdict::Dropped, true) => &mut flow.ingress_denied_by,
            (Verdict::Dropped, false) => &mut flow.egress_denied_by,
        };
        for policy in rule.policies().iter().map(policy) {
            if !list.contains(&policy) {
                list.push(policy);
            }
        }
    }
    flow
}

/// `flow.DropReason` of a drop; 0 of what is forwarded, and of reasons that this version does not know.
pub fn drop_reason_of(event: &Event) -> i32 {
    let outcome = event.reason.outcome().filter(|_| event.verdict == Verdict::Dropped);
    outcome.map_or(0, drop_reason)
}

/// A moment on the wire.
pub fn timestamp(moment: Moment) -> Timestamp {
    Timestamp { seconds: moment.as_second(), nanos: moment.subsec_nanosecond() }
}

/// The number of `flow.Verdict`.
pub fn number(event: &Event) -> i32 {
    match event.verdict {
        _ if event.staged.is_some() => FlowVerdict::Audit as i32,
        Verdict::Forwarded => FlowVerdict::Forwarded as i32,
        Verdict::Dropped => FlowVerdict::Dropped as i32,
    }
}

/// The direction of a connection, as `flow.TrafficDirection`.
pub fn traffic_direction(event: &Event) -> i32 {
    match event.direction() {
        Some(Direction::Ingress) => TrafficDirection::Ingress as i32,
        Some(Direction::Egress) => TrafficDirection::Egress as i32,
        None => 0,
    }
}

/// The kind of event that a verdict comes closest to.
pub fn event_type(event: &Event) -> CiliumEventType {
    let (r#type, sub_type) = match (event.verdict, event.reason.outcome()) {
        (_, Some(Outcome::PolicyAllowed | Outcome::PolicyDenied)) => {
            (message_type::POLICY_VERDICT, 0)
        }
        (Verdict::Dropped, _) => (message_type::DROP, drop_reason_of(event)),
        (Verdict::Forwarded, _) => {
            let to = match event.out_port.as_deref() {
                Some(HOST) => TraceObservationPoint::ToHost as i32,
                Some(UPLINK) => TraceObservationPoint::ToNetwork as i32,
                _ => 0,
            };
            (message_type::TRACE, to)
        }
    };
    CiliumEventType { r#type, sub_type }
}

/// Whether it is a reply: a connection that is opened is none; of other drops it is not known.
pub fn is_reply(event: &Event) -> Option<bool> {
    let opens = event.verdict == Verdict::Forwarded || event.reason == Outcome::PolicyDenied;
    opens.then_some(false)
}

/// The IP version, as `flow.IPVersion`.
pub fn ip_version(event: &Event) -> i32 {
    let of = |ip: IpAddr| if ip.is_ipv4() { IpVersion::IPv4 } else { IpVersion::IPv6 };
    event.from.ip.map_or(0, |ip| of(ip) as i32)
}

/// The identity of an end behind a port of the switch: reserved, or the number of a pod's namespace and labels. That
/// is a hash, the same on every node; labels that differ may share it.
pub fn identity_of(end: &End, port: Option<&str>) -> u32 {
    match port {
        _ if end.pod.is_some() => end.labels.as_ref().map_or(identity::UNKNOWN, |labels| {
            let namespace = end.pod.as_deref().and_then(|pod| pod.split_once('/'));
            let mut hasher = FnvHasher::default();
            namespace.map(|(namespace, _)| namespace).hash(&mut hasher);
            // Those of a single pod would give each its own.
            let common = labels.iter().filter(|(key, _)| !OF_ONE.contains(&&**key));
            common.for_each(|it| it.hash(&mut hasher));
            let numbers = u64::from(identity::END_POD - identity::FIRST_POD);
            identity::FIRST_POD + (hasher.finish() % numbers) as u32
        }),
        Some(HOST) => identity::HOST,
        _ if end.ip.is_some() => identity::WORLD,
        _ => identity::UNKNOWN,
    }
}

/// The workload of an end that is a pod with known labels.
pub fn workload_of(end: &End) -> Option<Workload> {
    let own = end.workload()?;
    Some(Workload { name: own.name.to_owned(), kind: own.kind.to_owned() })
}

/// Labels of single pods.
const OF_ONE: [&str; 3] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
];

/// The flags of a TCP packet.
pub fn tcp_flags(event: &Event) -> Option<TcpFlags> {
    let flags = event.tcp_flags?.0;
    let [fin, syn, rst, psh, ack, urg, ece, cwr] = std::array::from_fn(|bit| flags >> bit & 1 == 1);
    Some(TcpFlags { fin, syn, rst, psh, ack, urg, ece, cwr, ns: false })
}

fn addresses(event: &Event) -> Option<Ip> {
    let text = |end: &End| end.ip.map(|ip| ip.to_string()).unwrap_or_default();
    let (source, destination) = (text(&event.from), text(&event.to));
    event.from.ip.map(|_| Ip { source, destination, ip_version: ip_version(event) })
}

fn layer4(event: &Event) -> Option<Layer4> {
    let port = |end: &End| end.port.map(u32::from).unwrap_or_default();
    let (source_port, destination_port) = (port(&event.from), port(&event.to));
    let r#type = event.icmp_type.map(u32::from).unwrap_or_default();
    let protocol = match event.protocol?.0 {
        protocol::TCP => {
            Protocol::Tcp(Tcp { source_port, destination_port, flags: tcp_flags(event) })
        }
        protocol::UDP => Protocol::Udp(Udp { source_port, destination_port }),
        protocol::SCTP => Protocol::Sctp(Sctp { source_port, destination_port }),
        protocol::ICMP => Protocol::IcmPv4(IcmPv4 { r#type }),
        protocol::ICMPV6 => Protocol::IcmPv6(IcmPv6 { r#type }),
        _ => return None,
    };
    Some(Layer4 { protocol: Some(protocol) })
}

fn endpoint(end: &End, port: Option<&str>) -> Endpoint {
    let identity = identity_of(end, port);
    let labels = labels(end, port).into_iter().map(|label| match label {
        (RESERVED, key, _) => format!("{RESERVED}:{key}"),
        (source, key, value) => format!("{source}:{key}={value}"),
    });
    let pod = end.pod.as_deref().and_then(|pod| pod.split_once('/'));
    let (namespace, name) = pod.unwrap_or_default();
    Endpoint {
        identity,
        namespace: namespace.to_owned(),
        labels: labels.collect(),
        pod_name: name.to_owned(),
        workloads: workload_of(end).into_iter().collect(),
        cluster_name: pod.map(|_| CLUSTER.to_owned()).unwrap_or_default(),
    }
}

/// Source of labels that are no pod's.
const RESERVED: &str = "reserved";

/// Labels of an end as source, key and value.
pub(crate) fn labels<'a>(
    end: &'a End,
    port: Option<&str>,
) -> Vec<(&'static str, &'a str, &'a str)> {
    match identity_of(end, port) {
        identity::HOST => vec![(RESERVED, "host", "")],
        identity::WORLD => vec![(RESERVED, "world", "")],
        _ => {
            let labels = end.labels.iter().flat_map(|labels| labels.iter());
            labels.map(|(key, value)| ("k8s", &**key, &**value)).collect()
        }
    }
}

fn service(end: &End) -> Option<Service> {
    let (namespace, name) = end.service.as_deref()?.split_once('/')?;
    Some(Service { name: name.to_owned(), namespace: namespace.to_owned() })
}

/// The text behind the verdict: the packet, then the reason, where the verdict leaves that open.
fn summary(event: &Event) -> String {
    let mut text = event.in_words().replace(',', ", ");
    if event.verdict == Verdict::Dropped {
        let _ = write!(text, "{}{}", if text.is_empty() { "" } else { "; " }, event.reason);
    }
    if !event.by.is_empty() {
        let _ = write!(text, " by {}", Origin::list(&event.by));
    }
    text
}

fn policy(policy: &PolicyRef) -> Policy {
    Policy {
        name: policy.name.to_string(),
        namespace: policy.namespace.as_deref().unwrap_or_default().to_owned(),
        kind: policy.kind.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use observe::verdicts::StagedVerdict;

    use super::*;

    /// A connection that a policy denies.
    pub(crate) fn denied() -> Event {
        Event {
            time: observe::time::moment("2026-11-21T02:25:35.123Z").unwrap(),
            node: "node-a".into(),
            verdict: Verdict::Dropped,
            reason: "policy-denied".into(),
            by: vec!["default-deny of NetworkPolicy default/db, NetworkPolicy default/all".into()],
            from: End {
                pod: Some("default/frontend".into()),
                ip: Some("10.1.0.3".parse().unwrap()),
                port: Some(41000),
                labels: Some([("role".into(), "frontend".into())].into()),
                ..End::default()
            },
            to: End {
                pod: Some("default/db".into()),
                ip: Some("10.1.0.2".parse().unwrap()),
                port: Some(6379),
                service: Some("default/redis".into()),
                ..End::default()
            },
            protocol: Some(observe::verdicts::Protocol(protocol::TCP)),
            icmp_type: None,
            tcp_flags: Some(observe::verdicts::TcpFlags(2)),
            in_port: Some("default/frontend".into()),
            out_port: Some("default/db".into()),
            staged: None,
            process: None,
            denied: Some(Direction::Ingress),
        }
    }

    fn policy(kind: &str, namespace: &str, name: &str) -> Policy {
        let [name, namespace, kind] = [name, namespace, kind].map(str::to_owned);
        Policy { name, namespace, kind }
    }

    #[test]
    fn pods_have_identities_by_namespace_and_labels() {
        let of = |pod: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            let end =
                End { pod: Some(pod.into()), labels: Some(labels.collect()), ..End::default() };
            identity_of(&end, None)
        };
        let web = of("shop/web-1", &[("app", "web")]);
        assert!((identity::FIRST_POD..identity::END_POD).contains(&web));
        assert_eq!(web, of("shop/web-2", &[("app", "web")]));
        assert_eq!(web, of("shop/web-0", &[("app", "web"), (OF_ONE[0], "web-0")]));
        assert_ne!(web, of("shop/web-1", &[("app", "db")]));
        assert_ne!(web, of("other/web-1", &[("app", "web")]));
        let unlabelled = End { pod: Some("shop/web".into()), ..End::default() };
        assert_eq!(identity_of(&unlabelled, None), identity::UNKNOWN);
    }

    #[test]
    fn a_connection_that_staged_policies_would_deny() {
        let by = vec!["NetworkPolicy default/next ingress[0]".into()];
        let staged = StagedVerdict { verdict: Verdict::Dropped, by };
        let event =
            Event { verdict: Verdict::Forwarded, by: Vec::new(), staged: Some(staged), ..denied() };
        let flow = flow(&event);
        assert_eq!((flow.verdict, flow.drop_reason_desc), (FlowVerdict::Audit as i32, 0));
        assert_eq!(flow.ingress_denied_by, [policy("NetworkPolicy", "default", "next")]);
    }

    #[test]
    fn a_denied_connection() {
        let flow = flow(&denied());
        assert_eq!(flow.time.unwrap(), Timestamp { seconds: 1_795_227_935, nanos: 123_000_000 });
        assert_eq!((flow.verdict, flow.drop_reason_desc), (FlowVerdict::Dropped as i32, 133));
        assert_eq!(flow.event_type.unwrap().r#type, message_type::POLICY_VERDICT);
        assert_eq!(flow.traffic_direction(), TrafficDirection::Ingress);
        let source = flow.source.unwrap();
        assert_eq!((&*source.namespace, &*source.pod_name), ("default", "frontend"));
        assert_eq!(source.labels, ["k8s:role=frontend"]);
        assert_eq!(flow.destination_service.unwrap().name, "redis");
        let Some(Protocol::Tcp(tcp)) = flow.l4.unwrap().protocol else { panic!("no TCP") };
        assert_eq!((tcp.source_port, tcp.destination_port), (41000, 6379));
        assert_eq!(tcp.flags.unwrap(), TcpFlags { syn: true, ..TcpFlags::default() });
        let wanted =
            [policy("NetworkPolicy", "default", "db"), policy("NetworkPolicy", "default", "all")];
        assert_eq!(flow.ingress_denied_by, wanted);
        assert!(flow.egress_denied_by.is_empty() && flow.ingress_allowed_by.is_empty());
        assert!(flow.summary.starts_with("TCP Flags: SYN; policy-denied by default-deny of "));
        assert_eq!(flow.is_reply, Some(false));
    }

    #[test]
    fn summaries_have_the_words_of_observe() {
        use observe::verdicts::{Protocol, TcpFlags};
        let with = |number: u8, icmp_type, tcp_flags| {
            let protocol = Some(Protocol(number));
            let event = Event { protocol, icmp_type, tcp_flags, by: Vec::new(), ..denied() };
            flow(&event).summary
        };
        assert_eq!(with(protocol::ICMP, Some(8), None), "ICMP EchoRequest; policy-denied");
        assert_eq!(with(protocol::ICMPV6, Some(1), None), "ICMPv6 type 1; policy-denied");
        let flags = Some(TcpFlags(0x12));
        assert_eq!(with(protocol::TCP, None, flags), "TCP Flags: SYN, ACK; policy-denied");
        assert_eq!(with(protocol::UDP, None, None), "UDP; policy-denied");
    }

    #[test]
    fn an_allowed_connection_to_the_world() {
        let event = Event {
            verdict: Verdict::Forwarded,
            reason: "policy-allowed".into(),
            by: vec!["ClusterNetworkPolicy out egress[3]".into(), "default-allow".into()],
            to: End {
                ip: Some("2001:db8::1".parse().unwrap()),
                name: Some("www.example.org".into()),
                ..End::default()
            },
            out_port: Some("uplink".into()),
            process: None,
            denied: None,
            ..denied()
        };
        let flow = flow(&event);
        assert_eq!((flow.verdict, flow.drop_reason_desc), (FlowVerdict::Forwarded as i32, 0));
        assert_eq!(flow.traffic_direction(), TrafficDirection::Egress);
        assert_eq!(flow.egress_allowed_by, [policy("ClusterNetworkPolicy", "", "out")]);
        assert!(flow.ingress_allowed_by.is_empty());
        let to = flow.destination.unwrap();
        assert_eq!((to.identity, &to.labels[..]), (2, &["reserved:world".to_owned()][..]));
        assert_eq!(flow.destination_names, ["www.example.org"]);
    }

    #[test]
    fn a_packet_that_no_policy_is_about() {
        let event = Event {
            verdict: Verdict::Dropped,
            reason: "truncated".into(),
            by: Vec::new(),
            from: End::default(),
            to: End::default(),
            protocol: None,
            tcp_flags: None,
            process: None,
            denied: None,
            out_port: None,
            ..denied()
        };
        let dropped = flow(&event);
        assert_eq!(dropped.event_type.unwrap(), CiliumEventType { r#type: 1, sub_type: 134 });
        assert_eq!((dropped.ip, dropped.l4, dropped.is_reply), (None, None, None));
        assert_eq!(dropped.summary, "truncated");
        let event = Event {
            verdict: Verdict::Forwarded,
            reason: "own-node".into(),
            in_port: Some("host".into()),
            out_port: Some("default/db".into()),
            ..event
        };
        let traced = flow(&event);
        assert_eq!(traced.event_type.unwrap(), CiliumEventType { r#type: 4, sub_type: 0 });
        assert_eq!(traced.trace_observation_point(), TraceObservationPoint::ToEndpoint);
    }
}
