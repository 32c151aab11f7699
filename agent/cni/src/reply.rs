//! The result of ADD, in the form of the configuration's version.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::config::Config;
use super::interface::{GATEWAY_V4, GATEWAY_V6, InterfaceNames, gateways, routes};
use super::ipam::Allocation;
use super::version::Version;

/// Describes the attachment: both interfaces, the addresses of the second one,
/// and where its packets go (CNI specification, section 5, "ADD Success").
pub(super) fn result(
    config: &Config,
    names: &InterfaceNames,
    interface: &str,
    netns: &Path,
    allocation: &Allocation,
) -> Value {
    let mut host = json!({ "name": names.host, "mac": names.host_mac });
    let mut pod = json!({ "name": interface, "mac": names.pod_mac, "sandbox": netns });
    if config.version >= Version::V1_1_0 {
        host["mtu"] = json!(config.mtu);
        pod["mtu"] = json!(config.mtu);
    }
    json!({
        "cniVersion": config.version.as_str(),
        "interfaces": [host, pod],
        "ips": allocation.addresses.iter().map(|one| ip(*one, config.version)).collect::<Vec<_>>(),
        "routes": gateways(&allocation.addresses)
            .map(|gateway| {
                let [_, default] = routes(gateway, 0);
                json!({ "dst": default.destination, "gw": gateway })
            })
            .collect::<Vec<_>>(),
        "dns": allocation.dns,
    })
}

fn ip(address: IpAddr, version: Version) -> Value {
    let gateway = if address.is_ipv4() { GATEWAY_V4 } else { GATEWAY_V6 };
    let mut ip = json!({ "address": IpNet::from(address), "gateway": gateway, "interface": 1 });
    if version < Version::V1_0_0 {
        ip["version"] = json!(if address.is_ipv4() { "4" } else { "6" });
    }
    ip
}

#[cfg(test)]
mod tests {
    use super::*;
    use local_api::Attachment;

    fn of(version: &str) -> Value {
        let config = json!({
            "cniVersion": version, "name": "pods", "mtu": 1400, "ipam": { "type": "host-local" }
        });
        let config = Config::parse(config.to_string().as_bytes()).unwrap();
        let attachment = Attachment { container_id: "c1".into(), interface: "eth0".into() };
        let allocation = Allocation {
            addresses: vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            dns: json!({ "nameservers": ["10.96.0.10"] }),
        };
        result(
            &config,
            &InterfaceNames::of(&attachment),
            "eth0",
            Path::new("/run/netns/a"),
            &allocation,
        )
    }

    #[test]
    fn version_1_0() {
        let names =
            InterfaceNames::of(&Attachment { container_id: "c1".into(), interface: "eth0".into() });
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": names.host, "mac": names.host_mac },
                { "name": "eth0", "mac": names.pod_mac, "sandbox": "/run/netns/a" }
            ],
            "ips": [
                { "address": "10.1.0.5/32", "gateway": "169.254.1.1", "interface": 1 },
                { "address": "fd00::5/128", "gateway": "fe80::1", "interface": 1 }
            ],
            "routes": [
                { "dst": "0.0.0.0/0", "gw": "169.254.1.1" },
                { "dst": "::/0", "gw": "fe80::1" }
            ],
            "dns": { "nameservers": ["10.96.0.10"] }
        });
        assert_eq!(of("1.0.0"), expected);
    }

    #[test]
    fn what_other_versions_have_besides() {
        assert_eq!(of("0.4.0")["ips"][1]["version"], "6");
        assert_eq!(of("1.1.0")["interfaces"][1]["mtu"], 1400);
    }
}
