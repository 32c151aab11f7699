//! Pods that other plugins made.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use testkit::Namespace;

use crate::cluster_node::{ClusterNode, text};
use crate::pod::Pod;

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
        let config = configuration(node, plugin, folder);
        let namespace = Namespace::new(name);
        let program = format!("/usr/lib/cni/{}", config["type"].as_str().unwrap());
        let output = node.call_plugin(program.as_ref(), "ADD", name, &namespace, &config);
        assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
        let addresses = addresses(&output);
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

/// The configuration of a plugin for the pods of a node.
pub(crate) fn configuration(node: &ClusterNode, plugin: &str, folder: &Path) -> Value {
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
        // The configuration with which the plugin `flannel` calls the plugin `bridge`.
        "flannel" => {
            let more = json!({"type": "bridge", "hairpinMode": true, "isGateway": true,
                "isDefaultGateway": true, "ipMasq": false, "mtu": 1430});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            config["ipam"]["routes"] = json!([{"dst": "10.64.0.0/10"}, {"dst": "fd00::/8"}]);
        }
        _ => {}
    }
    config
}

/// The addresses in a result of ADD.
pub(crate) fn addresses(output: &Output) -> Vec<IpAddr> {
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap())
        .collect()
}

/// A pod of any plugin.
pub(crate) enum AnyPod<'a> {
    Ours(Pod<'a>),
    Foreign(Foreign),
}

impl<'a> AnyPod<'a> {
    /// A pod of the network that the enforcer is for, on a node with an API server.
    pub(crate) fn attach(
        node: &'a ClusterNode,
        enforcer: &str,
        leases: &Path,
        name: &str,
    ) -> AnyPod<'a> {
        if enforcer == "afxdp" {
            return Self::Ours(node.pod(name, name));
        }
        let pod = Foreign::new(node, "ptp", leases, name);
        node.api_server().apply(pod.object(json!({"role": name})));
        Self::Foreign(pod)
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        match self {
            Self::Ours(pod) => &pod.namespace,
            Self::Foreign(pod) => &pod.namespace,
        }
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Ours(pod) => &pod.addresses,
            Self::Foreign(pod) => &pod.addresses,
        }
    }

    pub(crate) fn v4(&self) -> IpAddr {
        *self.addresses().iter().find(|it| it.is_ipv4()).expect("an IPv4 address")
    }
}
