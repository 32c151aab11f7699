//! Flows of Hubble, `hubble observe -o jsonpb`, as verdicts of Podgate.
//!
//! Packets of replies and verdicts beside forwarded and dropped ones say nothing about who may open a connection.
//! Fields: <https://github.com/cilium/cilium/blob/main/api/v1/flow/flow.proto>.

use serde_json::{Value, json};

/// Drop reason of Hubble for what a policy denies.
const POLICY_DENIED: &str = "POLICY_DENIED";

/// A line of Hubble as the row of a journal; `None` for a line of something else, `Some(None)` for a flow that opens no
/// connection.
pub(crate) fn row(line: &str) -> Option<Option<Value>> {
    // Verdicts of Podgate have none of these fields, and there may be millions of them.
    if !line.contains("\"flow\"") && !line.contains("\"l4\"") {
        return None;
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let flow = value.get("flow").unwrap_or(&value);
    flow["verdict"].as_str().filter(|_| flow.get("IP").is_some())?;
    Some(of_flow(flow))
}

fn of_flow(flow: &Value) -> Option<Value> {
    if flow["is_reply"] == true {
        return None;
    }
    let (verdict, reason) = match flow["verdict"].as_str()? {
        "FORWARDED" => ("forward", "policy-allowed"),
        "DROPPED" if flow["drop_reason_desc"] == POLICY_DENIED => ("drop", "policy-denied"),
        _ => return None,
    };
    let (protocol, ports) = flow["l4"].as_object()?.iter().next()?;
    let protocol = match protocol.as_str() {
        "ICMPv4" => "ICMP",
        "ICMPv6" => "ICMPv6",
        other => other,
    };
    let end = |at: &str, port: &str| {
        let mut end = json!({"ip": flow["IP"][at]});
        let (namespace, name) = (flow[at]["namespace"].as_str(), flow[at]["pod_name"].as_str());
        if let (Some(namespace), Some(name)) = (namespace, name) {
            end["pod"] = format!("{namespace}/{name}").into();
        }
        if let Some(port) = ports[port].as_u64() {
            end["port"] = port.into();
        }
        end
    };
    let time = flow["time"].as_str().unwrap_or("1970-01-01T00:00:00Z");
    Some(json!({
        "time": time, "last": time, "count": 1, "node": flow["node_name"].as_str().unwrap_or_default(),
        "verdict": verdict, "reason": reason, "protocol": protocol,
        "from": end("source", "source_port"), "to": end("destination", "destination_port"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use observe::journal::Row;
    use observe::verdicts::Event;

    fn line(verdict: &str, rest: &str) -> String {
        format!(
            "{{\"flow\":{{\"time\":\"2026-11-28T10:00:00Z\",\"verdict\":\"{verdict}\",\"IP\":{{\"source\":\
             \"10.0.0.1\",\"destination\":\"10.0.0.2\",\"ipVersion\":\"IPv4\"}},\"l4\":{{\"TCP\":\
             {{\"source_port\":40000,\"destination_port\":8080}}}},\"source\":{{\"namespace\":\"web\",\
             \"pod_name\":\"front-1\"}},\"destination\":{{\"namespace\":\"cart\",\"pod_name\":\"api-1\"}},\
             \"node_name\":\"n1\"{rest}}},\"node_name\":\"n1\"}}"
        )
    }

    #[test]
    fn a_flow_is_a_verdict_and_a_row() {
        let value = row(&line("FORWARDED", "")).unwrap().unwrap();
        let event: Event = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(event.from.pod.as_deref(), Some("web/front-1"));
        assert_eq!((event.to.pod.as_deref(), event.to.port), (Some("cart/api-1"), Some(8080)));
        let parsed = Row::parse(&value.to_string()).unwrap();
        assert_eq!((parsed.count, parsed.event), (1, event));
        let denied = line("DROPPED", ",\"drop_reason_desc\":\"POLICY_DENIED\"");
        assert_eq!(row(&denied).unwrap().unwrap()["reason"], "policy-denied");
    }

    #[test]
    fn what_opens_no_connection_is_left_out_and_other_lines_are_not_hubbles() {
        assert_eq!(row(&line("FORWARDED", ",\"is_reply\":true")), Some(None));
        assert_eq!(row(&line("DROPPED", "")), Some(None));
        assert_eq!(row("{\"verdict\":\"drop\",\"reason\":\"policy-denied\"}"), None);
        assert_eq!(row("no JSON with \"flow\""), None);
    }
}
