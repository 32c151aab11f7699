//! Protobuf as the API server answers it, made from JSON and Kubernetes' own definitions.
//!
//! Nothing of it is shared with the decoder that it tests: field numbers and types are read from
//! `kubernetes.proto`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

static MESSAGES: LazyLock<HashMap<&str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("kubernetes.proto")));

/// A field of a message.
struct Field {
    number: u64,
    name: &'static str,
    /// The type of its elements or values.
    of: &'static str,
    is_map: bool,
}

/// The messages of a file whose every field is a line.
fn parse(text: &'static str) -> HashMap<&'static str, Vec<Field>> {
    let mut messages: HashMap<_, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in text.lines() {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        match words[..] {
            ["message", name, "{"] => {
                current = name;
                messages.entry(name).or_default();
            }
            [label, of, name, "=", number] => messages.entry(current).or_default().push(Field {
                number: number.parse().expect("a field's number"),
                name,
                of: of.trim_end_matches('>'),
                is_map: label.starts_with("map<"),
            }),
            _ => {}
        }
    }
    messages
}

/// The kind of a resource that the API server serves in protobuf, and that is defined here.
pub fn kind_of(plural: &str) -> Option<&'static str> {
    let kinds = ["Namespace", "Pod", "Node", "Service", "EndpointSlice", "NetworkPolicy"];
    let singular = match plural {
        "networkpolicies" => "networkpolicy",
        other => other.strip_suffix('s')?,
    };
    kinds.into_iter().find(|kind| kind.eq_ignore_ascii_case(singular))
}

/// A watch event or an object, `List` or `Status` as the body of an answer.
///
/// # Errors
/// Fields that protobuf does not have.
pub fn answer(value: &Value, kind: &str) -> Result<Vec<u8>, String> {
    match (value.get("items"), value["kind"] == "Status") {
        (Some(_), _) => wrapped(value, &format!("{kind}List")),
        (None, true) => wrapped(value, "Status"),
        (None, false) => wrapped(value, kind),
    }
}

/// A watch event of a kind, after its length.
///
/// # Errors
/// Fields that protobuf does not have.
pub fn event(event: &Value, kind: &str) -> Result<Vec<u8>, String> {
    let kind = if event["object"]["kind"] == "Status" { "Status" } else { kind };
    let mut message = Vec::new();
    bytes(&mut message, 1, event["type"].as_str().ok_or("an event without type")?.as_bytes());
    let mut raw = Vec::new();
    bytes(&mut raw, 1, &wrapped(&event["object"], kind)?);
    bytes(&mut message, 2, &raw);
    let mut frame = (message.len() as u32).to_be_bytes().to_vec();
    frame.extend(message);
    Ok(frame)
}

/// An object in a `runtime.Unknown`, after its magic.
fn wrapped(object: &Value, kind: &str) -> Result<Vec<u8>, String> {
    let version = object["apiVersion"].as_str().unwrap_or("v1");
    let (mut of, mut whole) = (Vec::new(), b"k8s\0".to_vec());
    bytes(&mut of, 1, version.as_bytes());
    bytes(&mut of, 2, kind.as_bytes());
    bytes(&mut whole, 1, &of);
    bytes(&mut whole, 2, &message(object, kind)?);
    bytes(&mut whole, 3, b"");
    bytes(&mut whole, 4, b"");
    Ok(whole)
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(out: &mut Vec<u8>, field: u64, number: u64) {
    varint(out, field << 3);
    varint(out, number);
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn message(object: &Value, name: &str) -> Result<Vec<u8>, String> {
    let fields = MESSAGES.get(name).ok_or_else(|| format!("no message {name}"))?;
    let Value::Object(object) = object else { return Err(format!("{object} is no {name}")) };
    let mut out = Vec::new();
    let is_own = |key: &str| fields.iter().any(|field| field.name == key);
    for field in fields {
        match object.get(field.name) {
            Some(Value::Object(map)) if field.is_map => {
                for (key, value) in map {
                    let mut entry = Vec::new();
                    bytes(&mut entry, 1, key.as_bytes());
                    scalar(&mut entry, 2, value, field.of)?;
                    bytes(&mut out, field.number, &entry);
                }
            }
            Some(Value::Array(list)) => {
                for value in list {
                    scalar(&mut out, field.number, value, field.of)?;
                }
            }
            Some(Value::Null) => {}
            Some(value) => scalar(&mut out, field.number, value, field.of)?,
            // JSON has the fields of some messages in the object around them.
            None => {
                let inner = MESSAGES.get(field.of).into_iter().flatten();
                let inner: Map<_, _> = inner
                    .filter(|it| !is_own(it.name))
                    .filter_map(|it| Some((it.name.to_owned(), object.get(it.name)?.clone())))
                    .collect();
                if !inner.is_empty() {
                    bytes(&mut out, field.number, &message(&inner.into(), field.of)?);
                }
            }
        }
    }
    let known = |key: &String| {
        matches!(key.as_str(), "kind" | "apiVersion")
            || is_own(key)
            || fields
                .iter()
                .any(|it| MESSAGES.get(it.of).into_iter().flatten().any(|inner| inner.name == key))
    };
    match object.keys().find(|key| !known(key)) {
        Some(key) => Err(format!("{name} has no field {key}")),
        None => Ok(out),
    }
}

/// A field's value, or an element of its list.
fn scalar(out: &mut Vec<u8>, field: u64, value: &Value, of: &str) -> Result<(), String> {
    match (of, value) {
        ("string", Value::String(text)) => bytes(out, field, text.as_bytes()),
        ("bool", Value::Bool(flag)) => number(out, field, u64::from(*flag)),
        ("int32" | "int64", Value::Number(_)) => {
            number(out, field, value.as_i64().ok_or("a number with a fraction")? as u64);
        }
        ("FieldsV1", value) => {
            let mut raw = Vec::new();
            bytes(&mut raw, 1, value.to_string().as_bytes());
            bytes(out, field, &raw);
        }
        ("Quantity", Value::String(text)) => {
            let mut quantity = Vec::new();
            bytes(&mut quantity, 1, text.as_bytes());
            bytes(out, field, &quantity);
        }
        ("IntOrString", Value::Number(_) | Value::String(_)) => {
            let mut either = Vec::new();
            number(&mut either, 1, u64::from(value.is_string()));
            number(&mut either, 2, value.as_i64().unwrap_or(0) as u64);
            bytes(&mut either, 3, value.as_str().unwrap_or_default().as_bytes());
            bytes(out, field, &either);
        }
        ("Time" | "MicroTime", Value::String(text)) => {
            let time: jiff::Timestamp =
                text.parse().map_err(|_| format!("{text} is not a time"))?;
            let mut seconds = Vec::new();
            number(&mut seconds, 1, time.as_second() as u64);
            number(&mut seconds, 2, 0);
            bytes(out, field, &seconds);
        }
        (of, Value::Object(_)) => bytes(out, field, &message(value, of)?),
        (of, value) => return Err(format!("{value} is no {of}")),
    }
    Ok(())
}
