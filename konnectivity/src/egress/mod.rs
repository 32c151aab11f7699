//! EgressSelectorConfiguration: the proxies that kube-apiserver sends traffic through (kubernetes.io, "Set up
//! Konnectivity service"; KEP 1281).
//!
//! There are four contexts. Three have names of their own in the file; the fourth, `direct`, has
//! everything else.

mod read;

use std::fmt;

pub use read::read;
use serde_json::{Value, json};

/// The route of one kind of the API server's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// `cluster`, `controlplane`, `etcd`, or `direct` for everything else.
    pub name: &'static str,
    /// Its traffic.
    pub traffic: &'static str,
    /// Its route.
    pub route: Route,
    /// Warnings about valid but unlikely settings.
    pub warnings: Vec<String>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Without any proxy.
    Direct,
    /// gRPC over the unix socket at this path.
    GrpcUnix(String),
    /// CONNECT over the unix socket at this path.
    ConnectUnix(String),
    /// CONNECT to this URL; with these files for TLS, if it is https.
    ConnectTcp {
        /// The proxy.
        url: String,
        /// Client certificate, its key, the authority of the proxy's.
        files: Option<[String; 3]>,
    },
}

/// A fault and its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A path like `egressSelections[0].connection`.
    pub field: String,
    /// The fault.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.is_empty() {
            true => f.write_str(&self.text),
            false => write!(f, "{}: {}", self.field, self.text),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::GrpcUnix(path) => write!(f, "gRPC over the unix socket {path}"),
            Self::ConnectUnix(path) => write!(f, "HTTP CONNECT over the unix socket {path}"),
            Self::ConnectTcp { url, files: None } => write!(f, "HTTP CONNECT to {url}, in clear"),
            Self::ConnectTcp { url, files: Some([cert, ..]) } => {
                write!(f, "HTTP CONNECT to {url}, showing {cert}")
            }
        }
    }
}

impl Selection {
    /// As one line of JSON.
    pub fn to_json(&self) -> Value {
        let mut value = json!({"context": self.name, "traffic": self.traffic});
        let (protocol, rest) = match &self.route {
            Route::Direct => ("Direct", json!({})),
            Route::GrpcUnix(path) => ("GRPC", json!({"udsName": path})),
            Route::ConnectUnix(path) => ("HTTPConnect", json!({"udsName": path})),
            Route::ConnectTcp { url, .. } => ("HTTPConnect", json!({"url": url})),
        };
        value["proxyProtocol"] = json!(protocol);
        if let Some(rest) = rest.as_object() {
            for (key, field) in rest {
                value[key] = field.clone();
            }
        }
        value["warnings"] = json!(self.warnings);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(selections: &str) -> String {
        format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n\
             egressSelections:\n{selections}"
        )
    }

    #[test]
    fn what_goes_where() {
        let selections = read(&file(
            "- name: cluster\n  connection:\n    proxyProtocol: GRPC\n    \
             transport: {uds: {udsName: /run/server.sock}}\n\
             - name: controlplane\n  connection: {proxyProtocol: Direct}\n\
             - name: etcd\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      \
             tcp:\n        url: https://10.0.0.1:8131\n        \
             tlsConfig: {caBundle: /ca, clientKey: /key, clientCert: /cert}\n",
        ))
        .unwrap();
        let routes: Vec<String> =
            selections.iter().map(|it| format!("{}: {}", it.name, it.route)).collect();
        assert_eq!(
            routes,
            [
                "cluster: gRPC over the unix socket /run/server.sock",
                "controlplane: direct",
                "etcd: HTTP CONNECT to https://10.0.0.1:8131, showing /cert",
                "direct: direct",
            ]
        );
        assert_eq!(selections[0].to_json()["udsName"], "/run/server.sock");
    }

    #[test]
    fn what_is_not_selected_goes_directly() {
        let selections = read(&file(" []")).unwrap();
        assert!(selections.iter().all(|it| it.route == Route::Direct));
        assert_eq!(selections.len(), 4);
    }

    #[test]
    fn all_faults_with_their_fields() {
        let faults = read(
            "apiVersion: v1\nkind: Egress\negressSelections:\n\
             - name: nodes\n  connection: {proxyProtocol: SOCKS}\n\
             - name: cluster\n  connection:\n    proxyProtocol: GRPC\n    \
             transport: {tcp: {url: https://a}}\n\
             - name: etcd\n  connection:\n    proxyProtocol: HTTPConnect\n    \
             transport: {tcp: {url: http://a, tlsConfig: {}}, udp: {}}\n\
             - name: Etcd\n  connection: {proxyProtocol: Direct, transport: {}}\n\
             - name: controlplane\n  connection: {proxyProtocol: HTTPConnect}\n",
        )
        .unwrap_err();
        let fields: Vec<&str> = faults.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "apiVersion",
                "kind",
                "egressSelections[0].name",
                "egressSelections[0].connection.proxyProtocol",
                "egressSelections[1].connection.transport.tcp",
                "egressSelections[2].connection.transport.udp",
                "egressSelections[2].connection.transport.tcp.tlsConfig",
                "egressSelections[3].connection.transport",
                "egressSelections[4].connection.transport",
            ]
        );
    }

    #[test]
    fn a_context_is_selected_once() {
        let text = file(
            "- {name: master, connection: {proxyProtocol: Direct}}\n\
             - {name: controlplane, connection: {proxyProtocol: Direct}}\n",
        );
        let faults = read(&text).unwrap_err();
        assert_eq!(faults[0].field, "egressSelections[1].name");
    }

    #[test]
    fn what_is_no_document() {
        for text in ["", "[]", "a: b: c", "- x"] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
