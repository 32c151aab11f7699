//! The configuration file, with the field of every fault.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Fault, Route, Selection};

const CONTEXTS: [(&str, &str); 3] = [
    ("cluster", "to nodes, pods and services: logs, exec, webhooks, aggregated APIs"),
    ("controlplane", "to webhooks and aggregated APIs that run beside the API server"),
    ("etcd", "to etcd"),
];
const VERSIONS: [&str; 5] = [
    "apiserver.k8s.io/v1alpha1",
    "apiserver.k8s.io/v1beta1",
    "apiserver.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1",
];

/// Reads a configuration, YAML or JSON; returns the routes of all four contexts.
///
/// # Errors
/// All faults there are.
pub fn read(text: &str) -> Result<Vec<Selection>, Vec<Fault>> {
    let value: Value = match serde_saphyr::from_str(text) {
        Ok(value) => value,
        Err(error) => return Err(vec![Fault { field: String::new(), text: error.to_string() }]),
    };
    let mut reader = Reader { faults: Vec::new() };
    let selections = reader.document(&value);
    if reader.faults.is_empty() { Ok(selections) } else { Err(reader.faults) }
}

struct Reader {
    faults: Vec<Fault>,
}

impl Reader {
    fn fault(&mut self, field: &str, text: impl Into<String>) {
        self.faults.push(Fault { field: field.to_owned(), text: text.into() });
    }

    fn document(&mut self, value: &Value) -> Vec<Selection> {
        let Some(object) = self.object(value, "", &["apiVersion", "kind", "egressSelections"])
        else {
            return Vec::new();
        };
        let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if !VERSIONS.contains(&version) {
            let text = format!("'{version}' is none of {}", VERSIONS.join(", "));
            self.fault("apiVersion", text);
        }
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind != "EgressSelectorConfiguration" {
            self.fault("kind", format!("'{kind}' is not EgressSelectorConfiguration"));
        }
        let mut found: Vec<(&'static str, Route, Vec<String>)> = Vec::new();
        match object.get("egressSelections") {
            None | Some(Value::Null) => self.fault("egressSelections", "missing"),
            Some(Value::Array(entries)) => {
                for (at, entry) in entries.iter().enumerate() {
                    let field = format!("egressSelections[{at}]");
                    let Some((name, route, warnings)) = self.selection(entry, &field) else {
                        continue;
                    };
                    if found.iter().any(|(other, ..)| *other == name) {
                        let text = format!("context '{name}' is selected already");
                        self.fault(&format!("{field}.name"), text);
                    }
                    found.push((name, route, warnings));
                }
            }
            Some(_) => self.fault("egressSelections", "not a list"),
        }
        let mut selections: Vec<Selection> = CONTEXTS
            .into_iter()
            .map(|(name, traffic)| {
                let selected = found.iter().find(|(other, ..)| *other == name).cloned();
                let (_, route, warnings) = selected.unwrap_or((name, Route::Direct, Vec::new()));
                Selection { name, traffic, route, warnings }
            })
            .collect();
        selections.push(Selection {
            name: "direct",
            traffic: "everything else",
            route: Route::Direct,
            warnings: Vec::new(),
        });
        selections
    }

    fn selection(
        &mut self,
        value: &Value,
        field: &str,
    ) -> Option<(&'static str, Route, Vec<String>)> {
        let object = self.object(value, field, &["name", "connection"])?;
        let mut warnings = Vec::new();
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default();
        let lower = name.to_lowercase();
        let known = match lower.as_str() {
            "master" => {
                warnings.push(format!("{field}.name: 'master' is the old name of controlplane"));
                Some("controlplane")
            }
            other => CONTEXTS.iter().map(|(name, _)| *name).find(|name| *name == other),
        };
        if known.is_none() {
            let text = format!("'{name}' is none of cluster, controlplane, etcd");
            self.fault(&format!("{field}.name"), text);
        }
        let field = format!("{field}.connection");
        let connection = match object.get("connection") {
            Some(connection) => self.object(connection, &field, &["proxyProtocol", "transport"])?,
            None => {
                self.fault(&field, "missing");
                return None;
            }
        };
        let transport = connection.get("transport").filter(|it| !it.is_null());
        let protocol = connection.get("proxyProtocol").and_then(Value::as_str).unwrap_or_default();
        let at = format!("{field}.transport");
        let route = match (protocol, transport) {
            ("Direct", None) => Some(Route::Direct),
            ("Direct", Some(_)) => {
                self.fault(&at, "not with proxyProtocol Direct");
                None
            }
            ("GRPC" | "HTTPConnect", None) => {
                self.fault(&at, format!("needed with proxyProtocol {protocol}"));
                None
            }
            ("GRPC" | "HTTPConnect", Some(transport)) => {
                self.transport(transport, &at, protocol == "GRPC", &mut warnings)
            }
            (other, _) => {
                let text = format!("'{other}' is none of Direct, GRPC, HTTPConnect");
                self.fault(&format!("{field}.proxyProtocol"), text);
                None
            }
        };
        Some((known?, route?, warnings))
    }

    fn transport(
        &mut self,
        value: &Value,
        field: &str,
        grpc: bool,
        warnings: &mut Vec<String>,
    ) -> Option<Route> {
        let object = self.object(value, field, &["tcp", "uds"])?;
        let present = |name: &str| object.get(name).filter(|it| !it.is_null());
        match (present("tcp"), present("uds")) {
            (Some(_), Some(_)) => {
                self.fault(field, "tcp and uds exclude each other");
                None
            }
            (None, None) => {
                self.fault(field, "either tcp or uds is needed");
                None
            }
            (Some(_), None) if grpc => {
                self.fault(&format!("{field}.tcp"), "kube-apiserver speaks GRPC over uds only");
                None
            }
            (Some(tcp), None) => self.tcp(tcp, &format!("{field}.tcp"), warnings),
            (None, Some(uds)) => {
                let field = format!("{field}.uds");
                let object = self.object(uds, &field, &["udsName"])?;
                let name = self.text(object, &field, "udsName")?;
                if !Path::new(&name).is_absolute() {
                    warnings.push(format!("{field}.udsName: '{name}' is not absolute"));
                }
                Some(if grpc { Route::GrpcUnix(name) } else { Route::ConnectUnix(name) })
            }
        }
    }

    fn tcp(&mut self, value: &Value, field: &str, warnings: &mut Vec<String>) -> Option<Route> {
        let object = self.object(value, field, &["url", "tlsConfig"])?;
        let url = self.text(object, field, "url")?;
        let tls = object.get("tlsConfig").filter(|it| !it.is_null());
        let tls_field = format!("{field}.tlsConfig");
        if let Some(rest) = url.strip_prefix("http://") {
            if tls.is_some() {
                self.fault(&tls_field, "not with an http URL");
                return None;
            }
            warnings.push(format!("{field}.url: everything goes to {rest} in clear"));
            return Some(Route::ConnectTcp { url, files: None });
        }
        if !url.starts_with("https://") {
            self.fault(&format!("{field}.url"), format!("'{url}' is neither https nor http"));
            return None;
        }
        let Some(tls) = tls else {
            self.fault(&tls_field, "needed with an https URL");
            return None;
        };
        let object = self.object(tls, &tls_field, &["caBundle", "clientKey", "clientCert"])?;
        let ca = match object.get("caBundle").and_then(Value::as_str) {
            Some(ca) => ca.to_owned(),
            None => {
                warnings.push(format!("{tls_field}.caBundle: none, so the system's count"));
                String::new()
            }
        };
        let cert = self.text(object, &tls_field, "clientCert");
        let key = self.text(object, &tls_field, "clientKey");
        let files = [cert?, key?, ca];
        for (name, file) in ["clientCert", "clientKey", "caBundle"].iter().zip(&files) {
            if !file.is_empty() && !Path::new(file).exists() {
                warnings.push(format!("{tls_field}.{name}: {file} is not here"));
            }
        }
        Some(Route::ConnectTcp { url, files: Some(files) })
    }

    fn object<'a>(
        &mut self,
        value: &'a Value,
        field: &str,
        known: &[&str],
    ) -> Option<&'a Map<String, Value>> {
        let Some(object) = value.as_object() else {
            self.fault(field, "not an object");
            return None;
        };
        for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
            let path = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
            self.fault(&path, format!("unknown; there are {}", known.join(", ")));
        }
        Some(object)
    }

    fn text(&mut self, object: &Map<String, Value>, field: &str, name: &str) -> Option<String> {
        match object.get(name).and_then(Value::as_str) {
            Some(text) if !text.is_empty() => Some(text.to_owned()),
            _ => {
                self.fault(&format!("{field}.{name}"), "missing");
                None
            }
        }
    }
}
