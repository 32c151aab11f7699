//! The CNI configuration of a node: a template, completed with the Node's pod networks.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::install::PLUGIN;

/// The template where none is given.
pub const DEFAULT_TEMPLATE: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "podgate",
  "plugins": [
    { "type": "podgate-cni", "ipam": { "type": "host-local" } },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
"#;

/// Completes a template for a node with these pod networks; pods get this MTU where the
/// template has none.
///
/// `host-local` without ranges gets one range for each pod network, without the first address, which
/// is the node's on the host port. What the template says is left as it is.
///
/// # Errors
/// Names the field.
pub fn complete(template: &str, networks: &[IpNet], mtu: Option<u32>) -> Result<String, String> {
    let mut value: Value =
        serde_json::from_str(template).map_err(|error| format!("no JSON: {error}"))?;
    for field in ["cniVersion", "name"] {
        if !value.get(field).is_some_and(Value::is_string) {
            return Err(format!("{field}: a string is needed"));
        }
    }
    let plugins = value.get_mut("plugins").and_then(Value::as_array_mut);
    let plugins = plugins.ok_or("plugins: a list is needed")?;
    for (n, plugin) in plugins.iter().enumerate() {
        let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
        match (n, kind) {
            (0, PLUGIN) => {}
            (0, other) => {
                return Err(format!("plugins[0].type: {PLUGIN} comes first, not '{other}'"));
            }
            (_, PLUGIN) => return Err(format!("plugins[{n}].type: {PLUGIN} comes once, first")),
            (_, "bandwidth") => {
                return Err(format!(
                    "plugins[{n}].type: bandwidth shapes in the kernel's queues, which packets of \
                     the switch do not pass; it would be accepted and limit nothing"
                ));
            }
            _ => {}
        }
    }
    let own = plugins.first_mut().ok_or("plugins: the list is empty")?;
    if own.get("mtu").is_none()
        && let Some(mtu) = mtu
    {
        own["mtu"] = json!(mtu);
    }
    let ipam = own.get_mut("ipam").ok_or("plugins[0].ipam: an IPAM plugin is needed")?;
    let has_ranges = ["ranges", "subnet"].iter().any(|field| ipam.get(field).is_some());
    if ipam.get("type").and_then(Value::as_str) == Some("host-local") && !has_ranges {
        if networks.is_empty() {
            return Err("plugins[0].ipam: the Node has no podCIDR to make ranges of".to_owned());
        }
        ipam["ranges"] = networks.iter().map(range).collect();
    }
    serde_json::to_string_pretty(&value).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Returns a range of host-local: the network without its first address.
fn range(network: &IpNet) -> Value {
    let second: IpAddr = match network.network() {
        IpAddr::V4(first) => IpAddr::V4((u32::from(first) | 2).into()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) | 2).into()),
    };
    json!([{ "subnet": network.trunc().to_string(), "rangeStart": second.to_string() }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &[&str]) -> Vec<IpNet> {
        text.iter().map(|network| network.parse().unwrap()).collect()
    }

    fn first(text: &str) -> Value {
        serde_json::from_str::<Value>(text).unwrap()["plugins"][0].clone()
    }

    #[test]
    fn ranges_and_mtu_are_those_of_the_cluster_node() {
        let both = networks(&["10.1.4.0/24", "fd00:1:4::/64"]);
        let plugin = first(&complete(DEFAULT_TEMPLATE, &both, Some(1450)).unwrap());
        assert_eq!(plugin["mtu"], 1450);
        assert_eq!(
            plugin["ipam"]["ranges"],
            json!([
                [{ "subnet": "10.1.4.0/24", "rangeStart": "10.1.4.2" }],
                [{ "subnet": "fd00:1:4::/64", "rangeStart": "fd00:1:4::2" }],
            ])
        );
    }

    #[test]
    fn what_the_template_says_stays() {
        let template = r#"{"cniVersion":"1.1.0","name":"n","plugins":[
            {"type":"podgate-cni","mtu":9000,"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}},
            {"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}]}"#;
        let done = complete(template, &networks(&["10.1.4.0/24"]), Some(1450)).unwrap();
        let template: Value = serde_json::from_str(template).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&done).unwrap(), template);
    }

    #[test]
    fn what_would_not_work_is_refused_by_field() {
        let chain =
            |plugins: &str| format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{plugins}]}}"#);
        let own = r#"{"type":"podgate-cni","ipam":{"type":"host-local"}}"#;
        let cases = [
            ("{".to_owned(), "no JSON"),
            ("{}".to_owned(), "cniVersion"),
            (r#"{"cniVersion":"1.0.0","name":"n"}"#.to_owned(), "plugins: a list"),
            (chain(""), "plugins: the list is empty"),
            (chain(r#"{"type":"bridge"}"#), "plugins[0].type"),
            (chain(&format!("{own},{own}")), "plugins[1].type"),
            (chain(&format!(r#"{own},{{"type":"bandwidth"}}"#)), "bandwidth shapes"),
            (chain(r#"{"type":"podgate-cni"}"#), "plugins[0].ipam"),
        ];
        for (template, expected) in cases {
            let error = complete(&template, &networks(&["10.1.4.0/24"]), None).unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
        let error = complete(DEFAULT_TEMPLATE, &[], None).unwrap_err();
        assert!(error.contains("no podCIDR"), "{error}");
    }
}
