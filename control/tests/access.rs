//! Access to the API server: TLS, its authority, bearer tokens, client certificates.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use control::Kind;
use control::api_server::{Access, Event, Pace, connect, watch};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use testkit::TempDir;
use testkit::api_server::{ApiServer, Stream};
use tokio::sync::mpsc;

/// A certificate authority, and what it signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key, PEM.
struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        Identity { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }
}

/// An API server behind TLS; asks for certificates of `clients` if that is given.
fn server(authority: &Authority, clients: Option<&Authority>) -> ApiServer {
    let Identity { certificate, key } = authority.sign("127.0.0.1");
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.certificate.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let config = Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap());
    let wrap = move |stream: TcpStream| {
        let connection =
            ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
        Ok(Box::new(StreamOwned::new(connection, stream)) as Box<dyn Stream>)
    };
    let server = ApiServer::wrapping(TcpListener::bind, Box::new(wrap));
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    server
}

/// Watches with this kubeconfig until everything is told (`Ok`) or a request failed.
fn try_access(server: &ApiServer, cluster: Value, user: Value) -> Result<usize, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = server.kubeconfig_with(cluster, user);
        let connection =
            connect(&Access::Kubeconfig(kubeconfig)).await.map_err(|error| error.to_string())?;
        assert_eq!(connection.server, format!("https://{}", server.address()));
        let (sender, mut receiver) = mpsc::channel(64);
        let _tasks = watch(&connection.client, Pace::default(), &sender);
        let mut nodes = 0;
        loop {
            let event = tokio::time::timeout(Duration::from_secs(60), receiver.recv()).await;
            match event.expect("an event in time").expect("the watch goes on") {
                Event::Trouble(_, why) => return Err(why),
                Event::Resync(Kind::Node, objects, _) => nodes = objects.len(),
                Event::Synced => return Ok(nodes),
                _ => {}
            }
        }
    })
}

fn cluster(server: &ApiServer, authority: &std::path::Path) -> Value {
    json!({"server": format!("https://{}", server.address()), "certificate-authority": authority})
}

fn write(folder: &TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_bearer_token_over_tls() {
    let folder = TempDir::new("access-token");
    let authority = Authority::new();
    let server = server(&authority, None);
    server.ask_for_token("secret");
    let ca = write(&folder, "ca", &authority.certificate.pem());
    let token = write(&folder, "token", "secret");
    assert_eq!(try_access(&server, cluster(&server, &ca), json!({"token": "secret"})), Ok(1));
    assert_eq!(try_access(&server, cluster(&server, &ca), json!({"tokenFile": token})), Ok(1));
    let error = try_access(&server, cluster(&server, &ca), json!({"token": "other"})).unwrap_err();
    assert!(error.contains("401"), "{error}");
}

#[test]
fn a_client_certificate() {
    let folder = TempDir::new("access-certificate");
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = server(&authority, Some(&clients));
    let ca = write(&folder, "ca", &authority.certificate.pem());
    let user = |identity: Identity| {
        let certificate = write(&folder, "certificate", &identity.certificate.pem());
        let key = write(&folder, "key", &identity.key.serialize_pem());
        json!({"client-certificate": certificate, "client-key": key})
    };
    let known = user(clients.sign("podgate"));
    assert_eq!(try_access(&server, cluster(&server, &ca), known), Ok(1));
    let stranger = user(authority.sign("podgate"));
    assert!(try_access(&server, cluster(&server, &ca), stranger).is_err());
}

#[test]
fn an_api_server_of_another_authority_is_not_believed() {
    let folder = TempDir::new("access-authority");
    let server = server(&Authority::new(), None);
    let ca = write(&folder, "ca", &Authority::new().certificate.pem());
    let error = try_access(&server, cluster(&server, &ca), json!({})).unwrap_err();
    assert!(!error.is_empty());
    assert!(server.asked("nodes").is_empty(), "it was asked nothing");
}

#[test]
fn a_configuration_that_cannot_be_used_names_its_file() {
    let folder = TempDir::new("access-bad");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fails = |text: Option<&str>| {
        let path = folder.path().join("kubeconfig");
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => drop(std::fs::remove_file(&path)),
        }
        let error = runtime.block_on(connect(&Access::Kubeconfig(path.clone()))).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        text
    };
    fails(None);
    fails(Some("{"));
    fails(Some("apiVersion: v1\nkind: Config\n"));
    let absent = fails(Some(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: \
         {cluster: d, user: u}}], clusters: [{name: d, cluster: {server: 'https://127.0.0.1:1', \
         certificate-authority: /nowhere/ca}}], users: []}",
    ));
    assert!(absent.contains("/nowhere/ca") || absent.contains("user"), "{absent}");
}

/// Opening a FIFO would block until another process writes to it.
#[test]
fn a_fifo_as_kubeconfig_or_token_is_refused_and_not_waited_for() {
    let folder = TempDir::new("access-fifo");
    let fifo = folder.path().join("fifo");
    testkit::make_fifo(&fifo);
    let server = ApiServer::new();
    let cluster = json!({"server": format!("http://{}", server.address())});
    let with = |user: Value| server.kubeconfig_with(cluster.clone(), user);
    for kubeconfig in [fifo.clone(), with(json!({"tokenFile": fifo}))] {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let connected = runtime.unwrap().block_on(connect(&Access::Kubeconfig(kubeconfig)));
            sender.send(connected.map(drop).map_err(|error| error.to_string()))
        });
        let refused = receiver.recv_timeout(Duration::from_secs(60)).expect("an answer in time");
        let error = refused.unwrap_err();
        assert!(error.contains(fifo.to_str().unwrap()), "{error}");
        assert!(error.ends_with("is no regular file"), "{error}");
    }
}
