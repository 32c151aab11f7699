//! The Hubble Observer API, asked by a client of another gRPC implementation.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use agent::config::{Config, Options};
use control::api_server::Access;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::requires;

use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, POLICY, cluster, until};
use crate::{API, DB, WEB, syn};

const PYTHON: &str = "/usr/bin/python3";
const FLOWS: &str = "/observer.Observer/GetFlows";

/// Whether Python has grpcio, which `scripts/setup` installs.
fn has_client() -> bool {
    let import = Command::new(PYTHON).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

fn command(method: &str, request: &Value, target: &str, trust: &[&str]) -> Command {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/hubble-client.py");
    let mut command = Command::new(PYTHON);
    command.arg(client).args([method, &request.to_string(), target]).args(trust);
    command
}

/// The responses, or the status of the failure.
fn call(method: &str, request: &Value, target: &str, trust: &[&str]) -> Result<Vec<Value>, String> {
    let output = command(method, request, target, trust).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match output.status.code() {
        Some(0) => {
            let lines = text(output.stdout);
            Ok(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
        }
        _ => Err(text(output.stderr)),
    }
}

fn hubble(options: Options) -> agent::config::Hubble {
    Config::resolve(options, "node-a", &BTreeSet::new()).unwrap().hubble
}

/// A node with a denied connection (port 81) and an allowed one (port 80).
struct Scene {
    files: NodeFiles,
    node: Node,
    target: String,
    web: crate::node::Pod,
}

impl Scene {
    fn new(label: &str) -> Self {
        let files = NodeFiles::new(label);
        files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
        files.manifest("policy.yaml", POLICY);
        let socket = files.path("hubble.sock");
        let listen = format!("unix://{}", socket.display());
        let options =
            Options { hubble_listen: Some(listen.parse().unwrap()), ..Options::default() };
        let node = Node::start_with(&files, |config| config.hubble = hubble(options));
        let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
        let api = node.attach("api", API);
        api.send(&syn(API, DB, 80));
        db.expects(&syn(API, DB, 80), DB);
        web.send(&syn(WEB, DB, 81));
        node.wait_for_event(|event| event.to.port == Some(81));
        Self { files, node, target: listen, web }
    }

    /// Destination ports of the flows that a request gets.
    fn ports(&self, request: &Value) -> Vec<u64> {
        let flows = call(FLOWS, request, &self.target, &[]).unwrap();
        let port = |it: &Value| it["flow"]["l4"]["TCP"]["destination_port"].as_u64().unwrap();
        flows.iter().map(port).collect()
    }
}

#[test]
fn flows_are_verdicts() {
    requires!(has_client(), "python3-grpcio is not installed");
    let scene = Scene::new("hubble-flows");
    let flows = call(FLOWS, &json!({}), &scene.target, &[]).unwrap();
    assert_eq!(flows.len(), 2, "{flows:?}");
    assert_eq!(flows[1]["node_name"], "node-a");
    let (allowed, denied) = (&flows[0]["flow"], &flows[1]["flow"]);
    assert_eq!((&allowed["verdict"], &denied["verdict"]), (&json!(1), &json!(2)));
    assert_eq!(denied["time"], flows[1]["time"]);
    assert_eq!(denied["IP"], json!({"source": WEB, "destination": DB, "ipVersion": 1}), "{denied}");
    assert_eq!(denied["l4"]["TCP"]["flags"], json!({"SYN": true}));
    assert_eq!(
        denied["source"],
        json!({"namespace": "default", "pod_name": "web", "labels": ["k8s:role=web"],
            "identity": denied["source"]["identity"], "cluster_name": "default",
            "workloads": [{"name": "web", "kind": "Pod"}]})
    );
    // Clients show those below as reserved ones.
    assert!(denied["source"]["identity"].as_u64().unwrap() >= 256, "{denied}");
    assert_ne!(denied["source"]["identity"], allowed["source"]["identity"]);
    // POLICY_DENIED, a policy verdict, towards the pod.
    assert_eq!(denied["drop_reason_desc"], 133);
    assert_eq!(denied["event_type"], json!({"type": 5}));
    assert_eq!(denied["traffic_direction"], 1);
    let policy = json!([{"name": "db", "namespace": "default", "kind": "NetworkPolicy"}]);
    assert_eq!(denied["ingress_denied_by"], policy);
    assert_eq!(allowed["ingress_allowed_by"], policy);
    assert!(denied["Summary"].as_str().unwrap().contains("policy-denied by default-deny of"));

    for (filter, expected) in [
        (json!({}), &[80, 81][..]),
        (json!({"source_pod": ["default/we"]}), &[81]),
        (json!({"source_pod": ["web", "api"], "destination_port": ["80"]}), &[80]),
        (json!({"destination_pod": ["default/"]}), &[80, 81]),
        (json!({"source_label": ["role in (web,db)"]}), &[81]),
        (json!({"destination_label": ["k8s:role=db,!other"]}), &[80, 81]),
        (json!({"verdict": [2, 3]}), &[81]),
        (json!({"destination_ip": ["10.1.0.0/30"], "protocol": ["tcp"]}), &[80, 81]),
        (json!({"source_ip": [API]}), &[80]),
        (json!({"protocol": ["udp"]}), &[]),
        (json!({"drop_reason_desc": [133]}), &[81]),
        (json!({"http_path": ["/"]}), &[]),
        (json!({"source_workload": [{"name": "api"}]}), &[80]),
        (json!({"destination_workload": [{"kind": "Pod", "name": "db"}]}), &[80, 81]),
        (json!({"destination_workload": [{"kind": "Job"}]}), &[]),
    ] {
        assert_eq!(scene.ports(&json!({"whitelist": [filter]})), expected, "{filter}");
        let others: Vec<u64> = [80, 81].into_iter().filter(|it| !expected.contains(it)).collect();
        assert_eq!(scene.ports(&json!({"blacklist": [filter]})), others, "not {filter}");
    }
    let both = json!([{"source_pod": ["web"]}, {"destination_port": ["80"]}]);
    assert_eq!(scene.ports(&json!({"whitelist": both})), [80, 81], "one has to match");
    assert_eq!(scene.ports(&json!({"number": 1})), [81]);
    assert_eq!(scene.ports(&json!({"number": 1, "first": true})), [80]);
    let seconds = denied["time"]["seconds"].as_i64().unwrap();
    let before = json!({"seconds": seconds - 3600});
    assert_eq!(scene.ports(&json!({"since": before})), [80, 81]);
    assert_eq!(scene.ports(&json!({"until": before})), Vec::<u64>::new());
    assert_eq!(scene.ports(&json!({"since": {"seconds": seconds + 3600}})), Vec::<u64>::new());
    let masked = json!({"number": 1, "field_mask": {"paths": ["verdict", "node_name"]}});
    let masked = call(FLOWS, &masked, &scene.target, &[]).unwrap();
    assert_eq!(masked[0]["flow"], json!({"verdict": 2, "node_name": "node-a"}));
}

/// Hubble's AUDIT: a policy would deny it, and does not.
#[test]
fn what_staged_policies_would_change_is_audited() {
    requires!(has_client(), "python3-grpcio is not installed");
    let scene = Scene::new("hubble-staged");
    let next = POLICY
        .replace("role: api", "role: cache")
        .replace("{name: db,", "{name: next, annotations: {podgate.io/stages: db},");
    scene.files.manifest("next.yaml", &next);
    // The connection that is open already is compared.
    let audited = json!({"whitelist": [{"verdict": [4]}]});
    until(|| scene.ports(&audited) == [80]);
    let flows = call(FLOWS, &audited, &scene.target, &[]).unwrap();
    let flow = &flows[0]["flow"];
    let policy = json!([{"name": "next", "namespace": "default", "kind": "NetworkPolicy"}]);
    assert_eq!(flow["ingress_denied_by"], policy, "{flow}");
    assert_eq!(scene.ports(&json!({"whitelist": [{"verdict": [1]}]})), [80]);
}

#[test]
fn new_flows_are_followed() {
    requires!(has_client(), "python3-grpcio is not installed");
    let scene = Scene::new("hubble-follow");
    let wanted = json!({"follow": true, "number": 1, "whitelist": [{"source_pod": ["web"]}]});
    let mut client = command(FLOWS, &wanted, &scene.target, &[]);
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        value["flow"]["l4"]["TCP"]["destination_port"].as_u64().unwrap()
    };
    assert_eq!(next(), 81, "the last of the past");
    scene.web.send(&syn(WEB, DB, 82));
    assert_eq!(next(), 82);
    // The switch ends its streams when it ends, and removes the socket.
    drop(scene.node);
    assert!(lines.next().is_none());
    assert!(client.wait().unwrap().success());
    assert!(!scene.files.path("hubble.sock").exists());
}

#[test]
fn the_server_tells_about_itself() {
    requires!(has_client(), "python3-grpcio is not installed");
    let scene = Scene::new("hubble-status");
    let one = |method: &str| call(method, &json!({}), &scene.target, &[]).unwrap().remove(0);
    let status = one("/observer.Observer/ServerStatus");
    assert_eq!((&status["num_flows"], &status["seen_flows"]), (&json!(2), &json!(2)), "{status}");
    assert_eq!(status["max_flows"], 4096);
    assert_eq!(status["num_connected_nodes"]["value"], 1);
    assert!(status["flows_rate"].as_f64().unwrap() > 0.0);
    assert!(status["version"].as_str().unwrap().starts_with("podgate "));
    let nodes = one("/observer.Observer/GetNodes");
    let node = &nodes["nodes"][0];
    assert_eq!((&node["name"], &node["state"]), (&json!("node-a"), &json!(1)), "{nodes}");
    assert_eq!(node["address"], scene.target);
    let namespaces = one("/observer.Observer/GetNamespaces");
    assert_eq!(namespaces["namespaces"], json!([{"cluster": "default", "namespace": "default"}]));
    assert_eq!(one("/grpc.health.v1.Health/Check"), json!({"status": 1}));
    let refused = |method: &str, request: Value| {
        call(method, &request, &scene.target, &[]).unwrap_err().trim().to_owned()
    };
    let error = refused("/observer.Observer/GetAgentEvents", json!({}));
    assert!(error.starts_with("UNIMPLEMENTED"), "{error}");
    let error = refused(FLOWS, json!({"whitelist": [{"source_ip": ["döner"]}]}));
    assert_eq!(error, "INVALID_ARGUMENT: source_ip: 'döner' is neither an address nor a network");
}

/// A client of the Peer API, and its notifications.
struct Notified {
    client: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Notified {
    fn of(target: &str, trust: &[&str]) -> Self {
        let mut client = command("/peer.Peer/Notify", &json!({}), target, trust);
        let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(client.stdout.take().unwrap()).lines();
        Self { client, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// Hubble Relay finds the nodes by this stream.
#[test]
fn peers_are_the_nodes_and_their_changes() {
    requires!(has_client(), "python3-grpcio is not installed");
    let scene = Scene::new("hubble-peers");
    // At a unix socket no other node is reached.
    let mut alone = Notified::of(&scene.target, &[]);
    let own = json!({"name": "node-a", "address": scene.target, "type": 1});
    assert_eq!(alone.next(), own);

    let files = NodeFiles::new("hubble-peers-tls");
    files.manifest("cluster.yaml", &cluster(&[]));
    let certificates = Certificates::new(&files);
    let options = certificates.options();
    let node = Node::start_with(&files, |config| config.hubble = hubble(options));
    let (target, port) = (node.hubble_address().to_string(), node.hubble_address().port());
    let names = ["ca.crt", "ca-client.crt", "ca-client.key"].map(|name| certificates.text(name));
    let trust = names.each_ref().map(String::as_str);
    until(|| {
        let first = Notified::of(&target, &trust).next();
        first["address"] == format!("192.0.2.1:{port}")
    });
    let mut peers = Notified::of(&target, &trust);
    let of = |node: &str, address: &str, kind: u32| {
        let server_name = format!("{node}.default.hubble-grpc.cilium.io");
        json!({"name": node, "address": address, "type": kind, "tls": {"server_name": server_name}})
    };
    assert_eq!(peers.next(), of("node-a", &format!("192.0.2.1:{port}"), 1));
    let other = |address: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-b}}\n\
             status: {{addresses: [{{type: InternalIP, address: \"{address}\"}}]}}\n"
        )
    };
    files.manifest("other.yaml", &other("192.0.2.2"));
    assert_eq!(peers.next(), of("node-b", &format!("192.0.2.2:{port}"), 1));
    files.manifest("other.yaml", &other("2001:db8::2"));
    assert_eq!(peers.next(), of("node-b", &format!("[2001:db8::2]:{port}"), 3));
    std::fs::remove_file(files.path("manifests/other.yaml")).unwrap();
    assert_eq!(peers.next(), of("node-b", &format!("[2001:db8::2]:{port}"), 2));
    // The switch ends its streams when it ends.
    drop(node);
    assert!(peers.lines.next().is_none());
}

/// Certificates in files: of an authority, of the server and of a client.
struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn new(files: &NodeFiles) -> Self {
        let folder = files.path("tls");
        std::fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
        for authority in ["ca", "other"] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            // A certificate whose issuer has its own name counts as signed by itself.
            params.distinguished_name.push(DnType::CommonName, authority);
            write(&format!("{authority}.crt"), params.self_signed(&key).unwrap().pem());
            let issuer = Issuer::new(params, key);
            for end in ["server", "client"] {
                let key = KeyPair::generate().unwrap();
                let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
                params.distinguished_name.push(DnType::CommonName, end);
                let signed = params.signed_by(&key, &issuer).unwrap();
                write(&format!("{authority}-{end}.crt"), signed.pem());
                write(&format!("{authority}-{end}.key"), key.serialize_pem());
            }
        }
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    /// Options of a server at an address.
    fn options(&self) -> Options {
        Options {
            hubble_listen: Some("127.0.0.1:0".parse().unwrap()),
            hubble_cert_file: Some(self.file("ca-server.crt")),
            hubble_key_file: Some(self.file("ca-server.key")),
            hubble_client_ca_file: Some(self.file("ca.crt")),
            ..Options::default()
        }
    }
}

#[test]
fn clients_of_an_address_have_a_certificate_or_a_token() {
    requires!(has_client(), "python3-grpcio is not installed");
    let mut server = ApiServer::new();
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    server.add_user("good", "viewer");
    server.add_user("other", "somebody");
    server.grant("viewer", "/observer.Observer/ServerStatus");
    let files = NodeFiles::new("hubble-tls");
    let certificates = Certificates::new(&files);
    let options = certificates.options();
    let access = Access::Kubeconfig(server.kubeconfig());
    let node = Node::start_on(&files, Kernel::default(), |config| {
        config.manifests.clear();
        config.api_server = Some(access);
        config.hubble = hubble(options);
    });
    until(|| node.http("GET /readyz HTTP/1.1").0 == 200);
    let target = node.hubble_address().to_string();
    let ca = certificates.text("ca.crt");
    let status = |trust: &[&str]| {
        let answer = call("/observer.Observer/ServerStatus", &json!({}), &target, trust);
        // The library logs before.
        answer.map_err(|text| {
            eprintln!("{text}");
            let last = text.lines().last().unwrap_or_default();
            last.split(':').next().unwrap_or_default().to_owned()
        })
    };
    let pair = |name: &str| {
        [certificates.text(&format!("{name}.crt")), certificates.text(&format!("{name}.key"))]
    };
    let [crt, key] = pair("ca-client");
    assert_eq!(status(&[&ca, &crt, &key]).unwrap()[0]["max_flows"], 4096);
    let [crt, key] = pair("other-client");
    assert_eq!(status(&[&ca, &crt, &key]).unwrap_err(), "UNAVAILABLE", "no known authority");
    assert_eq!(status(&[&ca, "Bearer good"]).unwrap().len(), 1);
    // user:good, as hubble sends a password
    assert_eq!(status(&[&ca, "Basic dXNlcjpnb29k"]).unwrap().len(), 1);
    for (trust, expected) in [
        (&[ca.as_str()][..], "UNAUTHENTICATED"),
        (&[&ca, "Bearer bad"], "UNAUTHENTICATED"),
        (&[&ca, "Bearer other"], "PERMISSION_DENIED"),
        // Without TLS there is no answer.
        (&[], "UNAVAILABLE"),
    ] {
        assert_eq!(status(trust).unwrap_err(), expected, "{trust:?}");
    }
    let flows = call(FLOWS, &json!({}), &target, &[&ca, "Bearer good"]).unwrap_err();
    assert!(flows.contains("PERMISSION_DENIED"), "a right is for one method: {flows}");
    server.go_away();
    assert_eq!(status(&[&ca, "Bearer fresh"]).unwrap_err(), "UNAVAILABLE");
    let [crt, key] = pair("ca-client");
    assert_eq!(status(&[&ca, &crt, &key]).unwrap().len(), 1, "needs no API server");
}

#[test]
fn an_address_needs_something_to_know_clients_by() {
    let files = NodeFiles::new("hubble-open");
    let options =
        Options { hubble_listen: Some("127.0.0.1:0".parse().unwrap()), ..Options::default() };
    let error = Node::try_start_with(&files, |config| config.hubble = hubble(options));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("hubble-listen: needs hubble-client-ca-file"), "{error}");
}
