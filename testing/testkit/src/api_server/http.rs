//! Answers requests to the double: objects, lists, watches, subresources.

use std::collections::HashSet;
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::store::Refusal;
use super::wire::{Request, Stream, begin_watch, body, event, read, refuse, status, whole};
use super::{Shared, lock};
use crate::protobuf;

/// Serves a connection until it ends.
pub(super) fn begin(stream: TcpStream, shared: &Arc<Shared>, stopped: &Arc<AtomicBool>) {
    let (shared, stopped) = (Arc::clone(shared), Arc::clone(stopped));
    let Ok(clone) = stream.try_clone() else { return };
    lock(&shared.connections).push(clone);
    std::thread::spawn(move || {
        // The listener is non-blocking; accepted connections are not.
        if stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).is_err() {
            return;
        }
        if let Ok(stream) = (shared.wrap)(stream) {
            // However it ends, the other side sees it.
            let _ = serve(BufReader::new(stream), &shared, &stopped);
        }
    });
}

impl Request {
    /// Whether the client takes an answer in protobuf.
    pub fn accepts_protobuf(&self) -> bool {
        let accepts = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("accept") && value.contains("protobuf")
        };
        self.headers.iter().any(accepts)
    }

    /// The kind to answer in protobuf: the client accepts it, and it can say all objects of the resource.
    fn protobuf(&self, resource: &Resource<'_>, shared: &Shared) -> Option<&'static str> {
        let kind = protobuf::kind_of(resource.plural)?;
        let (objects, _) = shared.store.list(resource.plural);
        let all = || objects.iter().all(|it| protobuf::answer(it, kind).is_ok());
        (self.accepts_protobuf() && all()).then_some(kind)
    }
}

fn serve(
    mut stream: BufReader<Box<dyn Stream>>,
    shared: &Shared,
    stopped: &AtomicBool,
) -> io::Result<()> {
    while let Some(request) = read(&mut stream)? {
        let own = |stream: &mut dyn Stream| answer(&request, stream, shared, stopped);
        let (handler, stream) = (lock(&shared.handler).clone(), stream.get_mut().as_mut());
        match handler {
            Some(handler) => handler(&request, stream, &own)?,
            None => own(stream)?,
        }
    }
    Ok(())
}

fn answer(
    request: &Request,
    stream: &mut dyn Stream,
    shared: &Shared,
    stopped: &AtomicBool,
) -> io::Result<()> {
    let wanted = lock(&shared.token).clone();
    if wanted.is_some() && wanted != request.token {
        return refuse(stream, 401, "Unauthorized");
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    match path.trim_matches('/').split('/').collect::<Vec<_>>()[..] {
        ["apis", group] => {
            let versions = shared.store.versions(group).into_iter();
            let versions: Vec<Value> = versions
                .map(|it| json!({"groupVersion": format!("{group}/{it}"), "version": it}))
                .collect();
            if versions.is_empty() {
                return refuse(stream, 404, "the server could not find the requested resource");
            }
            return whole(stream, 200, &json!({"kind": "APIGroup", "versions": versions}));
        }
        ["apis", group, version] => {
            let resources = shared.store.discovery(group, version);
            let version = format!("{group}/{version}");
            let list =
                json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources});
            return whole(stream, 200, &list);
        }
        _ => {}
    }
    if let Some((target, rest)) = proxied(path) {
        return proxy(request, target, &format!("{rest}?{query}"), stream, shared);
    }
    let asked = || serde_json::from_slice(&request.body).unwrap_or_default();
    if let Some(answer) = shared.identities.answer(&request.method, path, &asked()) {
        return whole(stream, 201, &answer);
    }
    let Some(resource) = Resource::of(path) else { return refuse(stream, 404, "no such path") };
    let note = format!("{} {}", request.method, request.target);
    let parameter = |name: &str| {
        let mut all = query.split('&').filter_map(|it| it.split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    // A list that is not to be older than a version takes any later one.
    let version = parameter("watch").and(parameter("resourceVersion"));
    let version = version.and_then(|it| it.parse().ok());
    let refusal = shared.store.asks(resource.plural, &note, version);
    let refusal = match shared.store.is_served(resource.plural, resource.version) {
        true => refusal,
        false => Some(Refusal::NotFound),
    };
    match refusal {
        Some(Refusal::NotFound) => {
            return refuse(stream, 404, "the server could not find the requested resource");
        }
        Some(Refusal::Forbidden) => return refuse(stream, 403, "forbidden"),
        Some(Refusal::Unavailable) => return refuse(stream, 503, "not ready yet"),
        Some(Refusal::Expired) => return refuse(stream, 410, "too old resource version"),
        Some(Refusal::Conflict) | None => {}
    }
    match (request.method.as_str(), resource.name) {
        ("GET", None) if parameter("watch").is_some_and(|it| matches!(it, "1" | "true")) => {
            let kind = request.protobuf(&resource, shared);
            watch(stream, kind, &resource, &parameter, shared, stopped)
        }
        ("GET", None) => {
            let (items, version) = listed(&resource, &parameter, shared);
            let metadata = json!({"resourceVersion": version.to_string()});
            let list = json!({"kind": "List", "metadata": metadata, "items": items});
            match request.protobuf(&resource, shared) {
                Some(kind) => {
                    let list = protobuf::answer(&list, kind).map_err(io::Error::other)?;
                    body(stream, 200, "application/vnd.kubernetes.protobuf", &list)
                }
                None => whole(stream, 200, &list),
            }
        }
        ("GET", Some(name)) => {
            match shared.store.object(resource.plural, resource.namespace, name) {
                Some(object) => whole(stream, 200, &object),
                None => refuse(stream, 404, "not found"),
            }
        }
        ("PATCH", Some(name)) => {
            let patch: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            // The status subresource changes nothing but the status.
            let patch = match resource.is_status {
                true => json!({"status": patch["status"]}),
                false => patch,
            };
            // Server-side apply creates a missing object.
            let is = |kind: &str| {
                let mut headers = request.headers.iter();
                headers.any(|(name, value)| {
                    name.eq_ignore_ascii_case("content-type") && value.contains(kind)
                })
            };
            let applies = !resource.is_status && is("apply-patch");
            let merges = resource.is_status && (is("apply-patch") || is("strategic-merge-patch"));
            let (plural, namespace) = (resource.plural, resource.namespace);
            match shared.store.patch(plural, namespace, name, &patch, applies, merges) {
                Ok(object) => whole(stream, 200, &object),
                Err(Refusal::Conflict) => refuse(stream, 409, "the object has been modified"),
                Err(_) => refuse(stream, 404, "not found"),
            }
        }
        ("POST", None) | ("PUT", Some(_)) => {
            let object: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let (namespace, plural) = (resource.namespace, resource.plural);
            // Of these kinds alone, PUT creates an object without a version.
            let is_new = object["metadata"]["resourceVersion"].is_null() && plural == "leases";
            let creates = request.method == "POST" || is_new;
            match shared.store.write(plural, namespace, object, creates) {
                Some(object) => whole(stream, 200, &object),
                None => refuse(stream, 409, "the object has been modified"),
            }
        }
        ("DELETE", Some(name)) => {
            let known = shared.store.object(resource.plural, resource.namespace, name);
            shared.store.delete(resource.plural, resource.namespace, name);
            match known {
                Some(object) => whole(stream, 200, &object),
                None => refuse(stream, 404, "not found"),
            }
        }
        _ => refuse(stream, 405, "not supported"),
    }
}

/// Target and path of a request for a pod's proxy subresource.
fn proxied(path: &str) -> Option<(&str, &str)> {
    let (_, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once("/pods/")?;
    let (target, rest) = rest.split_once("/proxy")?;
    Some((target, rest))
}

/// Passes a request on, without the caller's credentials, and the answer back.
fn proxy(
    request: &Request,
    target: &str,
    path: &str,
    stream: &mut dyn Stream,
    shared: &Shared,
) -> io::Result<()> {
    let note = format!("{} {target}{path}", request.method);
    if let Some(Refusal::Forbidden) = shared.store.asks("pods/proxy", &note, None) {
        return refuse(stream, 403, "pods is forbidden: cannot get resource pods/proxy");
    }
    let connect = lock(&shared.proxy).clone();
    let Some(connect) = connect else { return refuse(stream, 503, "no proxy here") };
    let mut other = match connect(target) {
        Ok(other) => other,
        Err(error) => return refuse(stream, 503, &format!("dial {target}: {error}")),
    };
    let mut head = format!("{} {path} HTTP/1.1\r\nHost: {target}\r\n", request.method);
    for (name, value) in &request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    other.write_all((head + "Connection: close\r\n\r\n").as_bytes())?;
    other.flush()?;
    let mut buffer = [0; 16 << 10];
    loop {
        match other.read(&mut buffer) {
            // The answer says that the connection ends with it.
            Ok(0) | Err(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(length) => stream.write_all(&buffer[..length]).and_then(|()| stream.flush())?,
        }
    }
}

/// The resource that a path names.
struct Resource<'p> {
    version: &'p str,
    plural: &'p str,
    namespace: Option<&'p str>,
    name: Option<&'p str>,
    is_status: bool,
}

impl<'p> Resource<'p> {
    fn of(path: &'p str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] | ["apis", _, version, rest @ ..] => (*version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest != ["status"] => {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, is_status) = match rest {
            [plural] => (*plural, None, false),
            [plural, name] => (*plural, Some(*name), false),
            [plural, name, "status"] => (*plural, Some(*name), true),
            _ => return None,
        };
        Some(Self { version, plural, namespace, name, is_status })
    }
}

impl Resource<'_> {
    /// An object as it is in the version asked for.
    fn converted(&self, mut object: Value) -> Value {
        if let Some((group, _)) = object["apiVersion"].as_str().and_then(|it| it.split_once('/')) {
            object["apiVersion"] = format!("{group}/{}", self.version).into();
        }
        object
    }
}

/// The objects of a list: of its namespace, and those that its selectors select.
fn listed<'q>(
    resource: &Resource<'_>,
    parameter: &impl Fn(&str) -> Option<&'q str>,
    shared: &Shared,
) -> (Vec<Value>, u64) {
    let (items, version) = shared.store.list(resource.plural);
    let mut items: Vec<Value> = items.into_iter().map(|it| resource.converted(it)).collect();
    if let Some(namespace) = resource.namespace {
        items.retain(|item| item["metadata"]["namespace"] == namespace);
    }
    items.retain(|item| selects(parameter, item));
    (items, version)
}

/// Namespace and name.
fn name_of(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Returns whether the selectors of a query select an object; of labels equality alone is known, of fields the name of a
/// pod's node.
fn selects<'q>(parameter: &impl Fn(&str) -> Option<&'q str>, object: &Value) -> bool {
    let terms = |name: &str| {
        let selector = parameter(name).unwrap_or_default();
        selector.replace("%3D", "=").replace("%2F", "/").replace("%2C", ",")
    };
    let (labels, fields) = (terms("labelSelector"), terms("fieldSelector"));
    let node = fields.split(',').find_map(|it| it.strip_prefix("spec.nodeName="));
    let mut labels = labels.split(',').filter_map(|it| it.split_once('='));
    labels.all(|(label, value)| object["metadata"]["labels"][label] == value)
        && node.is_none_or(|node| object["spec"]["nodeName"] == node)
}

fn watch<'q>(
    stream: &mut dyn Stream,
    kind: Option<&str>,
    resource: &Resource<'_>,
    parameter: &impl Fn(&str) -> Option<&'q str>,
    shared: &Shared,
    stopped: &AtomicBool,
) -> io::Result<()> {
    begin_watch(stream, kind)?;
    let bookmark = |version: u64| {
        json!({"type": "BOOKMARK",
            "object": {"metadata": {"resourceVersion": version.to_string()}}})
    };
    let mut sent = HashSet::new();
    let mut version = match parameter("resourceVersion").and_then(|it| it.parse().ok()) {
        Some(version) => {
            // A client that resumes has the objects of its version.
            sent.extend(listed(resource, parameter, shared).0.iter().map(name_of));
            version
        }
        None => {
            let (items, version) = listed(resource, parameter, shared);
            for object in items {
                sent.insert(name_of(&object));
                event(stream, kind, &json!({"type": "ADDED", "object": object}))?;
            }
            let mut end = bookmark(version);
            end["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            event(stream, kind, &end)?;
            version
        }
    };
    let mut rounds = 0;
    while !stopped.load(Ordering::Acquire) {
        let Some((changes, now)) = shared.store.since(resource.plural, version) else {
            let object = status(410, "too old resource version");
            event(stream, kind, &json!({"type": "ERROR", "object": object}))?;
            return stream.write_all(b"0\r\n\r\n");
        };
        if !shared.store.is_served(resource.plural, resource.version) {
            return stream.write_all(b"0\r\n\r\n");
        }
        for change in changes {
            let object = resource.converted(change.object);
            // An object that the selector does not match never came, or is gone.
            let is_selected = selects(parameter, &object);
            let was_sent = match is_selected {
                true => !sent.insert(name_of(&object)),
                false => sent.remove(&name_of(&object)),
            };
            let change = match (is_selected, was_sent) {
                (true, false) if change.kind == "MODIFIED" => "ADDED",
                (true, _) => change.kind,
                (false, true) => "DELETED",
                (false, false) => continue,
            };
            let change = json!({"type": change, "object": object});
            if kind.is_some_and(|kind| protobuf::event(&change, kind).is_err()) {
                // Protobuf cannot say it: the next answer is in JSON.
                return stream.write_all(b"0\r\n\r\n");
            }
            event(stream, kind, &change)?;
        }
        version = now;
        rounds += 1;
        // A failed write also reveals that the client has closed.
        if rounds % 10 == 0 {
            event(stream, kind, &bookmark(version))?;
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}
