//! Policies at connect(): programs at pods' cgroups, beside the switch.

mod host;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Namespace, Process, TempDir};

use crate::cluster_node::{BLOCKED, PATIENCE, PODGATE, text};
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

const NOTHING_IN: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed-db, namespace: default}
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress]
";

const NOTHING_OUT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed-agent, namespace: default}
spec:
  podSelector: {matchLabels: {role: agent}}
  policyTypes: [Egress]
";

/// File systems with the cgroups of pods, and with pins.
struct Mounts {
    folder: TempDir,
    cgroups: Vec<PathBuf>,
}

impl Mounts {
    fn new() -> Self {
        let folder = TempDir::new("sockets");
        for kind in ["cgroup2", "bpf"] {
            let at = folder.path().join(kind);
            std::fs::create_dir(&at).unwrap();
            let mounted =
                Command::new("mount").args(["-t", kind, "none"]).arg(at).status().unwrap();
            assert!(mounted.success(), "mount {kind}");
        }
        Self { folder, cgroups: Vec::new() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// The root of the tests' own cgroups.
    fn root(&self) -> PathBuf {
        let name = self.folder.path().file_name().unwrap();
        self.folder.path().join("cgroup2").join(name)
    }

    fn options(&self) -> [String; 5] {
        [
            "--socket-policies=closed".to_owned(),
            "--cgroup-root".to_owned(),
            self.root().to_string_lossy().into_owned(),
            "--bpf-fs".to_owned(),
            self.path("bpf"),
        ]
    }

    /// The cgroup of the pod with this UID, as the cgroupfs driver names it.
    fn make(&mut self, uid: &str) -> PathBuf {
        let pod = self.root().join("kubepods/besteffort").join(format!("pod{uid}"));
        std::fs::create_dir_all(&pod).unwrap();
        self.cgroups.push(pod.clone());
        pod
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for pod in &self.cgroups {
            pod.ancestors().take(3).for_each(|cgroup| drop(std::fs::remove_dir(cgroup)));
        }
        let _ = std::fs::remove_dir(self.root());
        for kind in ["cgroup2", "bpf"] {
            let _ = Command::new("umount").arg(self.path(kind)).status();
        }
    }
}

/// Gives the pod's object a UID, as the API server does.
fn with_uid(node: &ClusterNode, pod: &Pod<'_>, role: &str, uid: &str) {
    let ips: Vec<Value> = pod.addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": "default", "uid": uid, "labels": {"role": role}},
        "spec": {"nodeName": node.name(), "containers": [{"name": "c", "image": "x"}]},
        "status": {"podIPs": ips}});
    node.write(&format!("pod-{}", pod.name), &object.to_string());
}

/// Output of `redis-cli` in the pod's cgroup about a server.
fn asks(pod: &Pod<'_>, cgroup: &Path, address: &str) -> String {
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
    let limit = BLOCKED.as_secs().to_string();
    let ask = ["timeout", &limit, "redis-cli", "-h", address, "ping"];
    let command = [&["sh", "-c", &enter, "sh"], &ask[..]].concat();
    let output = pod.namespace.try_exec(command);
    text(&output.stdout) + &text(&output.stderr)
}

/// The last call of a pod that was denied at the socket, with its process.
fn denied_call(node: &ClusterNode, pod: &str) -> Value {
    node.eventually("the verdict", || {
        // A pod on the host network is known to the filter by its first verdict.
        let mut denied = node.verdicts(&["--verdict", "dropped"]);
        denied.retain(|it| it.get("process").is_some() && it["from"]["pod"] == pod);
        denied.pop()
    })
}

#[test]
fn a_policy_denies_connect_before_the_switch_sees_a_packet() {
    requires_the_machine!("redis-server", "redis-cli");
    let mut mounts = Mounts::new();
    let cgroup = mounts.make("0f-1");
    let options = mounts.options();
    let node = ClusterNode::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let frontend = node.pod("frontend", "frontend");
    with_uid(&node, &frontend, "frontend", "0f-1");
    let db = node.pod("db", "db");
    let _redis = db.serve_redis();
    let address = db.v4().to_string();
    let sockets = || node.status()["socket_policies"].clone();
    node.eventually("the programs", || (sockets()["attached"] == 1).then_some(()));
    let missing = sockets()["missing"][0].as_str().unwrap().to_owned();
    assert!(missing.starts_with("default/db: its UID is not known"), "{missing}");
    node.eventually("the rules", || {
        asks(&frontend, &cgroup, &address).contains("PONG").then_some(())
    });

    node.apply("policy", NOTHING_IN);
    let refused = "Operation not permitted";
    node.eventually("the denial", || {
        asks(&frontend, &cgroup, &address).contains(refused).then_some(())
    });
    let event = denied_call(&node, "default/frontend");
    assert_eq!(event["process"]["command"], "redis-cli", "{event}");
    assert_eq!(event["by"][0], "default-deny of NetworkPolicy default/closed-db", "{event}");
    assert_eq!((&event["to"]["pod"], &event["to"]["port"]), (&json!("default/db"), &json!(6379)));
    assert_eq!(event["from"]["ip"], json!(frontend.v4()), "{event}");
    // A process of the pod that is not in its cgroup meets the switch, which tells the difference.
    assert_eq!(sockets()["stricter"], 0, "{}", sockets());
    assert!(frontend.is_kept_from_redis(&db));
    node.eventually("the difference", || (sockets()["looser"] != 0).then_some(()));
    assert_eq!(node.metric("podgate_socket_policies_pods"), 1.0);
    assert!(node.metric("podgate_socket_policies_denied_total{reason=\"policy-denied\"}") > 0.0);

    // The programs stay with the last rules; the next switch takes them over.
    node.kill_switch();
    assert!(asks(&frontend, &cgroup, &address).contains(refused));
    node.start_switch();
    node.eventually("the programs", || (sockets()["attached"] == 1).then_some(()));
    assert!(asks(&frontend, &cgroup, &address).contains(refused));
    node.withdraw("policy");
    node.eventually("the permission", || {
        asks(&frontend, &cgroup, &address).contains("PONG").then_some(())
    });
    node.apply("policy", NOTHING_IN);
    node.eventually("the denial", || {
        asks(&frontend, &cgroup, &address).contains(refused).then_some(())
    });
    assert!(node.stop_switch().success());
    assert!(asks(&frontend, &cgroup, &address).contains(refused), "closed, as the option says");
    let pins = mounts.folder.path().join("bpf/podgate-sockets");
    assert!(pins.join("default:frontend/connect4").exists());
    let (empty, state) = (mounts.path("none"), node.state_dir());
    let uninstall = [
        PODGATE,
        "uninstall",
        "--configuration-folder",
        &empty,
        "--plugin-folder",
        &empty,
        "--reservation-folder",
        &empty,
        "--state-dir",
        &state.to_string_lossy(),
        "--bpf-fs",
        &mounts.path("bpf"),
    ];
    let removed = node.namespace.exec(uninstall);
    assert!(removed.contains("podgate-sockets"), "{removed}");
    assert!(!pins.exists());
    assert!(!asks(&frontend, &cgroup, &address).contains(refused));
    node.start_switch();
}

/// No right of the switch reaches the sockets of a pod, but a packet of each passes it.
#[test]
fn connections_from_before_the_programs_are_reset_at_their_next_packet() {
    requires_the_machine!("redis-server", "redis-cli");
    let mut mounts = Mounts::new();
    let cgroup = mounts.make("0f-2");
    let mut options: Vec<String> = mounts.options().into();
    options.push("--denied-reply=reject".to_owned());
    let node = ClusterNode::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let frontend = node.pod("frontend", "frontend");
    let db = node.pod("db", "db");
    let _redis = db.serve_redis();
    let mut live = frontend.connect(db.v4(), 6379).unwrap();
    live.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asks_live = || -> std::io::Result<usize> {
        live.write_all(b"PING\r\n")?;
        live.read(&mut [0; 16])
    };
    assert_eq!(asks_live().unwrap(), "+PONG\r\n".len());
    with_uid(&node, &frontend, "frontend", "0f-2");
    let address = db.v4().to_string();
    node.eventually("the programs", || {
        (node.status()["socket_policies"]["attached"] == 1).then_some(())
    });
    assert_eq!(asks_live().unwrap(), "+PONG\r\n".len(), "it goes on");
    node.apply("policy", NOTHING_IN);
    node.eventually("the denial", || {
        asks(&frontend, &cgroup, &address).contains("Operation not permitted").then_some(())
    });
    let ended = node.eventually("the reset", || asks_live().err());
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_pod_is_attached_when_its_programs_and_rules_are_there() {
    requires_the_machine!("redis-cli");
    let mut mounts = Mounts::new();
    let cgroups = ["0f-7", "0f-8", "0f-9"].map(|uid| (uid, mounts.make(uid)));
    let options = mounts.options();
    let node = ClusterNode::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    node.apply("policy", NOTHING_OUT);
    for (uid, cgroup) in &cgroups {
        let object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": uid, "namespace": "default", "uid": uid, "labels": {"role": "agent"}},
            "spec": {"nodeName": node.name(), "containers": [{"name": "c", "image": "x"}]}});
        node.write(&format!("pod-{uid}"), &object.to_string());
        let namespace = Namespace::new(uid);
        let added = node.plugin("ADD", uid, &namespace);
        assert!(added.status.success(), "{}", text(&added.stdout));
        // Its first process, as soon as the runtime may start it.
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
        let ask =
            ["sh", "-c", &enter, "sh", "timeout", "2", "redis-cli", "-h", "10.77.0.1", "ping"];
        let asked = namespace.try_exec(ask);
        let said = text(&asked.stdout) + &text(&asked.stderr);
        assert!(said.contains("Operation not permitted"), "{said}");
        let event = denied_call(&node, &format!("default/{uid}"));
        assert_eq!(event["by"][0], "default-deny of NetworkPolicy default/closed-agent", "{event}");
        assert!(node.plugin("DEL", uid, &namespace).status.success());
    }
    assert_eq!(
        node.status()["socket_policies"]["closed"],
        0,
        "nobody asked before there were rules"
    );
}

#[test]
fn without_cgroup_v2_there_are_no_socket_policies_and_a_reason() {
    requires_the_machine!();
    let folder = TempDir::new("cgroup-v1");
    let root = folder.path().to_string_lossy().into_owned();
    let node = ClusterNode::start(&["--socket-policies=on", "--cgroup-root", &root]);
    let sockets = node.status()["socket_policies"].clone();
    assert_eq!(sockets["state"], "unavailable");
    assert_eq!(sockets["reason"], json!(format!("{root}: no hierarchy of cgroup v2")));
    let text = node.podgate(&["status"]);
    assert!(
        text.contains(&format!("socket policies: {root}: no hierarchy of cgroup v2")),
        "{text}"
    );
}
