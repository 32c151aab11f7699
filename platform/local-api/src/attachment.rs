//! Attachments of pods in requests, and their validation.

use std::net::IpAddr;
use std::path::PathBuf;

use linux_net::{MacAddress, valid_name};
use serde::{Deserialize, Serialize};

/// A pod's interface, ready to become a port of the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachPod {
    /// Namespace of the pod in Kubernetes.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod object, where the runtime gives it: a pod that was deleted and created again
    /// under the same name has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The runtime's name for the pod's sandbox.
    pub container_id: String,
    /// Name of the interface inside the pod (`eth0`).
    pub interface: String,
    /// Path of the pod's network namespace.
    pub netns: PathBuf,
    /// Name of the end of the pair that the switch serves, in the agent's namespace. It is down:
    /// the switch brings it up once the pod's tables are in force.
    pub host_interface: String,
    /// Ethernet address of the pod's end; frames with another source are dropped.
    pub mac: MacAddress,
    /// The pod's addresses; packets with another source are dropped.
    pub addresses: Vec<IpAddr>,
}

/// Names one attachment: CNI allows one sandbox several interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// The runtime's name for the pod's sandbox.
    pub container_id: String,
    /// Name of the interface inside the pod.
    pub interface: String,
}

impl AttachPod {
    /// The attachment's name.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), interface: self.interface.clone() }
    }

    /// Checks that names, addresses and MAC are valid for a pod; the error names the field.
    pub fn check(&self) -> Result<(), String> {
        for (field, text) in [
            ("namespace", &self.namespace),
            ("name", &self.name),
            ("container_id", &self.container_id),
        ] {
            if text.is_empty() || !text.bytes().all(|c| c.is_ascii_graphic() && c != b'/') {
                return Err(format!("{field}: '{}' is not a name", text.escape_debug()));
            }
        }
        for (field, name) in
            [("interface", &self.interface), ("host_interface", &self.host_interface)]
        {
            if !valid_name(name) {
                return Err(format!(
                    "{field}: '{}' is not a valid interface name",
                    name.escape_debug()
                ));
            }
        }
        if !self.mac.is_unicast() {
            return Err(format!("mac: {} is not the address of one interface", self.mac));
        }
        if self.addresses.is_empty() {
            return Err("addresses: at least one is needed".to_owned());
        }
        for (n, address) in self.addresses.iter().enumerate() {
            let one_host = match address {
                IpAddr::V4(v4) => !v4.is_broadcast(),
                IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none(),
            };
            if !one_host
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_loopback()
            {
                return Err(format!("addresses[{n}]: {address} is not an address of a pod"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{ErrorKind, Request};

    pub(crate) fn pod() -> AttachPod {
        AttachPod {
            namespace: "default".into(),
            name: "db".into(),
            uid: None,
            container_id: "c1".into(),
            interface: "eth0".into(),
            netns: "/run/netns/db".into(),
            host_interface: "pg0123456789abc".into(),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            addresses: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        }
    }

    #[test]
    fn hostile_attachments_are_refused() {
        type Spoil = fn(&mut AttachPod);
        let cases: [(&str, Spoil); 8] = [
            ("namespace", |pod| pod.namespace.clear()),
            ("name", |pod| pod.name = "a/../b".into()),
            ("container_id", |pod| pod.container_id = "a\nb".into()),
            ("interface", |pod| pod.interface = "../../etc".into()),
            ("host_interface", |pod| pod.host_interface = "0123456789abcdef".into()),
            ("mac", |pod| pod.mac = MacAddress([0xff; 6])),
            ("addresses", |pod| pod.addresses.clear()),
            ("addresses[1]", |pod| pod.addresses[1] = "::ffff:10.0.0.1".parse().unwrap()),
        ];
        for (field, spoil) in cases {
            let mut pod = pod();
            spoil(&mut pod);
            let line = serde_json::to_string(&Request::AttachPod(pod)).unwrap();
            let error = Request::parse(&line).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRequest);
            assert!(error.message.starts_with(&format!("attach-pod: {field}: ")), "{error}");
        }
    }
}
