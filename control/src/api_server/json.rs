//! JSON of the API server without the parts that no policy depends on: managed fields, most annotations, what
//! containers run. They are the larger part of an object, and are passed over rather than built.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::Kind;

/// Annotations that are read.
const ANNOTATIONS: [&str; 3] =
    ["kubernetes.io/config.hash", "kubernetes.io/config.mirror", "k8s.io/initial-events-end"];
/// The group of this program's own annotations.
const OWN: &str = "podgate.io/";

/// Whether an annotation is read.
pub(super) fn is_read(annotation: &str) -> bool {
    annotation.starts_with(OWN) || ANNOTATIONS.contains(&annotation)
}

/// The place of a value in a watch event or a list.
#[derive(Clone, Copy)]
enum Place {
    /// A watch event or a list.
    Answer,
    /// An object of either.
    Object,
    Metadata,
    Annotations,
    PodSpec,
    Container,
    PodStatus,
    NodeStatus,
    /// All of it is read.
    Whole,
}

/// Parses a watch event or a list of objects of a kind.
pub(super) fn parse(text: &[u8], kind: Kind) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Reader { place: Place::Answer, kind }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads the value at a place.
#[derive(Clone, Copy)]
struct Reader {
    place: Place,
    kind: Kind,
}

impl Reader {
    /// The place of a field, or of the elements of a list that it has; `None` if nothing reads it.
    fn field(self, name: &str) -> Option<Place> {
        let is_read = match self.place {
            Place::Metadata => name != "managedFields",
            Place::Annotations => is_read(name),
            Place::PodSpec => !matches!(name, "volumes" | "affinity" | "tolerations"),
            Place::Container => matches!(name, "name" | "ports" | "restartPolicy"),
            Place::PodStatus => !name.ends_with("ontainerStatuses") && name != "conditions",
            Place::NodeStatus => name != "images",
            Place::Answer | Place::Object | Place::Whole => true,
        };
        is_read.then_some(match (self.place, name, self.kind) {
            (Place::Answer, "object" | "items", _) => Place::Object,
            (Place::Object, "metadata", _) => Place::Metadata,
            (Place::Object, "spec", Kind::Pod) => Place::PodSpec,
            (Place::Object, "status", Kind::Pod) => Place::PodStatus,
            (Place::Object, "status", Kind::Node) => Place::NodeStatus,
            (Place::Metadata, "annotations", _) => Place::Annotations,
            (Place::PodSpec, "containers" | "initContainers", _) => Place::Container,
            _ => Place::Whole,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Reader {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.place {
            Place::Whole => serde::Deserialize::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            match self.field(&name) {
                Some(place) => {
                    let value = map.next_value_seed(Self { place, ..self })?;
                    fields.insert(name, value);
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Read, read};
    use serde_json::json;

    /// A pod with a part of every kind, and what is left of it.
    fn pod() -> (Value, Value) {
        let port = json!({"name": "http", "containerPort": 80, "hostPort": 8080});
        let whole = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "labels": {"env": "x", "managedFields": "y", "volumes": "z"},
                "annotations": {"kubernetes.io/config.hash": "h",
                    "kubernetes.io/config.mirror": "h", "podgate.io/stage": "staged",
                    "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}]},
            "spec": {"nodeName": "node", "hostNetwork": true, "volumes": [{"name": "v"}],
                "affinity": {}, "tolerations": [{"key": "k"}],
                "containers": [{"name": "c", "image": "i", "ports": [port], "env": [{"name": "E"}]}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "args": ["1"],
                    "ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c"}], "initContainerStatuses": []}});
        let mut left = whole.clone();
        let mut remove = |at: &str, names: &[&str]| {
            let fields = left.pointer_mut(at).and_then(Value::as_object_mut).expect("an object");
            names.iter().for_each(|name| drop(fields.remove(*name).expect("is there")));
        };
        remove("/metadata", &["managedFields"]);
        remove("/metadata/annotations", &["kubectl.kubernetes.io/last-applied-configuration"]);
        remove("/spec", &["volumes", "affinity", "tolerations"]);
        remove("/spec/containers/0", &["image", "env"]);
        remove("/spec/initContainers/0", &["args"]);
        remove("/status", &["conditions", "containerStatuses", "initContainerStatuses"]);
        (whole, left)
    }

    fn parsed(value: &Value, kind: Kind) -> Value {
        parse(value.to_string().as_bytes(), kind).expect("it is JSON")
    }

    #[test]
    fn what_no_policy_depends_on_is_left_out_of_events_and_lists() {
        let (whole, left) = pod();
        let event = |pod: &Value| json!({"type": "ADDED", "object": pod});
        assert_eq!(parsed(&event(&whole), Kind::Pod), event(&left));
        let list = |pod: &Value| json!({"metadata": {"continue": "c"}, "items": [pod, pod]});
        assert_eq!(parsed(&list(&whole), Kind::Pod), list(&left));
        let Read::Object(object, faults) = read(whole.clone()) else { panic!("{whole}") };
        assert_eq!(read(left), Read::Object(object, faults));
    }

    #[test]
    fn of_other_kinds_every_field_of_the_spec_is_read() {
        let policy = json!({"type": "ADDED", "object": {"metadata": {"name": "p"},
            "spec": {"volumes": 1, "containers": [{"env": -1, "x": 0.5}], "podSelector": null},
            "status": {"conditions": [true]}}});
        assert_eq!(parsed(&policy, Kind::NetworkPolicy), policy);
        let node =
            json!({"object": {"status": {"images": [1], "addresses": [{"address": "::1"}]}}});
        let left = json!({"object": {"status": {"addresses": [{"address": "::1"}]}}});
        assert_eq!(parsed(&node, Kind::Node), left);
    }

    #[test]
    fn what_is_no_json_is_an_error_also_where_nothing_reads_it() {
        for text in ["", "{half", "{} {}", r#"{"object":{"metadata":{"managedFields":[}}}"#] {
            assert!(parse(text.as_bytes(), Kind::Pod).is_err(), "{text}");
        }
        let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9",
            "annotations": {"k8s.io/initial-events-end": "true"}}}});
        assert_eq!(parsed(&bookmark, Kind::Pod), bookmark);
        let status = json!({"type": "ERROR", "object": {"kind": "Status", "code": 429,
            "status": "Failure", "details": {"retryAfterSeconds": 3}}});
        assert_eq!(parsed(&status, Kind::Pod), status);
    }
}
