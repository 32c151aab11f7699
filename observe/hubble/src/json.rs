//! Flows in the JSON form of protobuf, as `hubble observe -o jsonpb` prints them and `--input-file` reads them.
//!
//! Fields without a value are left out. Enumerations are names, or numbers, which readers take too.

use observe::verdicts::Event;
use serde_json::{Map, Value, json};

use crate::flow::{flow, moment};
use crate::messages::flow::layer4::Protocol;
use crate::messages::flow::{
    CiliumEventType, DropReason, Endpoint, Flow, Ip, Layer4, Policy, Service, TcpFlags,
};

/// A verdict as a response of `GetFlows`.
pub fn response(event: &Event) -> Value {
    let (time, node) = (time(event), event.node.to_string());
    object([("flow", of_flow(event, flow(event))), ("node_name", node.into()), ("time", time)])
}

fn time(event: &Event) -> Value {
    moment(event).map_or(Value::Null, |it| it.to_string().into())
}

/// An object of the fields that have a value.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let is_default = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(_) => false,
    };
    let fields = fields.into_iter().filter(|(_, value)| !is_default(value));
    fields.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

fn each<T>(list: Vec<T>, of: impl Fn(T) -> Value) -> Value {
    list.into_iter().map(of).collect()
}

/// The name of an enumeration's value; 0 is the one that stands for none.
fn named(number: i32, name: &str) -> Value {
    if number == 0 { Value::Null } else { name.into() }
}

fn of_flow(event: &Event, flow: Flow) -> Value {
    let verdict = named(flow.verdict, flow.verdict().as_str_name());
    let direction = named(flow.traffic_direction, flow.traffic_direction().as_str_name());
    let point = named(flow.trace_observation_point, flow.trace_observation_point().as_str_name());
    let trace_reason = named(flow.trace_reason, flow.trace_reason().as_str_name());
    let flow_type = named(flow.r#type, flow.r#type().as_str_name());
    // Of drop reasons only some have a name here.
    let drop_reason = match DropReason::try_from(flow.drop_reason_desc) {
        Ok(reason) => named(flow.drop_reason_desc, reason.as_str_name()),
        Err(_) => flow.drop_reason_desc.into(),
    };
    let service =
        |it: Option<Service>| it.map_or(Value::Null, |it| of_names(it.name, it.namespace));
    let event_type = |it: CiliumEventType| {
        object([("type", it.r#type.into()), ("sub_type", it.sub_type.into())])
    };
    object([
        ("time", time(event)),
        ("verdict", verdict),
        ("drop_reason", flow.drop_reason.into()),
        ("IP", flow.ip.map_or(Value::Null, of_ip)),
        ("l4", flow.l4.map_or(Value::Null, of_layer4)),
        ("source", flow.source.map_or(Value::Null, of_endpoint)),
        ("destination", flow.destination.map_or(Value::Null, of_endpoint)),
        ("Type", flow_type),
        ("node_name", flow.node_name.into()),
        ("source_names", flow.source_names.into()),
        ("destination_names", flow.destination_names.into()),
        ("event_type", flow.event_type.map_or(Value::Null, event_type)),
        ("source_service", service(flow.source_service)),
        ("destination_service", service(flow.destination_service)),
        ("traffic_direction", direction),
        ("trace_observation_point", point),
        ("drop_reason_desc", drop_reason),
        ("trace_reason", trace_reason),
        (
            "emitter",
            flow.emitter.map_or(Value::Null, |it| json!({"name": it.name, "version": it.version})),
        ),
        ("egress_allowed_by", each(flow.egress_allowed_by, of_policy)),
        ("ingress_allowed_by", each(flow.ingress_allowed_by, of_policy)),
        ("egress_denied_by", each(flow.egress_denied_by, of_policy)),
        ("ingress_denied_by", each(flow.ingress_denied_by, of_policy)),
        ("Summary", flow.summary.into()),
    ])
}

fn of_names(name: String, namespace: String) -> Value {
    object([("name", name.into()), ("namespace", namespace.into())])
}

fn of_ip(ip: Ip) -> Value {
    let version = named(ip.ip_version, ip.ip_version().as_str_name());
    object([
        ("source", ip.source.into()),
        ("destination", ip.destination.into()),
        ("ipVersion", version),
    ])
}

fn of_layer4(layer: Layer4) -> Value {
    let of_ports = |source: u32, destination: u32| {
        object([("source_port", source.into()), ("destination_port", destination.into())])
    };
    match layer.protocol {
        Some(Protocol::Tcp(tcp)) => json!({"TCP": object([
            ("source_port", tcp.source_port.into()),
            ("destination_port", tcp.destination_port.into()),
            ("flags", tcp.flags.map_or(Value::Null, of_flags)),
        ])}),
        Some(Protocol::Udp(it)) => {
            json!({"UDP": of_ports(it.source_port, it.destination_port)})
        }
        Some(Protocol::Sctp(it)) => {
            json!({"SCTP": of_ports(it.source_port, it.destination_port)})
        }
        Some(Protocol::IcmPv4(it)) => json!({"ICMPv4": object([("type", it.r#type.into())])}),
        Some(Protocol::IcmPv6(it)) => json!({"ICMPv6": object([("type", it.r#type.into())])}),
        None => Value::Null,
    }
}

fn of_flags(flags: TcpFlags) -> Value {
    object([
        ("FIN", flags.fin.into()),
        ("SYN", flags.syn.into()),
        ("RST", flags.rst.into()),
        ("PSH", flags.psh.into()),
        ("ACK", flags.ack.into()),
        ("URG", flags.urg.into()),
        ("ECE", flags.ece.into()),
        ("CWR", flags.cwr.into()),
    ])
}

fn of_endpoint(end: Endpoint) -> Value {
    object([
        ("identity", end.identity.into()),
        ("namespace", end.namespace.into()),
        ("labels", end.labels.into()),
        ("pod_name", end.pod_name.into()),
        ("workloads", each(end.workloads, |it| json!({"name": it.name, "kind": it.kind}))),
        ("cluster_name", end.cluster_name.into()),
    ])
}

fn of_policy(policy: Policy) -> Value {
    object([
        ("name", policy.name.into()),
        ("namespace", policy.namespace.into()),
        ("kind", policy.kind.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tests::denied;

    #[test]
    fn a_denied_connection() {
        let value = response(&denied());
        assert_eq!(value["node_name"], "node-a");
        let flow = &value["flow"];
        assert_eq!((&flow["verdict"], &flow["Type"]), (&json!("DROPPED"), &json!("L3_L4")));
        assert_eq!(flow["time"], "2026-11-21T02:25:35.123Z");
        let tcp = json!({"source_port": 41000, "destination_port": 6379, "flags": {"SYN": true}});
        assert_eq!(flow["l4"]["TCP"], tcp);
        assert_eq!(flow["IP"]["ipVersion"], "IPv4");
        assert_eq!(flow["drop_reason_desc"], "POLICY_DENIED");
        assert_eq!(flow["traffic_direction"], "INGRESS");
        assert_eq!(flow["event_type"], json!({"type": 5}));
        assert_eq!(flow["source"]["labels"], json!(["k8s:role=frontend"]));
        assert_eq!(flow["ingress_denied_by"][0]["name"], "db");
        assert!(flow.get("source_names").is_none(), "without a value there is no field");
    }
}
