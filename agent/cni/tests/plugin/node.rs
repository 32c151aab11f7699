//! A node: its namespace, its folders, and the runtime's way of calling the plugin.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use linux_net::{Link, Netlink, in_namespace};
use local_api::Attachment;
use serde_json::{Value, json};
use testkit::{Namespace, TempDir};

use crate::stand_in::{Manner, StandIn};

pub(crate) const PLUGINS: &str = "/usr/lib/cni";
pub(crate) const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

/// Ends the test, as skipped, where the plugin cannot be called for real.
#[macro_export]
macro_rules! requires_a_node {
    () => {
        testkit::requires_root!();
        testkit::requires!(
            testkit::has_program($crate::node::HOST_LOCAL),
            "host-local (containernetworking-plugins) is not installed"
        );
    };
}

pub(crate) struct Node {
    pub(crate) namespace: Namespace,
    pub(crate) folder: TempDir,
    pub(crate) config: Value,
}

/// Result of a call.
#[derive(Debug, PartialEq)]
pub(crate) struct Called {
    pub(crate) success: bool,
    /// The printed JSON; `null` if there is none.
    pub(crate) output: Value,
}

impl Node {
    pub(crate) fn new(label: &str) -> Self {
        let folder = TempDir::new(label);
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "podgate-cni",
            "socket": folder.path().join("podgate.sock"),
            "mtu": 1400,
            "timeout": 60,
            "ipam": {
                "type": "host-local",
                "dataDir": folder.path().join("ipam"),
                "ranges": [
                    [{ "subnet": "10.77.0.0/24" }],
                    [{ "subnet": "fd00:77::/64" }]
                ]
            }
        });
        Self { namespace: Namespace::new(label), folder, config }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("podgate.sock")
    }

    pub(crate) fn stand_in(&self, manner: Manner) -> StandIn {
        StandIn::start(&self.socket(), self.namespace.path(), manner)
    }

    /// Calls the plugin for the pod `name`, whose container has the same name.
    pub(crate) fn call(&self, command: &str, name: &str, netns: &str) -> Called {
        let pod = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME={name}");
        self.call_with(&[
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", name),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", PLUGINS),
            ("CNI_ARGS", &pod),
        ])
    }

    pub(crate) fn call_with(&self, variables: &[(&str, &str)]) -> Called {
        let mut command = self.namespace.command([env!("CARGO_BIN_EXE_podgate-cni")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        // Refused before it is read: then the pipe is closed, and that is for the plugin to tell.
        let _unread = child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        let value = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}\n{errors}")),
        };
        Called { success: output.status.success(), output: value }
    }

    pub(crate) fn add(&self, name: &str, pod: &Namespace) -> Called {
        self.call("ADD", name, &pod.path().display().to_string())
    }

    pub(crate) fn del(&self, name: &str, pod: &Namespace) -> Called {
        self.call("DEL", name, &pod.path().display().to_string())
    }

    /// CHECK as a runtime does it: with the result of ADD in the configuration.
    pub(crate) fn check(&mut self, name: &str, pod: &Namespace, result: &Value) -> Called {
        self.config["prevResult"] = result.clone();
        let called = self.call("CHECK", name, &pod.path().display().to_string());
        self.config.as_object_mut().unwrap().remove("prevResult");
        called
    }

    /// The switch's ends that are there.
    pub(crate) fn ends(&self) -> Vec<Link> {
        let links = in_namespace(self.namespace.path(), || Netlink::open()?.links());
        links.unwrap().unwrap().into_iter().filter(|link| link.name != "lo").collect()
    }

    /// The addresses the IPAM plugin holds.
    pub(crate) fn held(&self) -> Vec<String> {
        let mut held: Vec<String> = std::fs::read_dir(self.folder.path().join("ipam/pods"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("10.") || name.starts_with("fd00"))
            .collect();
        held.sort();
        held
    }

    /// Nothing of any attachment is left, neither here nor in `pod`.
    pub(crate) fn assert_clean(&self, pod: &Namespace) {
        assert_eq!(self.ends(), []);
        assert_eq!(self.held(), Vec::<String>::new());
        let links = pod.exec(["ip", "-brief", "link"]);
        assert_eq!(links.lines().count(), 1, "{links}");
    }
}

impl Called {
    /// The result of a call that went well.
    pub(crate) fn ok(self) -> Value {
        assert!(self.success, "{:#}", self.output);
        self.output
    }

    /// The message of a call that failed with `code`.
    pub(crate) fn err(self, code: u32) -> String {
        assert!(!self.success, "{:#}", self.output);
        assert_eq!(self.output["code"], code, "{:#}", self.output);
        assert!(self.output["cniVersion"].is_string(), "{:#}", self.output);
        self.output["msg"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn attachment(name: &str) -> Attachment {
    Attachment { container_id: name.to_owned(), interface: "eth0".to_owned() }
}
