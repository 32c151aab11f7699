//! The filters of `GetFlows` over verdicts.

use dataplane::wire::protocol;
use ipnet::IpNet;
use observe::verdicts::{End, Event, Pattern, Selector};

use crate::flow::{
    CLUSTER, drop_reason_of, event_type, identity_of, ip_version, is_reply, labels, number,
    tcp_flags, traffic_direction, workload_of,
};
use crate::messages::flow::{EventTypeFilter, FlowFilter, TcpFlags, Workload};

/// Filters of both lists, which were checked.
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
        let read = |list: &[FlowFilter]| list.iter().map(Filter::new).collect::<Result<_, _>>();
        Ok(Self { wanted: read(whitelist)?, unwanted: read(blacklist)? })
    }

    /// Whether a verdict is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        (self.wanted.is_empty() || self.wanted.iter().any(|it| it.matches(event)))
            && !self.unwanted.iter().any(|it| it.matches(event))
    }
}

/// One filter: a test for each list that is not empty, of which one entry has to match.
#[derive(Default)]
struct Filter(Vec<Test>);

type Test = Box<dyn Fn(&Event) -> bool + Send>;

impl Filter {
    fn new(filter: &FlowFilter) -> Result<Self, String> {
        if filter.experimental.iter().any(|it| !it.cel_expression.is_empty()) {
            return Err("experimental.cel_expression: expressions are not supported".to_owned());
        }
        let it = filter.clone();
        let mut tests = Self::default();
        tests.add(it.verdict, |it, event| *it == number(event));
        tests.add(it.event_type, is_type);
        tests.add(each("protocol", &it.protocol, protocol)?, |it, event| {
            event.protocol.is_some_and(|own| it.contains(&own.0))
        });
        tests.add(it.reply, |it, event| is_reply(event) == Some(*it));
        tests.add(it.tcp_flags, |it, event| tcp_flags(event).is_some_and(|own| has_all(&own, it)));
        tests.add(each("node_name", &it.node_name, node_pattern)?, |(cluster, node), event| {
            cluster.matches(CLUSTER) && node.matches(&event.node)
        });
        tests.add(it.ip_version, |it, event| *it == ip_version(event));
        tests.add(it.traffic_direction, |it, event| *it == traffic_direction(event));
        tests.add(it.drop_reason_desc, |it, event| *it != 0 && *it == drop_reason_of(event));
        // Packets of the switch are not encrypted.
        tests.add(it.encrypted, |it, _| !it);

        tests.texts("ip", [&it.source_ip, &it.destination_ip], network, |it, end, _| {
            end.ip.is_some_and(|ip| it.contains(&ip))
        })?;
        tests.texts("pod", [&it.source_pod, &it.destination_pod], Name::parse, |it, end, _| {
            end.pod.as_ref().is_some_and(|pod| it.is(pod))
        })?;
        let fqdn = [&it.source_fqdn, &it.destination_fqdn];
        tests.texts("fqdn", fqdn, Pattern::of_domain, |it, end, _| {
            end.name.as_ref().is_some_and(|name| it.matches(name))
        })?;
        let label = [&it.source_label, &it.destination_label];
        tests.texts("label", label, Selector::parse, |it, end, port| {
            it.matches(&labels(end, port))
        })?;
        tests.texts("port", [&it.source_port, &it.destination_port], port, |it, end, _| {
            end.port == Some(*it)
        })?;
        let service = [&it.source_service, &it.destination_service];
        tests.texts("service", service, Name::parse, |it, end, _| {
            end.service.as_ref().is_some_and(|own| it.is(own))
        })?;
        tests.ends([it.source_identity, it.destination_identity], |it, end, port| {
            *it == identity_of(end, port)
        });
        tests.ends([it.source_workload, it.destination_workload], |it, end, _| {
            workload_of(end).is_some_and(|own| is_part(it, &own))
        });
        tests.ends([it.source_cluster_name, it.destination_cluster_name], |it, end, _| {
            end.pod.is_some() && it == CLUSTER
        });

        // No flow of the switch has any of these.
        tests.add(it.http_header, |_, _| false);
        tests.add(it.interface, |_, _| false);
        tests.add(it.ip_trace_id, |_, _| false);
        let texts = [it.http_status_code, it.dns_query, it.http_method, it.http_path, it.http_url];
        let others = [it.trace_id, it.uuid, it.source_ip_xlated, it.node_labels];
        tests.add([texts.concat(), others.concat()].concat(), |_, _| false);
        Ok(tests)
    }

    /// Adds a test about events.
    fn add<T: Send + 'static>(
        &mut self,
        list: Vec<T>,
        is: impl Fn(&T, &Event) -> bool + Send + 'static,
    ) {
        if !list.is_empty() {
            self.0.push(Box::new(move |event| list.iter().any(|it| is(it, event))));
        }
    }

    /// Adds tests about senders and receivers, and the ports of the switch that they are behind.
    fn ends<T: Send + 'static>(
        &mut self,
        [from, to]: [Vec<T>; 2],
        is: fn(&T, &End, Option<&str>) -> bool,
    ) {
        self.add(from, move |it, event| is(it, &event.from, event.in_port.as_deref()));
        self.add(to, move |it, event| is(it, &event.to, event.out_port.as_deref()));
    }

    /// Reads the texts of `source_…` and `destination_…`, and adds tests about them.
    fn texts<T: Send + 'static>(
        &mut self,
        field: &str,
        [from, to]: [&Vec<String>; 2],
        read: fn(&str) -> Result<T, String>,
        is: fn(&T, &End, Option<&str>) -> bool,
    ) -> Result<(), String> {
        let from = each(&format!("source_{field}"), from, read)?;
        self.ends([from, each(&format!("destination_{field}"), to, read)?], is);
        Ok(())
    }

    fn matches(&self, event: &Event) -> bool {
        self.0.iter().all(|test| test(event))
    }
}

/// Reads every text of a list.
fn each<T>(
    field: &str,
    texts: &[String],
    read: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    texts.iter().map(|text| read(text).map_err(|error| format!("{field}: {error}"))).collect()
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

/// `NAMESPACE/PREFIX`; an empty part matches all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    namespace: String,
    prefix: String,
}

impl Name {
    /// Reads `NAMESPACE/PREFIX`, or `PREFIX`.
    fn parse(text: &str) -> Result<Self, String> {
        // As kubectl does: without a namespace the default one is meant.
        let (namespace, prefix) = text.split_once('/').unwrap_or(("default", text));
        match text {
            "" => Err("a name is empty".to_owned()),
            _ => Ok(Self { namespace: namespace.to_owned(), prefix: prefix.to_owned() }),
        }
    }

    /// Whether an object, as `ns/name`, is meant.
    fn is(&self, object: &str) -> bool {
        object.split_once('/').is_some_and(|(namespace, name)| {
            (self.namespace.is_empty() || self.namespace == namespace)
                && name.starts_with(&self.prefix)
        })
    }
}

/// Reads `CLUSTER/NODE`, either of which may be missing.
fn node_pattern(text: &str) -> Result<(Pattern, Pattern), String> {
    let part = |text: &str| Pattern::new(if text.is_empty() { "*" } else { text });
    match text.split('/').collect::<Vec<_>>()[..] {
        [""] => Err("a pattern is empty".to_owned()),
        [node] => Ok((part(""), part(node))),
        [cluster, node] => Ok((part(cluster), part(node))),
        _ => Err(format!("'{}' has more than one slash", text.escape_debug())),
    }
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
            let error = Filters::new(&[of(change)], &[]).err().unwrap();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
