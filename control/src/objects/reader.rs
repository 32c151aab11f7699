//! Small readers that name the field they fail at.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::interned::shared_name;
use super::{Kind, ObjectRef};
use crate::FieldFault;
use crate::model::{Labels, Protocol};

/// Kind, namespace and name of an object. A namespaced object without a namespace is in `default`, as
/// with `kubectl apply`.
pub(super) fn reference(kind: Kind, value: &Value) -> Result<ObjectRef, FieldFault> {
    let metadata = value.get("metadata").unwrap_or(&Value::Null);
    let text = |field: &str| match metadata.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(FieldFault::new(
            format!("metadata.{field}"),
            format!("{other} of {} is not text", kind.name()),
        )),
    };
    let namespace = if kind.is_namespaced() { text("namespace")? } else { None };
    named(kind, text("name")?, namespace)
}

/// The same by the texts of its name and namespace.
pub(super) fn named(
    kind: Kind,
    name: Option<&str>,
    namespace: Option<&str>,
) -> Result<ObjectRef, FieldFault> {
    let given = |text: Option<_>| text.filter(|text: &&str| !text.is_empty());
    let name = given(name)
        .map(Arc::<str>::from)
        .ok_or_else(|| FieldFault::new("metadata.name", format!("{} has no name", kind.name())))?;
    match kind {
        Kind::Namespace | Kind::Service => label(&name, "metadata.name")?,
        _ => subdomain(&name, "metadata.name")?,
    }
    let namespace = match kind.is_namespaced() {
        true => Some(shared_name(given(namespace).unwrap_or("default"))),
        false => None,
    };
    namespace.as_deref().map_or(Ok(()), |it| label(it, "metadata.namespace"))?;
    Ok(ObjectRef { kind, namespace, name })
}

/// Whether a text is a DNS label (RFC 1123): a-z, 0-9 and '-' inside, 63 at most.
fn label(text: &str, field: &str) -> Result<(), FieldFault> {
    match text.len() <= 63 && is_label(text) {
        true => Ok(()),
        false => Err(FieldFault::new(
            field,
            format!("{text:?} is no name (a-z, 0-9, and '-' inside; 63 at most)"),
        )),
    }
}

/// Whether a text is a DNS subdomain (RFC 1123): labels with dots between, 253 at most.
pub(super) fn subdomain(text: &str, field: &str) -> Result<(), FieldFault> {
    match text.len() <= 253 && text.split('.').all(is_label) {
        true => Ok(()),
        false => Err(FieldFault::new(
            field,
            format!("{text:?} is no name (a-z, 0-9, and '-' and '.' inside; 253 at most)"),
        )),
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Reads a whole value as one of the API's types; `field` is where the value stands.
pub(super) fn typed<T: DeserializeOwned>(value: &Value, field: &str) -> Result<T, FieldFault> {
    // Few objects have faults, and to note the path of every field takes longer than to read it.
    T::deserialize(value).or_else(|_| serde_path_to_error::deserialize(value)).map_err(|error| {
        let path = error.path().to_string();
        let field = match (field, path.as_str()) {
            (field, ".") => field.to_owned(),
            ("", path) => path.to_owned(),
            (field, path) if path.starts_with('[') => format!("{field}{path}"),
            (field, path) => format!("{field}.{path}"),
        };
        FieldFault::new(field, in_words(&error.into_inner().to_string()))
    })
}

/// A message of serde about a value of another type than is wanted, without the names of types.
fn in_words(message: &str) -> String {
    let of_types =
        message.strip_prefix("invalid type: ").and_then(|it| it.split_once(", expected "));
    let Some((found, wanted)) = of_types else { return message.to_owned() };
    let found = match found {
        "sequence" => "a list",
        "map" => "an object",
        text if text.starts_with("string ") => &text["string ".len()..],
        scalar => scalar.split('`').nth(1).unwrap_or(scalar),
    };
    match wanted {
        "a string" if ["true", "false"].contains(&found) => format!(
            "{found} is not text (nor are yes, no, on and off without quotes); put it in quotes"
        ),
        "a string" if found.parse::<f64>().is_ok() => {
            format!("{found} is not text; put it in quotes")
        }
        "a string" => format!("{found} is not text"),
        "a boolean" => format!("{found} is neither true nor false"),
        "a sequence" => format!("{found} is not a list"),
        "IntOrString" => format!("{found} is neither a number nor text"),
        number if number.starts_with(['i', 'u', 'f']) && number[1..].parse::<u8>().is_ok() => {
            format!("{found} is not a number")
        }
        kind if kind == "a map" || kind.starts_with(|it: char| it.is_ascii_uppercase()) => {
            format!("{found} is not an object with fields")
        }
        other => format!("{found} is not {other}"),
    }
}

/// An IP address; the IPv4-mapped form is refused because its two readings differ.
pub(super) fn address(text: &str, field: impl FnOnce() -> String) -> Result<IpAddr, FieldFault> {
    match text.parse() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            Err(FieldFault::new(field(), format!("{text:?} is an IPv4-mapped address")))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(FieldFault::new(field(), format!("{text:?} is not an IP address"))),
    }
}

/// A network; host bits are cleared.
pub(super) fn network(text: &str, field: impl FnOnce() -> String) -> Result<IpNet, FieldFault> {
    match text.parse::<IpNet>() {
        Ok(IpNet::V6(v6)) if v6.network().to_ipv4_mapped().is_some() => {
            Err(FieldFault::new(field(), format!("{text:?} is an IPv4-mapped network")))
        }
        Ok(net) => Ok(net.trunc()),
        Err(_) => Err(FieldFault::new(field(), format!("{text:?} is not a network (CIDR)"))),
    }
}

/// A protocol; TCP where absent.
pub(super) fn protocol(
    name: Option<&str>,
    field: impl FnOnce() -> String,
) -> Result<Protocol, FieldFault> {
    let Some(name) = name else { return Ok(Protocol::Tcp) };
    Protocol::from_name(name)
        .ok_or_else(|| FieldFault::new(field(), format!("{name:?} is not TCP, UDP or SCTP")))
}

/// A port number from 1.
pub(super) fn port(number: i32, field: impl FnOnce() -> String) -> Result<u16, FieldFault> {
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(FieldFault::new(field(), format!("{number} is not a port number (1 to 65535)"))),
    }
}

/// The name of a container port: an IANA service name (RFC 6335, section 5.1), lower case.
pub(super) fn port_name(
    name: &str,
    field: impl FnOnce() -> String,
) -> Result<Arc<str>, FieldFault> {
    let fine = (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    match fine {
        true => Ok(name.into()),
        false => Err(FieldFault::new(
            field(),
            format!(
                "{name:?} is neither a port number nor a port name (a-z, 0-9 and single '-', a letter at least, 15 at most)"
            ),
        )),
    }
}

/// `items[i]` under `field`.
pub(super) fn at(field: &str, index: usize) -> String {
    format!("{field}[{index}]")
}

/// Labels that are text.
pub(super) fn readable_labels(value: &Value) -> Labels {
    let labels = value["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    labels.collect()
}

/// Addresses among these texts.
pub(super) fn readable<'v, T>(
    texts: impl Iterator<Item = &'v Value>,
    read: impl Fn(&str) -> Result<T, FieldFault>,
) -> Vec<T> {
    texts.filter_map(|text| read(text.as_str()?).ok()).collect()
}

/// The elements of a list; none of anything else.
pub(super) fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn here() -> String {
        "here".into()
    }

    #[test]
    fn networks_lose_their_host_bits_and_mapped_ones_are_refused() {
        assert_eq!(network("10.1.2.3/8", here), Ok("10.0.0.0/8".parse().unwrap()));
        assert!(network("10.0.0.0", here).is_err());
        assert!(network("10.0.0.0/33", here).is_err());
        assert!(network("::ffff:10.0.0.0/104", here).is_err());
        assert!(address("::ffff:10.0.0.1", here).is_err());
    }

    #[test]
    fn port_names_follow_rfc_6335() {
        for fine in ["http", "a", "8-a", "abcdefghijklmno"] {
            assert!(port_name(fine, here).is_ok(), "{fine}");
        }
        for bad in ["", "80", "Http", "a--b", "-a", "a-", "abcdefghijklmnop", "a_b"] {
            assert!(port_name(bad, here).is_err(), "{bad}");
        }
    }

    #[test]
    fn faults_have_no_words_of_parsers() {
        type Pod = k8s_openapi::api::core::v1::Pod;
        for (pod, said) in [
            (json!({"metadata": []}), "metadata: a list is not an object with fields"),
            (
                json!({"metadata": {"labels": "x"}}),
                "metadata.labels: \"x\" is not an object with fields",
            ),
            (
                json!({"metadata": {"labels": {"a": {}}}}),
                "metadata.labels.a: an object is not text",
            ),
            (json!({"spec": {"containers": "x"}}), "spec.containers: \"x\" is not a list"),
            (
                json!({"spec": {"hostNetwork": "no"}}),
                "spec.hostNetwork: \"no\" is neither true nor false",
            ),
            (json!({"spec": {"priority": "x"}}), "spec.priority: \"x\" is not a number"),
            (
                json!({"metadata": {"labels": {"a": 1.5}}}),
                "metadata.labels.a: 1.5 is not text; put it in quotes",
            ),
        ] {
            assert_eq!(typed::<Pod>(&pod, "").unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn faults_name_the_nested_field() {
        let fault = typed::<k8s_openapi::api::core::v1::Pod>(
            &json!({"metadata": {"labels": {"app": 1}}}),
            "",
        );
        assert_eq!(fault.unwrap_err().field, "metadata.labels.app");
    }
}
