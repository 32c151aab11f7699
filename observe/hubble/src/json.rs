//! Flows in the JSON form of protobuf, as `hubble observe -o jsonpb` prints them and `--input-file` reads them.
//!
//! The generated messages derive it. Fields without a value are left out. Enumerations are names, or numbers, which
//! readers take too.

use jiff::Timestamp as Moment;
use observe::verdicts::Event;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::flow::flow;
use crate::messages::Timestamp;

/// A verdict as a response of `GetFlows`.
pub fn response(event: &Event) -> Value {
    let flow = json!(flow(event));
    json!({"node_name": flow["node_name"], "time": flow["time"], "flow": flow})
}

/// Writes the name of an enumeration's value, or the number of one without a name.
pub(crate) fn name<E: TryFrom<i32> + Serialize, S: Serializer>(
    number: &i32,
    to: S,
) -> Result<S::Ok, S::Error> {
    match E::try_from(*number) {
        Ok(value) => value.serialize(to),
        Err(_) => number.serialize(to),
    }
}

/// Writes a time as RFC 3339 has it.
pub(crate) fn time<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    let moment = time.and_then(|it| Moment::new(it.seconds, it.nanos).ok());
    moment.map(|it| it.to_string()).serialize(to)
}

/// Whether a field has no value.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
        assert_eq!(flow["is_reply"], false);
        assert!(flow.get("source_names").is_none(), "without a value there is no field");
    }
}
