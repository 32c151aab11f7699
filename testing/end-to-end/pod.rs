//! Pods attached by the plugin.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Namespace, Process};

use crate::cluster_node::{BLOCKED, ClusterNode, PATIENCE, text};

/// A pod: a namespace attached by the plugin. Detached when dropped.
pub(crate) struct Pod<'a> {
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) host_interface: String,
    node: &'a ClusterNode,
}

impl ClusterNode {
    /// A pod of namespace `default` with the label `role`, attached.
    pub(crate) fn pod(&self, name: &str, role: &str) -> Pod<'_> {
        let mut object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"role": role}},
            "spec": {"nodeName": self.name(), "containers": [{"name": "c", "image": "x"}]}});
        match &self.api_server {
            Some(_) => self.api_server().apply(object.clone()),
            None => self.write(&format!("pod-{name}"), &object.to_string()),
        }
        let namespace = Namespace::new(name);
        let output = self.plugin("ADD", name, &namespace);
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert!(output.status.success(), "ADD of {name}: {result} {}", text(&output.stderr));
        let addresses = result["ips"].as_array().unwrap().iter().map(|ip| {
            let address = ip["address"].as_str().unwrap();
            address.split('/').next().unwrap().parse().unwrap()
        });
        let addresses: Vec<IpAddr> = addresses.collect();
        if self.api_server.is_none() {
            // As kubelet would tell the other nodes.
            let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            object["status"] = json!({"podIPs": ips});
            self.write(&format!("pod-{name}"), &object.to_string());
        }
        let interfaces = result["interfaces"].as_array().unwrap();
        let outside = interfaces.iter().find(|interface| interface.get("sandbox").is_none());
        Pod {
            addresses,
            host_interface: outside.unwrap()["name"].as_str().unwrap().to_owned(),
            name: name.to_owned(),
            namespace,
            node: self,
        }
    }
}

impl Pod<'_> {
    /// Its IPv4 address.
    pub(crate) fn v4(&self) -> IpAddr {
        *self.addresses.iter().find(|address| address.is_ipv4()).expect("an IPv4 address")
    }

    /// Its IPv6 address.
    pub(crate) fn v6(&self) -> IpAddr {
        *self.addresses.iter().find(|address| address.is_ipv6()).expect("an IPv6 address")
    }

    /// Where it is.
    pub(crate) fn node(&self) -> &ClusterNode {
        self.node
    }

    /// Its name as the switch prints it.
    pub(crate) fn key(&self) -> String {
        format!("default/{}", self.name)
    }

    /// A connection from inside the pod that has to open, however busy the machine is.
    pub(crate) fn connect(&self, to: IpAddr, port: u16) -> std::io::Result<TcpStream> {
        self.connect_within(to, port, PATIENCE)
    }

    /// A connection from inside the pod that may be denied.
    pub(crate) fn try_connect(&self, to: IpAddr, port: u16) -> std::io::Result<TcpStream> {
        self.connect_within(to, port, BLOCKED)
    }

    fn connect_within(
        &self,
        to: IpAddr,
        port: u16,
        patience: Duration,
    ) -> std::io::Result<TcpStream> {
        let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, port), patience);
        let stream = linux_net::in_namespace(self.namespace.path(), connect).unwrap()?;
        stream.set_read_timeout(Some(BLOCKED))?;
        Ok(stream)
    }

    /// Returns whether `ping` from inside the pod is answered.
    pub(crate) fn pings(&self, to: IpAddr) -> bool {
        self.namespace.pings(&to.to_string())
    }

    /// Returns whether `redis-cli ping` from inside the pod is answered, which it has to be.
    pub(crate) fn asks_redis(&self, server: &Pod<'_>) -> bool {
        self.asks_redis_within(server, PATIENCE)
    }

    /// Returns whether `redis-cli ping` from inside the pod is not answered.
    pub(crate) fn is_kept_from_redis(&self, server: &Pod<'_>) -> bool {
        !self.asks_redis_within(server, BLOCKED)
    }

    fn asks_redis_within(&self, server: &Pod<'_>, patience: Duration) -> bool {
        let server = server.v4().to_string();
        let limit = patience.as_secs().to_string();
        let command = ["timeout", limit.as_str(), "redis-cli", "-h", server.as_str(), "ping"];
        text(&self.namespace.try_exec(command).stdout).trim() == "PONG"
    }

    /// A redis server inside the pod, on port 6379.
    pub(crate) fn serve_redis(&self) -> Process {
        let command = "redis-server --bind * -::* --protected-mode no --save  --daemonize no";
        let server = self.namespace.spawn(command.split(' '));
        server.wait_for_line("Ready to accept connections", PATIENCE);
        server
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let output = self.node.plugin("DEL", &self.name, &self.namespace);
        if !output.status.success() && !std::thread::panicking() {
            panic!("DEL of {}: {}", self.name, text(&output.stdout));
        }
    }
}
