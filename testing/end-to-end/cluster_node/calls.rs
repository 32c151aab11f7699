//! Calls of a node's programs: the plugin, `podgate`, and the HTTP server of the switch.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use testkit::{Namespace, Process};

use super::{ClusterNode, PATIENCE, PODGATE, text};

/// The CNI plugin, built once per run.
fn podgate_cni() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| testkit::workspace_binary(PODGATE, "plugin", "podgate-cni"))
}

impl ClusterNode {
    /// Calls the plugin as a runtime would.
    pub(crate) fn plugin(&self, command: &str, name: &str, namespace: &Namespace) -> Output {
        self.plugin_after(command, name, namespace, Value::Null)
    }

    /// The same with the result of ADD.
    pub(crate) fn plugin_after(
        &self,
        command: &str,
        name: &str,
        namespace: &Namespace,
        previous: Value,
    ) -> Output {
        let pods = self.pods();
        let mut config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "podgate-cni",
            "mtu": self.mtu.load(Ordering::Relaxed),
            "socket": self.path("podgate.sock"),
            "ipam": {
                "type": "host-local",
                "dataDir": self.path("ipam"),
                "ranges": [
                    [{"subnet": format!("10.{pods}.0.0/24"), "rangeStart": format!("10.{pods}.0.2")}],
                    [{"subnet": format!("fd{pods}::/64"), "rangeStart": format!("fd{pods}::2")}],
                ],
            },
        });
        if !previous.is_null() {
            config["prevResult"] = previous;
        }
        self.call_plugin(podgate_cni().as_ref(), command, name, namespace, &config)
    }

    /// Calls a CNI plugin in this node's namespace as a runtime would.
    pub(crate) fn call_plugin(
        &self,
        program: &OsStr,
        command: &str,
        name: &str,
        namespace: &Namespace,
        config: &Value,
    ) -> Output {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
        let mut plugin = self.namespace.command([program]);
        let mut child = plugin
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", format!("sandbox-{name}"))
            .env("CNI_NETNS", namespace.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/usr/lib/cni")
            .env("CNI_ARGS", args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs a `podgate` command that talks to the switch; returns its output.
    pub(crate) fn podgate(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(PODGATE);
        command.args(arguments).arg("--socket").arg(self.path("podgate.sock"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The answer of `podgate status -o json`.
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.podgate(&["status", "-o", "json"])).unwrap()
    }

    /// Lines that the switch has logged.
    pub(crate) fn log(&self) -> Vec<String> {
        self.switch().as_ref().map(Process::output).unwrap_or_default()
    }

    /// The last verdicts that match, oldest first.
    pub(crate) fn verdicts(&self, filters: &[&str]) -> Vec<Value> {
        let arguments = [&["observe", "-o", "json", "--last", "1000"], filters].concat();
        let lines = self.podgate(&arguments);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The value of a metric; labels must match to the letter.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.http("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).trim().parse().unwrap()
    }

    /// The answer of its HTTP server to a request for a page.
    pub(crate) fn http(&self, path: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect("127.0.0.1:9470")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        linux_net::in_namespace(self.namespace.path(), ask).unwrap().unwrap_or_default()
    }

    /// Returns whether the switch still runs and serves.
    pub(crate) fn is_well(&self) -> bool {
        self.http("/healthz").starts_with("HTTP/1.1 200")
    }
}
