//! A Kubernetes API server, as far as the proxy needs one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{World, soon};

/// A Kubernetes API that knows tokens and keeps leases: `good` is for the audience that is wanted,
/// `elsewhere` for another one, and of `anywhere` the audience is not said.
pub(crate) async fn api(world: &World) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut leases: Vec<serde_json::Value> = vec![serde_json::json!({
            "metadata": {"name": "konnectivity-proxy-server-dead", "resourceVersion": "1",
                "labels": {"k8s-app": "konnectivity-server"}},
            "spec": {"renewTime": "2020-01-01T00:00:00.000000Z", "leaseDurationSeconds": 30},
        })];
        while let Ok((mut stream, _)) = listener.accept().await {
            let Some((line, body)) = request(&mut stream).await else { continue };
            let (status, answer) = answer(&line, &body, &mut leases);
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n",
                answer.len()
            );
            stream.write_all((head + &answer).as_bytes()).await.unwrap();
        }
    });
    kubeconfig(world, address)
}

/// Writes the kubeconfig of an API server at `address`; returns its path.
pub(crate) fn kubeconfig(world: &World, address: SocketAddr) -> PathBuf {
    let path = world.path("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         clusters: [{{name: a, cluster: {{server: \"http://{address}\"}}}}]\n\
         users: [{{name: a, user: {{token: t}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

async fn request(stream: &mut TcpStream) -> Option<(String, serde_json::Value)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
            });
            let body = &bytes[at + 4..];
            if body.len() >= length.unwrap_or(0) {
                let body = serde_json::from_slice(body).unwrap_or_default();
                return Some((head.lines().next()?.to_owned(), body));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn answer(
    line: &str,
    body: &serde_json::Value,
    leases: &mut Vec<serde_json::Value>,
) -> (&'static str, serde_json::Value) {
    use serde_json::json;
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let name = path.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
    let is = |lease: &serde_json::Value| lease["metadata"]["name"] == name;
    match (method, name.as_str()) {
        ("POST", "tokenreviews") => {
            let audiences = match body["spec"]["token"].as_str() {
                Some("good") => Some(json!(["konn"])),
                Some("elsewhere") => Some(json!(["other"])),
                Some("anywhere") => Some(json!(null)),
                _ => None,
            };
            let audiences = audiences.filter(|_| body["spec"]["audiences"] == json!(["konn"]));
            let user = "system:serviceaccount:kube-system:konnectivity-agent";
            let status = json!({"authenticated": audiences.is_some(), "audiences": audiences,
                "user": {"username": user}});
            ("201 Created", json!({"status": status}))
        }
        ("GET", "leases") => ("200 OK", json!({"items": leases})),
        ("POST", "leases") => {
            let mut lease = body.clone();
            lease["metadata"]["resourceVersion"] = json!("2");
            leases.push(lease.clone());
            ("201 Created", lease)
        }
        ("GET", _) => match leases.iter().find(|it| is(it)) {
            Some(lease) => ("200 OK", lease.clone()),
            None => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "not found", "reason": "NotFound", "code": 404});
                ("404 Not Found", status)
            }
        },
        ("DELETE", _) => {
            leases.retain(|it| !is(it));
            ("200 OK", json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        _ => ("200 OK", body.clone()),
    }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

pub(crate) async fn leases_of(api: &SocketAddr) -> String {
    get(*api, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await
}

pub(crate) async fn has_lease(api: &SocketAddr, server: &str) {
    while !leases_of(api).await.contains(&format!("konnectivity-proxy-server-{server}\"")) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Where the API server of this kubeconfig is.
pub(crate) fn address_of(kubeconfig: &Path) -> SocketAddr {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    text.split("http://").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
}
