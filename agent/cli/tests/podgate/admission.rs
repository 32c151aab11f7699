//! `podgate admission`, as an API server asks it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::{TempDir, eventually};

/// A running webhook.
struct Webhook {
    process: Child,
    address: SocketAddr,
    trusts: CertificateDer<'static>,
    folder: TempDir,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a new certificate for `localhost`.
fn certify(folder: &TempDir) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    fs::write(folder.path().join("tls.crt"), made.cert.pem()).unwrap();
    made.cert.der().clone()
}

const INVARIANTS: &str = "
- {name: only the web reads, only: [shop/app=web], to: shop/app=db, protocol: TCP, port: '*'}
- {name: pay is alone, from: any-pod, to: pay/app=ledger, port: '*', expect: deny}
";

impl Webhook {
    fn start(server: &ApiServer, mode: &str) -> Self {
        let folder = TempDir::new("admission");
        let trusts = certify(&folder);
        let path = |name: &str| folder.path().join(name);
        fs::write(path("invariants.yaml"), INVARIANTS).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_podgate"))
            .args(["admission", "--listen", "127.0.0.1:0", "--mode", mode])
            .args(["--cert-file".into(), path("tls.crt"), "--key-file".into(), path("tls.key")])
            .args(["--invariants".into(), path("invariants.yaml")])
            .args(["--kubeconfig".into(), server.kubeconfig()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut address = None;
        for line in lines.by_ref() {
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once("https://") {
                address = rest.strip_suffix("/validate").and_then(|it| it.parse().ok());
                break;
            }
        }
        let address = address.expect("it says where it serves");
        // What it logs further must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let webhook = Self { process, address, trusts, folder };
        eventually("the policies are listed", || {
            (webhook.ask("GET /readyz", "").unwrap().0 == 200).then_some(())
        });
        webhook
    }

    /// Status code and body of an answer; the certificate must be the one that is trusted.
    fn ask(&self, line: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut roots = RootCertStore::empty();
        roots.add(self.trusts.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth());
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
        let mut stream = StreamOwned::new(client, stream);
        let length = body.len();
        let head =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes())?;
        let mut answer = Vec::new();
        // The server may close without a TLS farewell.
        if let Err(error) = stream.read_to_end(&mut answer)
            && answer.is_empty()
        {
            return Err(error);
        }
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
    }

    fn review(&self, operation: &str, object: &Value) -> Value {
        let is_deletion = operation == "DELETE";
        let (new, old) = if is_deletion { (&Value::Null, object) } else { (object, &Value::Null) };
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u-1", "operation": operation, "object": new, "oldObject": old,
                "kind": {"kind": object["kind"]}, "name": object["metadata"]["name"],
                "namespace": object["metadata"]["namespace"]}});
        let (code, body) = self.ask("POST /validate", &review.to_string()).unwrap();
        assert_eq!(code, 200, "{body}");
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], "u-1");
        answer["response"].take()
    }
}

fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// Lets pods in to the database: those that `peer` selects.
fn db(name: &str, peer: &Value) -> Value {
    policy(
        "shop",
        name,
        json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [peer]}]}),
    )
}

fn cluster() -> ApiServer {
    let server = ApiServer::new();
    for name in ["shop", "pay", "other"] {
        server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    server.apply(db("db", &json!({"podSelector": {"matchLabels": {"app": "web"}}})));
    server.apply(policy("pay", "alone", json!({"podSelector": {}})));
    server
}

#[test]
fn ways_past_the_webhook_are_said() {
    let server = ApiServer::new();
    let webhook = Webhook::start(&server, "warn");
    eventually("the missing configuration is said", || {
        let (_, text) = webhook.ask("GET /metrics", "").unwrap();
        text.contains("podgate_not_enforced{reason=\"webhook-missing\"} 1\n").then_some(())
    });
    let (code, health) = webhook.ask("GET /healthz", "").unwrap();
    assert_eq!(code, 200);
    assert!(health.contains("not enforced: ValidatingWebhookConfiguration"), "{health}");
}

#[test]
fn a_change_that_refutes_an_invariant_is_refused_and_others_are_not() {
    let server = cluster();
    let webhook = Webhook::start(&server, "deny");
    let open = db("more", &json!({"namespaceSelector": {}}));
    let refused = webhook.review("CREATE", &open);
    assert_eq!(refused["allowed"], false, "{refused}");
    assert_eq!(refused["status"]["code"], 403);
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("only the web reads: any pod"), "{message}");
    assert!(message.ends_with("by NetworkPolicy shop/more ingress[0]"), "{message}");

    // One that is closed further, one elsewhere, and one whose meaning is staged.
    let web = json!({"podSelector": {"matchLabels": {"app": "web", "tier": "front"}}});
    let elsewhere = policy("other", "any", json!({"podSelector": {}, "ingress": [{}]}));
    let mut staged = open.clone();
    staged["metadata"]["annotations"] = json!({"podgate.io/stage": "staged"});
    for (operation, object) in
        [("UPDATE", db("db", &web)), ("CREATE", elsewhere), ("CREATE", staged)]
    {
        let answer = webhook.review(operation, &object);
        assert_eq!(answer, json!({"uid": "u-1", "allowed": true, "warnings": []}), "{object}");
    }

    // What closes may not go, and a cluster-wide policy may not open over it.
    let deleted = webhook.review("DELETE", &policy("pay", "alone", json!({"podSelector": {}})));
    assert_eq!(deleted["allowed"], false, "{deleted}");
    let wide = |action: &str| {
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "wide"}, "spec": {"tier": "Admin", "priority": 1,
                "subject": {"namespaces": {}},
                "ingress": [{"action": action, "from": [{"namespaces": {}}]}]}})
    };
    assert_eq!(webhook.review("CREATE", &wide("Accept"))["allowed"], false);
    assert_eq!(webhook.review("CREATE", &wide("Deny"))["allowed"], true);

    // What does not hold anyway is not held against a change.
    server.apply(open);
    eventually("the cluster has changed", || {
        let answer = webhook.review("UPDATE", &db("more", &json!({"namespaceSelector": {}})));
        (answer["allowed"] == true).then_some(())
    });
}

#[test]
fn objects_with_faults_are_refused_and_a_bad_question_is_no_answer() {
    let server = cluster();
    let webhook = Webhook::start(&server, "deny");
    let odd = policy("other", "odd", json!({"podSelector": {}, "ingres": []}));
    let refused = webhook.review("CREATE", &odd);
    assert_eq!(refused["allowed"], false, "{refused}");
    assert!(refused["status"]["message"].as_str().unwrap().starts_with("spec.ingres"), "{refused}");
    let other = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}});
    assert_eq!(webhook.review("CREATE", &other)["allowed"], true);
    for body in ["", "{", "[]", "{\"request\": 7}"] {
        assert_eq!(webhook.ask("POST /validate", body).unwrap().0, 400, "{body}");
    }
    assert_eq!(webhook.ask("POST /metrics", "{}").unwrap().0, 405);
    assert_eq!(webhook.ask("GET /validate", "").unwrap().0, 404);
}

#[test]
fn by_default_authors_are_warned() {
    let server = cluster();
    let webhook = Webhook::start(&server, "warn");
    let answer = webhook.review("CREATE", &db("more", &json!({"namespaceSelector": {}})));
    assert_eq!(answer["allowed"], true, "{answer}");
    let warnings = answer["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{answer}");
    assert!(warnings[0].as_str().unwrap().starts_with("only the web reads: "), "{answer}");
}

#[test]
fn certificate_and_invariants_are_those_of_the_files_as_they_are_now() {
    let server = cluster();
    let mut webhook = Webhook::start(&server, "deny");
    let open = db("more", &json!({"namespaceSelector": {}}));
    assert_eq!(webhook.review("CREATE", &open)["allowed"], false);
    fs::write(
        webhook.folder.path().join("invariants.yaml"),
        "- {name: pay, from: any-pod, to: pay/app=ledger, port: '*', expect: deny}\n",
    )
    .unwrap();
    eventually("the statement is gone", || {
        (webhook.review("CREATE", &open)["allowed"] == true).then_some(())
    });
    let former = std::mem::replace(&mut webhook.trusts, certify(&webhook.folder));
    eventually("the new certificate", || webhook.ask("GET /healthz", "").ok());
    webhook.trusts = former;
    assert!(webhook.ask("GET /healthz", "").is_err());
}

/// Asked about as an API server does, object by object and without a name.
#[test]
fn a_collection_is_deleted_as_its_objects_would_be() {
    let server = cluster();
    let webhook = Webhook::start(&server, "deny");
    let ask = |name: &str| {
        let old = policy("pay", name, json!({"podSelector": {}}));
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u-1", "operation": "DELETE", "object": null, "oldObject": old,
                "kind": {"kind": "NetworkPolicy"}, "namespace": "pay"}});
        let (code, body) = webhook.ask("POST /validate", &review.to_string()).unwrap();
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["response"]["allowed"].take()
    };
    assert_eq!((ask("alone"), ask("unknown")), (json!(false), json!(true)));
}

#[test]
fn of_two_policies_that_make_each_other_superfluous_one_may_go() {
    let server = cluster();
    let twin = policy("pay", "twin", json!({"podSelector": {}}));
    server.apply(twin.clone());
    let webhook = Webhook::start(&server, "deny");
    let dry_run = json!({"request": {"uid": "u-1", "operation": "DELETE", "dryRun": true,
        "oldObject": twin, "kind": {"kind": "NetworkPolicy"}}});
    let (_, tried) = webhook.ask("POST /validate", &dry_run.to_string()).unwrap();
    assert!(tried.contains("\"allowed\":true"), "{tried}");
    // The watch shows neither deletion.
    let alone = policy("pay", "alone", json!({"podSelector": {}}));
    assert_eq!(webhook.review("DELETE", &alone)["allowed"], true);
    let refused = webhook.review("DELETE", &twin);
    assert_eq!(refused["allowed"], false, "{refused}");
}

/// So many rules that pods of their labels cannot all be compared, beside one that opens
/// everything.
#[test]
fn a_policy_that_cannot_be_compared_is_refused() {
    let server = cluster();
    let webhook = Webhook::start(&server, "deny");
    let rules: Vec<Value> = (0..16)
        .map(|n| json!({"from": [{"podSelector": {"matchLabels": {format!("k{n}"): "v"}}}]}))
        .chain([json!({})])
        .collect();
    let open = policy("shop", "open", json!({"podSelector": {}, "ingress": rules}));
    let refused = webhook.review("CREATE", &open);
    assert_eq!(refused["allowed"], false, "{refused}");
    let elsewhere = policy("other", "fine", json!({"podSelector": {}}));
    assert_eq!(webhook.review("CREATE", &elsewhere)["allowed"], true);
}
