//! Clients elsewhere: scrapers with a token, and `kubectl podgate` through the API server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use agent::config::{Config, Options};
use control::api_server::Access;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;

use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, until};
use crate::{DB, WEB, syn};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A certificate for `localhost` in files, and what trusts it.
struct Certificate {
    files: (PathBuf, PathBuf),
    trust: Arc<ClientConfig>,
}

impl Certificate {
    fn new(files: &NodeFiles) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let paths = (files.path("tls.crt"), files.path("tls.key"));
        std::fs::write(&paths.0, made.cert.pem()).unwrap();
        std::fs::write(&paths.1, made.signing_key.serialize_pem()).unwrap();
        Self { files: paths, trust: trusting(made.cert.der().clone()) }
    }

    fn connect(&self, address: SocketAddr) -> std::io::Result<Tls> {
        connect(&self.trust, address)
    }
}

fn trusting(certificate: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth())
}

fn connect(trust: &Arc<ClientConfig>, address: SocketAddr) -> std::io::Result<Tls> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::clone(trust), name).map_err(std::io::Error::other)?;
    Ok(StreamOwned::new(client, stream))
}

/// Status code and body of an answer.
fn ask(mut stream: Tls, line: &str, header: &str) -> (u16, String) {
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The server may close without a TLS farewell.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn cluster(server: &ApiServer) {
    server.apply(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "labels": {"zone": "a"}},
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}));
    server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    for name in ["db", "web"] {
        server.apply(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"role": name}},
            "spec": {"nodeName": "node-a", "containers": []}}));
    }
    server.apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}},
            "ingress": [{"ports": [{"port": 80}]}]}}));
}

fn start(files: &NodeFiles, server: &ApiServer, certificate: Option<&Certificate>) -> Node {
    let options = Options {
        metrics_listen: Some("127.0.0.1:0".parse().unwrap()),
        metrics_cert_file: certificate.map(|it| it.files.0.clone()),
        metrics_key_file: certificate.map(|it| it.files.1.clone()),
        ..Options::default()
    };
    let resolved = Config::resolve(options, "node-a", &BTreeSet::new()).unwrap();
    let access = Access::Kubeconfig(server.kubeconfig());
    let node = Node::start_on(files, Kernel::default(), |config| {
        config.manifests.clear();
        config.api_server = Some(access);
        config.metrics = resolved.metrics;
    });
    until(|| node.http("GET /readyz HTTP/1.1").0 == 200);
    node
}

#[test]
fn a_scraper_needs_a_token_and_a_right() {
    let mut server = ApiServer::new();
    cluster(&server);
    server.add_user("good", "prometheus");
    server.add_user("other", "somebody");
    server.grant("prometheus", "/metrics");
    let files = NodeFiles::new("scraper");
    let certificate = Certificate::new(&files);
    let node = start(&files, &server, Some(&certificate));
    let address = node.https_address();
    let ask = |line: &str, header: &str| ask(certificate.connect(address).unwrap(), line, header);
    let (code, page) = ask("GET /metrics", "Authorization: Bearer good");
    assert_eq!(code, 200, "{page}");
    assert!(page.contains("podgate_ready 1\n"), "{page}");
    for (line, header, expected) in [
        ("GET /metrics", "", 401),
        ("GET /metrics", "Authorization: Basic good", 401),
        ("GET /metrics", "Authorization: Bearer bad", 401),
        ("GET /metrics", "Authorization: Bearer other", 403),
        // A right is for one path.
        ("GET /podgate/v1/status", "Authorization: Bearer good", 403),
        ("GET /podgate/v1/observe", "Authorization: Bearer good", 403),
        // A token for the API server is none to be forwarded.
        ("GET /metrics", "X-Podgate-Authorization: Bearer good", 401),
        ("POST /metrics", "Authorization: Bearer good", 405),
    ] {
        let (code, page) = ask(line, header);
        assert_eq!(code, expected, "{line} {header}: {page}");
        assert!(!page.contains("podgate_ready"), "{page}");
    }
    // Whoever repeats a request costs the API server nothing.
    let before = server.reviews();
    for _ in 0..20 {
        assert_eq!(ask("GET /metrics", "Authorization: Bearer good").0, 200);
        assert_eq!(ask("GET /metrics", "Authorization: Bearer bad").0, 401);
    }
    let after = server.reviews();
    assert!(after.0 - before.0 <= 4 && after.1 - before.1 <= 2, "{before:?} {after:?}");
    // Without TLS there is no answer; idle clients do not block others.
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut plain = TcpStream::connect(address).unwrap();
    plain
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"));
    assert_eq!(ask("GET /metrics", "Authorization: Bearer good").0, 200);
    drop(idle);
    // No client is admitted while no API server can authenticate it.
    server.go_away();
    assert_eq!(ask("GET /metrics", "Authorization: Bearer fresh").0, 503);
}

/// A node that was taken over is shown tokens, and shows them to others.
#[test]
fn a_token_for_one_nodes_switch_is_refused_elsewhere() {
    let server = ApiServer::new();
    cluster(&server);
    let viewer = "system:serviceaccount:kube-system:podgate-viewer";
    server.grant(viewer, "/podgate/v1/status");
    for audience in ["podgate/node-a", "podgate/node-b", "podgate"] {
        server.issue(audience, viewer, audience);
    }
    let files = NodeFiles::new("audience");
    let certificate = Certificate::new(&files);
    let node = start(&files, &server, Some(&certificate));
    let address = node.https_address();
    for (token, expected) in [("podgate/node-a", 200), ("podgate/node-b", 401), ("podgate", 401)] {
        let header = format!("X-Podgate-Authorization: Bearer {token}");
        let stream = certificate.connect(address).unwrap();
        let (code, page) = ask(stream, "GET /podgate/v1/status", &header);
        assert_eq!(code, expected, "{token}: {page}");
    }
}

/// The rule that denies if the policy `next` is enforced.
const NEXT: &str = "default-deny of NetworkPolicy default/next";

/// The plugin, as kubectl calls it.
fn plugin(files: &NodeFiles, server: &ApiServer, arguments: &[&str]) -> Output {
    command(files, server, arguments).output().unwrap()
}

fn command(files: &NodeFiles, server: &ApiServer, arguments: &[&str]) -> Command {
    let program = files.path("kubectl-podgate");
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_podgate"), &program);
    let mut command = Command::new(program);
    command.args(arguments).arg("--kubeconfig").arg(server.kubeconfig());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn switch_pod(node: &str, port: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("podgate-{node}"),
            "namespace": "kube-system", "labels": {"app.kubernetes.io/name": "podgate"}},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [
            {"name": "podgate", "ports": [{"name": "metrics", "containerPort": port}]}]}})
}

#[test]
fn kubectl_podgate_asks_switches_through_the_api_server() {
    let server = ApiServer::new();
    cluster(&server);
    let viewer = "system:serviceaccount:kube-system:podgate-viewer";
    for page in ["status", "tables", "observe", "staged", "policies", "journal"] {
        server.grant(viewer, &format!("/podgate/v1/{page}"));
    }
    let files = NodeFiles::new("plugin");
    let certificate = Certificate::new(&files);
    let node = start(&files, &server, Some(&certificate));
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    web.send(&syn(WEB, DB, 81));
    node.wait_for_event(|event| event.to.port == Some(81));

    let address = node.https_address();
    server.apply(switch_pod("node-a", address.port()));
    let trust = Arc::clone(&certificate.trust);
    server.proxy_to(move |target| {
        match target == format!("https:podgate-node-a:{}", address.port()) {
            true => Ok(Box::new(connect(&trust, address)?)),
            false => Err(std::io::ErrorKind::ConnectionRefused.into()),
        }
    });
    let run = |arguments: &[&str]| plugin(&files, &server, arguments);

    let status = run(&["status", "-o", "wide"]);
    assert_eq!(status.status.code(), Some(0), "{status:?}");
    let text = stdout(&status);
    let row = text.lines().find(|line| line.starts_with("node-a")).unwrap();
    assert!(row.contains(" yes ") && row.ends_with("podgate-node-a"), "{text}");
    let whole: Value = serde_json::from_str(&stdout(&run(&["status", "-o", "json"]))).unwrap();
    assert_eq!(whole[0]["node"], "node-a");
    assert_eq!(whole[0]["ports"].as_array().unwrap().len(), 3, "{whole}");
    let yaml = stdout(&run(&["status", "-o", "yaml", "-l", "zone=a"]));
    assert!(yaml.contains("\n  node: node-a\n"), "{yaml}");
    let read: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read[0]["ports"], whole[0]["ports"], "{yaml}");

    let observed = run(&["observe", "-n", "default", "--verdict", "dropped"]);
    let lines = stdout(&observed);
    assert_eq!(lines.lines().count(), 1, "{observed:?}");
    assert!(lines.contains("default/web:") && lines.contains("default/db:81"), "{lines}");
    let labelled = stdout(&run(&["observe", "-A", "-l", "role=db", "-o", "json"]));
    let ports: BTreeSet<u64> = labelled
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["to"]["port"].as_u64().unwrap())
        .collect();
    assert_eq!(ports, [80, 81].into(), "{labelled}");
    assert_eq!(stdout(&run(&["observe", "-n", "other"])), "");

    let explained = run(&["explain", "db"]);
    let text = stdout(&explained);
    assert!(text.contains("NetworkPolicy default/db") && !text.contains("default/web"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("POD") || line.starts_with("default/db")));
    let all = stdout(&run(&["explain", "-A", "-l", "role=web", "-o", "json"]));
    let all: Value = serde_json::from_str(&all).unwrap();
    assert!(all.as_array().unwrap().iter().all(|it| it["pod"] == "default/web"), "{all}");
    assert_eq!(run(&["explain", "ghost"]).status.code(), Some(1));

    let top = run(&["top", "-A", "--interval", "200ms", "-o", "json"]);
    let top: Value = serde_json::from_str(&stdout(&top)).unwrap();
    let pods: BTreeSet<&str> =
        top.as_array().unwrap().iter().map(|it| it["pod"].as_str().unwrap()).collect();
    assert_eq!(pods, ["db", "web"].into(), "{top}");

    assert_eq!(run(&["staged"]).status.code(), Some(0));
    server.apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "next", "namespace": "default",
            "annotations": {"podgate.io/stages": "db"}},
        "spec": {"podSelector": {"matchLabels": {"role": "db"}}}}));
    // The connection to port 80 is open.
    until(|| run(&["staged"]).status.code() == Some(1));
    let rows: Value = serde_json::from_str(&stdout(&run(&["staged", "-o", "json"]))).unwrap();
    assert_eq!((&rows[0]["would"], &rows[0]["port"]), (&json!("deny"), &json!(80)), "{rows}");
    assert_eq!((&rows[0]["by"], &rows[0]["node"]), (&json!(NEXT), &json!("node-a")), "{rows}");
    assert_eq!(run(&["staged", "default/other"]).status.code(), Some(0));

    // A policy is in force on every node at the generation that the API server has.
    let policy = |generation: u32, port: u16| {
        server.apply(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "web", "namespace": "default", "generation": generation},
            "spec": {"podSelector": {"matchLabels": {"role": "web"}},
                "ingress": [{"ports": [{"port": port}]}]}}));
    };
    for generation in 1..4 {
        policy(generation, 80);
        let waited = run(&["wait", "networkpolicy/web", "-n", "default"]);
        assert_eq!(waited.status.code(), Some(0), "{waited:?}");
        let said = String::from_utf8(waited.stderr).unwrap();
        assert!(
            said.contains(&format!("generation {generation}: in force on 1 of 1 nodes")),
            "{said}"
        );
    }
    assert_eq!(run(&["wait", "networkpolicy/ghost"]).status.code(), Some(1));
    assert_eq!(run(&["wait", "pod/web"]).status.code(), Some(2));

    // Of what was seen before; the second switch has no journal, and hides no other.
    let journal = run(&["journal"]);
    assert_eq!(journal.status.code(), Some(1));
    let refused = String::from_utf8(journal.stderr.clone()).unwrap();
    assert!(refused.contains("node-a: 404 podgate runs without --journal"), "{refused}");

    // What is new comes as it happens.
    let mut followed = command(&files, &server, &["observe", "-A", "-f", "--port", "90"]);
    let mut followed = followed.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(followed.stdout.take().unwrap()).lines();
    let (sender, first) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(lines.next()));
    let mut line = None;
    until(|| {
        web.send(&syn(WEB, DB, 90));
        line = first.recv_timeout(Duration::from_millis(200)).ok();
        line.is_some()
    });
    let line = line.unwrap().unwrap().unwrap();
    assert!(line.contains("default/db:90 policy-denied DROPPED"), "{line}");
    followed.kill().unwrap();
    followed.wait().unwrap();

    // A switch that does not answer hides no other, and shows in the exit code.
    server.apply(switch_pod("node-b", 9471));
    let status = run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    let text = stdout(&status);
    assert!(text.contains("node-a") && text.contains("node-b  unknown"), "{text}");
    assert!(text.contains("Attention:\n  node-b: 503 dial"), "{text}");
    // On a busy machine the other one may be late too.
    until(|| {
        let late = run(&["wait", "networkpolicy/web", "-n", "default", "--timeout", "1s"]);
        assert_eq!(late.status.code(), Some(1), "{late:?}");
        let table = stdout(&late);
        assert!(table.contains("node-b"), "{table}");
        !table.contains("node-a")
    });
    assert_eq!(run(&["status", "-l", "zone=a"]).status.code(), Some(0));

    // The caller's own credentials stay with the API server; without its rights there is nothing.
    server.forbid("pods/proxy", true);
    let refused = run(&["status", "-l", "zone=a"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).contains("cannot get resource pods/proxy"), "{refused:?}");
}

#[test]
fn a_certificate_is_made_where_none_is_given() {
    let server = ApiServer::new();
    cluster(&server);
    let files = NodeFiles::new("self-signed");
    let node = start(&files, &server, None);
    // No trusted authority signed it: the handshake ends with that alert.
    let other = Certificate::new(&files);
    let mut stream = other.connect(node.https_address()).unwrap();
    let error = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[test]
fn clients_elsewhere_need_an_api_server() {
    let files = NodeFiles::new("no-api");
    let options =
        Options { metrics_listen: Some("127.0.0.1:0".parse().unwrap()), ..Options::default() };
    let resolved = Config::resolve(options, "node-a", &BTreeSet::new()).unwrap();
    let error = Node::try_start_with(&files, |config| config.metrics = resolved.metrics);
    assert!(error.unwrap_err().to_string().starts_with("metrics-listen: needs an API server"));
}
