//! The filters of `GetFlows` over verdicts.

use dataplane::wire::protocol;
use ipnet::IpNet;
use observe::verdicts::{End, Event, Pattern, Selector};

use crate::flow::{
    CLUSTER, drop_reason_of, event_type, identity_of, ip_version, is_reply, labels, number,
    tcp_flags, traffic_direction, workload_of,
};
use crate::messages::flow::{EventTypeFilter, FlowFilter, TcpFlags, Workload};
use crate::name::{Name, node_pattern};

/// Filters of both lists, which were checked.
#[derive(Debug, Clone)]
pub struct Filters {
    wanted: Vec<Filter>,
    unwanted: Vec<Filter>,
}

impl Filters {
    /// Reads both lists.
    ///
    /// # Errors
    /// Names the field.
    pub fn new(whitelist: &[FlowFilter], blacklist: &[FlowFilter]) -> Result<Self, String> {
        let read =
            |list: &[FlowFilter]| list.iter().map(Filter::new).collect::<Result<Vec<_>, String>>();
        Ok(Self { wanted: read(whitelist)?, unwanted: read(blacklist)? })
    }

    /// Whether a verdict is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        (self.wanted.is_empty() || self.wanted.iter().any(|it| it.matches(event)))
            && !self.unwanted.iter().any(|it| it.matches(event))
    }
}

/// One filter: each list that is not empty has to have an entry that matches.
#[derive(Debug, Clone)]
struct Filter {
    wanted: FlowFilter,
    from: EndFilter,
    to: EndFilter,
    protocol: Vec<&'static [u8]>,
    node_name: Vec<(Pattern, Pattern)>,
    /// It asks for what no flow of the switch has.
    is_void: bool,
}

/// The part of a filter about one end.
#[derive(Debug, Clone)]
struct EndFilter {
    ip: Vec<IpNet>,
    pod: Vec<Name>,
    fqdn: Vec<Pattern>,
    label: Vec<Selector>,
    port: Vec<u16>,
    service: Vec<Name>,
    identity: Vec<u32>,
    workload: Vec<Workload>,
    cluster: Vec<String>,
}

/// Reads every text of a list.
fn each<T>(
    field: &str,
    texts: &[String],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let named = |error| format!("{field}: {error}");
    texts.iter().map(|text| read(text).map_err(named)).collect()
}

impl Filter {
    fn new(filter: &FlowFilter) -> Result<Self, String> {
        if filter.experimental.iter().any(|it| !it.cel_expression.is_empty()) {
            return Err("experimental.cel_expression: expressions are not supported".to_owned());
        }
        let from = EndFilter {
            ip: each("source_ip", &filter.source_ip, network)?,
            pod: each("source_pod", &filter.source_pod, Name::parse)?,
            fqdn: each("source_fqdn", &filter.source_fqdn, Pattern::of_domain)?,
            label: each("source_label", &filter.source_label, Selector::parse)?,
            port: each("source_port", &filter.source_port, port)?,
            service: each("source_service", &filter.source_service, Name::parse)?,
            identity: filter.source_identity.clone(),
            workload: filter.source_workload.clone(),
            cluster: filter.source_cluster_name.clone(),
        };
        let to = EndFilter {
            ip: each("destination_ip", &filter.destination_ip, network)?,
            pod: each("destination_pod", &filter.destination_pod, Name::parse)?,
            fqdn: each("destination_fqdn", &filter.destination_fqdn, Pattern::of_domain)?,
            label: each("destination_label", &filter.destination_label, Selector::parse)?,
            port: each("destination_port", &filter.destination_port, port)?,
            service: each("destination_service", &filter.destination_service, Name::parse)?,
            identity: filter.destination_identity.clone(),
            workload: filter.destination_workload.clone(),
            cluster: filter.destination_cluster_name.clone(),
        };
        Ok(Self {
            wanted: filter.clone(),
            from,
            to,
            protocol: each("protocol", &filter.protocol, protocol)?,
            node_name: each("node_name", &filter.node_name, node_pattern)?,
            // Packets of the switch are not encrypted.
            is_void: matches_none(filter)
                || !filter.encrypted.is_empty() && !filter.encrypted.contains(&false),
        })
    }

    fn matches(&self, event: &Event) -> bool {
        let wanted = &self.wanted;
        let own_protocol =
            |numbers: &&[u8]| event.protocol.is_some_and(|it| numbers.contains(&it.0));
        !self.is_void
            && any(&wanted.verdict, |it| *it == number(event))
            && any(&wanted.event_type, |it| is_type(it, event))
            && any(&self.protocol, own_protocol)
            && any(&wanted.reply, |it| is_reply(event) == Some(*it))
            && any(&wanted.tcp_flags, |it| tcp_flags(event).is_some_and(|own| has_all(&own, it)))
            && any(&self.node_name, |(cluster, node)| {
                cluster.matches(CLUSTER) && node.matches(&event.node)
            })
            && any(&wanted.ip_version, |it| *it == ip_version(event))
            && any(&wanted.traffic_direction, |it| *it == traffic_direction(event))
            && any(&wanted.drop_reason_desc, |it| *it != 0 && *it == drop_reason_of(event))
            && self.from.matches(&event.from, event.in_port.as_deref())
            && self.to.matches(&event.to, event.out_port.as_deref())
    }
}

impl EndFilter {
    /// Whether an end behind a port of the switch is meant.
    fn matches(&self, end: &End, port: Option<&str>) -> bool {
        any(&self.ip, |it| end.ip.is_some_and(|ip| it.contains(&ip)))
            && any(&self.pod, |it| end.pod.as_ref().is_some_and(|pod| it.is(pod)))
            && any(&self.fqdn, |it| end.name.as_ref().is_some_and(|name| it.matches(name)))
            && (self.label.is_empty() || {
                let own = labels(end, port);
                self.label.iter().any(|it| it.matches(&own))
            })
            && any(&self.port, |it| end.port == Some(*it))
            && any(&self.service, |it| end.service.as_ref().is_some_and(|own| it.is(own)))
            && any(&self.identity, |it| *it == identity_of(end, port))
            && any(&self.workload, |it| workload_of(end).is_some_and(|own| is_part(it, &own)))
            && any(&self.cluster, |it| end.pod.is_some() && it == CLUSTER)
    }
}

/// Whether a filter asks for what no flow of the switch has.
fn matches_none(filter: &FlowFilter) -> bool {
    let texts = [
        &filter.http_status_code,
        &filter.dns_query,
        &filter.http_method,
        &filter.http_path,
        &filter.trace_id,
        &filter.uuid,
        &filter.http_url,
        &filter.source_ip_xlated,
        &filter.node_labels,
    ];
    let messages = [&filter.http_header, &filter.interface];
    !texts.iter().all(|it| it.is_empty())
        || !messages.iter().all(|it| it.is_empty())
        || !filter.ip_trace_id.is_empty()
}

/// Whether a list is empty, or has an entry for which it holds.
fn any<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(holds)
}

fn is_type(wanted: &EventTypeFilter, event: &Event) -> bool {
    let own = event_type(event);
    (wanted.r#type == 0 || wanted.r#type == own.r#type)
        && (!wanted.match_sub_type || wanted.sub_type == own.sub_type)
}

/// Whether a workload has the name and the kind that are wanted, as far as they are said.
fn is_part(wanted: &Workload, own: &Workload) -> bool {
    (wanted.name.is_empty() || wanted.name == own.name)
        && (wanted.kind.is_empty() || wanted.kind.eq_ignore_ascii_case(&own.kind))
}

/// Whether all flags of `wanted` are set.
fn has_all(own: &TcpFlags, wanted: &TcpFlags) -> bool {
    let list =
        |it: &TcpFlags| [it.fin, it.syn, it.rst, it.psh, it.ack, it.urg, it.ece, it.cwr, it.ns];
    list(own).into_iter().zip(list(wanted)).all(|(own, wanted)| own || !wanted)
}

fn network(text: &str) -> Result<IpNet, String> {
    observe::verdicts::network(text)
        .ok_or_else(|| format!("'{}' is neither an address nor a network", text.escape_debug()))
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("'{}' is no port", text.escape_debug()))
}

/// Numbers of protocols. Layer 7 is not looked at: such a filter matches nothing.
fn protocol(text: &str) -> Result<&'static [u8], String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "tcp" => &[protocol::TCP],
        "udp" => &[protocol::UDP],
        "sctp" => &[protocol::SCTP],
        "icmp" => &[protocol::ICMP, protocol::ICMPV6],
        "icmpv4" => &[protocol::ICMP],
        "icmpv6" => &[protocol::ICMPV6],
        "vrrp" => &[112],
        "igmp" => &[2],
        "dns" | "http" | "kafka" => &[],
        _ => return Err(format!("unknown protocol '{}'", text.escape_debug())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tests::denied;
    use crate::messages::flow::flow_filter::Experimental;

    fn of(change: impl FnOnce(&mut FlowFilter)) -> FlowFilter {
        let mut filter = FlowFilter::default();
        change(&mut filter);
        filter
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    fn workload(kind: &str, name: &str) -> Workload {
        Workload { kind: kind.to_owned(), name: name.to_owned() }
    }

    type Change = fn(&mut FlowFilter);

    #[test]
    fn every_field_counts() {
        let cases: &[(&str, Change, bool)] = &[
            ("nothing", |_| (), true),
            ("source_ip", |it| it.source_ip = texts(&["10.9.9.9", "10.1.0.3"]), true),
            ("source_ip", |it| it.source_ip = texts(&["10.1.0.2"]), false),
            ("destination_ip", |it| it.destination_ip = texts(&["10.1.0.0/24"]), true),
            ("destination_ip", |it| it.destination_ip = texts(&["fd00::/8"]), false),
            ("source_pod", |it| it.source_pod = texts(&["front"]), true),
            ("source_pod", |it| it.source_pod = texts(&["default/frontend"]), true),
            ("source_pod", |it| it.source_pod = texts(&["default/"]), true),
            ("source_pod", |it| it.source_pod = texts(&["/frontend"]), true),
            ("source_pod", |it| it.source_pod = texts(&["other/frontend"]), false),
            ("destination_pod", |it| it.destination_pod = texts(&["db"]), true),
            ("destination_pod", |it| it.destination_pod = texts(&["b"]), false),
            ("verdict", |it| it.verdict = vec![1, 2], true),
            ("verdict", |it| it.verdict = vec![1], false),
            ("source_label", |it| it.source_label = texts(&["role=frontend"]), true),
            ("source_label", |it| it.source_label = texts(&["role in (a,b)", "role"]), true),
            ("source_label", |it| it.source_label = texts(&["role!=frontend"]), false),
            ("destination_label", |it| it.destination_label = texts(&["role"]), false),
            ("protocol", |it| it.protocol = texts(&["udp", "TCP"]), true),
            ("protocol", |it| it.protocol = texts(&["icmp", "http"]), false),
            ("source_port", |it| it.source_port = texts(&["41000"]), true),
            ("destination_port", |it| it.destination_port = texts(&["80", "6379"]), true),
            ("destination_port", |it| it.destination_port = texts(&["80"]), false),
            ("destination_service", |it| it.destination_service = texts(&["default/red"]), true),
            ("source_service", |it| it.source_service = texts(&["default/"]), false),
            ("reply", |it| it.reply = vec![false], true),
            ("reply", |it| it.reply = vec![true], false),
            ("source_identity", |it| it.source_identity = vec![2], false),
            ("node_name", |it| it.node_name = texts(&["node-*"]), true),
            ("node_name", |it| it.node_name = texts(&["default/node-a"]), true),
            ("node_name", |it| it.node_name = texts(&["*/n*-*a"]), true),
            ("node_name", |it| it.node_name = texts(&["other/"]), false),
            ("node_name", |it| it.node_name = texts(&["node"]), false),
            ("ip_version", |it| it.ip_version = vec![1], true),
            ("ip_version", |it| it.ip_version = vec![2], false),
            ("traffic_direction", |it| it.traffic_direction = vec![1], true),
            ("traffic_direction", |it| it.traffic_direction = vec![2], false),
            ("drop_reason_desc", |it| it.drop_reason_desc = vec![133], true),
            ("drop_reason_desc", |it| it.drop_reason_desc = vec![0], false),
            ("source_cluster_name", |it| it.source_cluster_name = texts(&["default"]), true),
            ("source_cluster_name", |it| it.source_cluster_name = texts(&["other"]), false),
            ("source_fqdn", |it| it.source_fqdn = texts(&["*"]), false),
            ("encrypted", |it| it.encrypted = vec![false], true),
            ("encrypted", |it| it.encrypted = vec![true], false),
            ("http_method", |it| it.http_method = texts(&["GET"]), false),
            ("uuid", |it| it.uuid = texts(&["1"]), false),
            ("workload", |it| it.source_workload = vec![workload("Pod", "frontend")], true),
            ("other workload", |it| it.destination_workload = vec![workload("Job", "db")], false),
            ("ip_trace_id", |it| it.ip_trace_id = vec![1], false),
            (
                "event_type",
                |it| it.event_type = vec![EventTypeFilter { r#type: 5, ..Default::default() }],
                true,
            ),
            (
                "event_type",
                |it| {
                    it.event_type =
                        vec![EventTypeFilter { r#type: 5, match_sub_type: true, sub_type: 1 }]
                },
                false,
            ),
            (
                "tcp_flags",
                |it| it.tcp_flags = vec![TcpFlags { syn: true, ..Default::default() }],
                true,
            ),
            (
                "tcp_flags",
                |it| it.tcp_flags = vec![TcpFlags { syn: true, ack: true, ..Default::default() }],
                false,
            ),
            (
                "two fields",
                |it| {
                    it.verdict = vec![2];
                    it.destination_port = texts(&["80"]);
                },
                false,
            ),
        ];
        for (name, change, expected) in cases {
            let filter = of(change);
            let wanted = Filters::new(std::slice::from_ref(&filter), &[]).unwrap();
            assert_eq!(wanted.matches(&denied()), *expected, "{name}: {filter:?}");
            let unwanted = Filters::new(&[], &[filter]).unwrap();
            assert_eq!(unwanted.matches(&denied()), !expected, "not {name}");
        }
    }

    #[test]
    fn of_several_filters_one_has_to_match() {
        let other = of(|it| it.verdict = vec![1]);
        let own = of(|it| it.source_pod = texts(&["default/front"]));
        let matches = |wanted: &[&FlowFilter], unwanted: &[&FlowFilter]| {
            let list = |of: &[&FlowFilter]| of.iter().map(|&it| it.clone()).collect::<Vec<_>>();
            Filters::new(&list(wanted), &list(unwanted)).unwrap().matches(&denied())
        };
        assert!(matches(&[&other, &own], &[]) && !matches(&[&other], &[]));
        assert!(matches(&[&own], &[&other]) && !matches(&[&own], &[&own]));
    }

    #[test]
    fn the_world_and_the_host_have_reserved_labels() {
        let mut event = denied();
        event.from = End { ip: event.from.ip, ..End::default() };
        for (port, label) in [("uplink", "reserved:world"), ("host", "reserved:host")] {
            event.in_port = Some(port.into());
            let filter = of(|it| it.source_label = texts(&[label]));
            assert!(Filters::new(&[filter], &[]).unwrap().matches(&event), "{label}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_field() {
        let cases: &[(&str, Change)] = &[
            ("source_ip", |it| it.source_ip = texts(&["db"])),
            ("destination_pod", |it| it.destination_pod = texts(&[""])),
            ("destination_port", |it| it.destination_port = texts(&["http"])),
            ("protocol", |it| it.protocol = texts(&["tpc"])),
            ("source_label", |it| it.source_label = texts(&["a in b"])),
            ("node_name", |it| it.node_name = texts(&["a/b/c"])),
            ("destination_fqdn", |it| it.destination_fqdn = texts(&["."])),
            ("experimental.cel_expression", |it| {
                it.experimental = Some(Experimental { cel_expression: texts(&["true"]) });
            }),
        ];
        for (field, change) in cases {
            let error = Filters::new(&[of(change)], &[]).unwrap_err();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
