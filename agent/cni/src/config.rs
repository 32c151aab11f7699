//! The network configuration a runtime passes on standard input.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::environment::identifier;
use super::error::{CniError, Code};
use super::version::Version;
use linux_net::MAX_MTU;
use linux_net::MacAddress;
use local_api::{Attachment, DEFAULT_SOCKET};

/// Default MTU of a pod's interface, in bytes.
pub const DEFAULT_MTU: u32 = 1500;
/// Default timeout of ADD.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A network configuration, checked.
///
/// ```json
/// { "cniVersion": "1.0.0", "name": "pods", "type": "podgate-cni",
///   "socket": "/run/podgate/podgate.sock", "mtu": 1500, "timeout": 30,
///   "logFile": "/var/log/podgate-cni.log",
///   "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] } }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub version: Version,
    /// Name of the network, unique on a node.
    pub network: String,
    /// The agent's local API.
    pub socket: PathBuf,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Timeout of ADD, including IPAM plugin and agent.
    pub timeout: Duration,
    /// The IPAM plugin.
    pub ipam_type: String,
    pub log_file: Option<PathBuf>,
    /// Resolver settings for pods, used where the IPAM plugin gives none.
    pub dns: Value,
    /// The result ADD gave, for CHECK and DEL.
    pub previous: Option<Previous>,
    /// The attachments that shall stay, for GC.
    pub valid: Option<Vec<Attachment>>,
    /// The whole configuration, for the IPAM plugin.
    pub whole: Map<String, Value>,
}

/// The expected state for CHECK.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Previous {
    /// The interfaces inside containers, by name.
    pub macs: Vec<(String, MacAddress)>,
    pub addresses: Vec<IpAddr>,
}

/// Longest name of a network: it becomes part of an interface's alias.
const NETWORK_BYTES: usize = 100;

#[derive(Deserialize)]
struct Raw {
    name: String,
    #[serde(default)]
    socket: Option<PathBuf>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default, rename = "logFile")]
    log_file: Option<PathBuf>,
    #[serde(default)]
    ipam: RawIpam,
    #[serde(default)]
    dns: Option<Map<String, Value>>,
    #[serde(default, rename = "prevResult")]
    previous: Option<RawPrevious>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<RawAttachment>>,
    // Some runtimes still write the key's name from before the specification was final.
    #[serde(default, rename = "cni.dev/attachments")]
    valid_early: Option<Vec<RawAttachment>>,
}

#[derive(Deserialize, Default)]
struct RawIpam {
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct RawPrevious {
    #[serde(default)]
    interfaces: Vec<RawInterface>,
    #[serde(default)]
    ips: Vec<RawIp>,
}

#[derive(Deserialize)]
struct RawInterface {
    name: String,
    #[serde(default)]
    mac: Option<String>,
    #[serde(default)]
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct RawIp {
    address: IpNet,
}

#[derive(Deserialize)]
struct RawAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

impl Config {
    /// Reads and checks a configuration.
    pub(super) fn parse(text: &[u8]) -> Result<Self, CniError> {
        let whole: Map<String, Value> = serde_json::from_slice(text).map_err(|error| {
            CniError::new(Code::Decode, format!("network configuration: {error}"))
        })?;
        let version = version(&whole)?;
        let raw: Raw = serde_json::from_value(Value::Object(whole.clone()))
            .map_err(|error| bad(&error.to_string()))?;
        if raw.name.len() > NETWORK_BYTES || !identifier(&raw.name) {
            let name = raw.name.escape_debug();
            return Err(bad(&format!("name: '{name}' is not a valid network name")));
        }
        if raw.ipam.kind.is_empty() {
            return Err(bad("ipam.type: no IPAM plugin is named"));
        }
        if !identifier(&raw.ipam.kind) {
            let kind = raw.ipam.kind.escape_debug();
            return Err(bad(&format!("ipam.type: '{kind}' is not a valid plugin name")));
        }
        let mtu = raw.mtu.filter(|mtu| *mtu != 0).unwrap_or(DEFAULT_MTU);
        if !(576..=MAX_MTU).contains(&mtu) {
            return Err(bad(&format!("mtu: {mtu} is not between 576 and {MAX_MTU}")));
        }
        let seconds = raw.timeout.unwrap_or(DEFAULT_TIMEOUT.as_secs_f64());
        if !(0.1..=3600.0).contains(&seconds) {
            return Err(bad(&format!("timeout: {seconds} is not between 0.1 and 3600 seconds")));
        }
        let socket = raw.socket.unwrap_or_else(|| DEFAULT_SOCKET.into());
        for (field, path) in [("socket", Some(&socket)), ("logFile", raw.log_file.as_ref())] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(bad(&format!("{field}: '{}' is not an absolute path", path.display())));
            }
        }
        Ok(Self {
            version,
            network: raw.name,
            socket,
            mtu,
            timeout: Duration::from_secs_f64(seconds),
            ipam_type: raw.ipam.kind,
            log_file: raw.log_file,
            dns: Value::Object(raw.dns.unwrap_or_default()),
            previous: raw.previous.map(previous).transpose()?,
            valid: raw.valid.or(raw.valid_early).map(|list| {
                let read = |one: RawAttachment| Attachment {
                    container_id: one.container_id,
                    interface: one.ifname,
                };
                list.into_iter().map(read).collect()
            }),
            whole,
        })
    }
}

impl Config {
    /// Returns whether the IPAM plugin's configuration names an IPv6 network: it may still give others.
    pub(super) fn expects_v6(&self) -> bool {
        fn names_v6(value: &Value) -> bool {
            match value {
                Value::String(text) => {
                    text.parse::<IpNet>().is_ok_and(|network| network.addr().is_ipv6())
                }
                Value::Array(values) => values.iter().any(names_v6),
                Value::Object(fields) => fields.values().any(names_v6),
                _ => false,
            }
        }
        self.whole.get("ipam").is_some_and(names_v6)
    }
}

fn version(whole: &Map<String, Value>) -> Result<Version, CniError> {
    // A configuration without a version is of the first one.
    let text = match whole.get("cniVersion") {
        None => "0.1.0",
        Some(value) => value.as_str().ok_or_else(|| bad("cniVersion: expected a text"))?,
    };
    Version::parse(text).ok_or_else(|| {
        let known = Version::ALL.map(Version::as_str).join(", ");
        let text: String = text.chars().take(20).collect();
        let text = text.escape_debug();
        CniError::new(Code::Version, format!("cniVersion '{text}': supported are {known}"))
    })
}

fn previous(raw: RawPrevious) -> Result<Previous, CniError> {
    let mut macs = Vec::new();
    for interface in raw.interfaces {
        // Interfaces without a sandbox are the switch's ends.
        if interface.sandbox.is_none_or(|sandbox| sandbox.is_empty()) {
            continue;
        }
        let mac = interface.mac.unwrap_or_default();
        let mac = mac.parse().map_err(|error| {
            bad(&format!("prevResult.interfaces {}: {error}", interface.name.escape_debug()))
        })?;
        macs.push((interface.name, mac));
    }
    Ok(Previous { macs, addresses: raw.ips.iter().map(|ip| ip.address.addr()).collect() })
}

fn bad(what: &str) -> CniError {
    CniError::new(Code::Config, format!("network configuration: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(field: &str, value: Value) -> Result<Config, CniError> {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "podgate-cni",
            "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" }
        });
        config[field] = value;
        Config::parse(config.to_string().as_bytes())
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = with("mtu", json!(0)).unwrap();
        assert_eq!(config.socket, PathBuf::from(DEFAULT_SOCKET));
        assert_eq!((config.mtu, config.timeout), (DEFAULT_MTU, DEFAULT_TIMEOUT));
        assert_eq!(config.whole["ipam"]["subnet"], "10.1.0.0/24");
        assert_eq!(config.valid, None);
    }

    #[test]
    fn faults_are_named() {
        let cases = [
            ("cniVersion", json!("0.2.0"), 1),
            ("cniVersion", json!(1), 7),
            ("name", json!("../x"), 7),
            ("name", json!("x".repeat(101)), 7),
            ("name", Value::Null, 7),
            ("ipam", json!({}), 7),
            ("ipam", json!({"type": "../sh"}), 7),
            ("mtu", json!(100), 7),
            ("mtu", json!(65_001), 7),
            ("mtu", json!("big"), 7),
            ("timeout", json!(0), 7),
            ("timeout", json!(-1), 7),
            ("socket", json!("podgate.sock"), 7),
            ("logFile", json!("log"), 7),
            ("prevResult", json!({"ips": [{"address": "10.1.0.300/24"}]}), 7),
            (
                "prevResult",
                json!({"interfaces": [{"name": "eth0", "mac": "x", "sandbox": "/n"}]}),
                7,
            ),
            ("cni.dev/valid-attachments", json!([{"ifname": "eth0"}]), 7),
        ];
        for (field, value, code) in cases {
            let error = with(field, value.clone()).unwrap_err();
            assert_eq!(error.code, code, "{field} {value}: {}", error.message);
        }
        for text in ["", "[]", "{", "\u{0}"] {
            assert_eq!(Config::parse(text.as_bytes()).unwrap_err().code, 6, "{text}");
        }
        assert_eq!(Config::parse(b"{}").unwrap_err().code, 1);
    }

    #[test]
    fn the_result_of_add_is_what_check_compares_with() {
        let previous = json!({
            "interfaces": [
                {"name": "pg1", "mac": "02:00:00:00:00:01"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/a"}
            ],
            "ips": [{"address": "10.1.0.5/32", "interface": 1}],
            "dns": {}
        });
        let previous = with("prevResult", previous).unwrap().previous.unwrap();
        assert_eq!(previous.macs, [("eth0".into(), "02:00:00:00:00:02".parse().unwrap())]);
        assert_eq!(previous.addresses, ["10.1.0.5".parse::<IpAddr>().unwrap()]);
    }
}
