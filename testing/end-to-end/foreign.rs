//! Pods that other plugins made.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::path::Path;

use serde_json::{Value, json};
use testkit::Namespace;

use crate::cluster_node::{ClusterNode, text};

/// A pod of another plugin.
pub(crate) struct Foreign {
    pub(crate) name: String,
    node: String,
    pub(crate) namespace: Namespace,
    addresses: Vec<IpAddr>,
}

impl Foreign {
    /// Calls the plugin as a runtime would, without podgate-cni.
    pub(crate) fn new(node: &ClusterNode, plugin: &str, folder: &Path, name: &str) -> Self {
        let pods = node.pods();
        let subnets = [format!("10.{pods}.0.0/24"), format!("fd{pods}::/64")];
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": plugin,
            "ipam": {"type": "host-local", "dataDir": folder,
                "ranges": [[{"subnet": subnets[0]}], [{"subnet": subnets[1]}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
        });
        match plugin {
            "bridge" => {
                config["bridge"] = json!("cni0");
                config["isGateway"] = json!(true);
            }
            // What the plugin `flannel` calls the plugin `bridge` with.
            "flannel" => {
                let more = json!({"type": "bridge", "hairpinMode": true, "isGateway": true,
                    "isDefaultGateway": true, "ipMasq": false, "mtu": 1430});
                config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                config["ipam"]["routes"] = json!([{"dst": "10.64.0.0/10"}, {"dst": "fd00::/8"}]);
            }
            _ => {}
        }
        let namespace = Namespace::new(name);
        let program = format!("/usr/lib/cni/{}", config["type"].as_str().unwrap());
        let output = node.call_plugin(program.as_ref(), "ADD", name, &namespace, &config);
        assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let addresses =
            result["ips"].as_array().unwrap().iter().map(|ip| {
                ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
            });
        let addresses = addresses.collect();
        Self { name: name.to_owned(), node: node.name(), namespace, addresses }
    }

    pub(crate) fn object(&self, labels: Value) -> Value {
        let ips: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "labels": labels},
            "spec": {"nodeName": self.node, "containers": [{"name": "c", "image": "x"}]},
            "status": {"phase": "Running", "podIPs": ips}})
    }

    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        *self.addresses.iter().find(|it| it.is_ipv6() == v6).unwrap()
    }

    /// Answers every TCP connection to port 8080 with its peer's address.
    pub(crate) fn serve(&self) {
        let listener = linux_net::in_namespace(self.namespace.path(), || {
            TcpListener::bind("[::]:8080").unwrap()
        });
        let listener = listener.unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        let _ = stream.write_all(&bytes[..count]);
                    }
                });
            }
        });
    }
}
