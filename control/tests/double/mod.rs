//! An API server double: HTTP/1.1 by hand, each resource playing a script.
//!
//! A request for a resource takes the next step of its script. When the script is over, or
//! there is none, an empty list is served and watches stay open without a word.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Watch events, then the end of the answer.
    Stream(Vec<String>),
    /// The same, a few bytes at a time.
    Slow(Vec<String>),
    /// Watch events, then the connection is dropped in the middle of the next.
    Cut(Vec<String>),
    /// An ERROR event of code 410 in an answer of status 200.
    Expired,
    /// The connection is dropped without an answer.
    Drop,
    /// The connection stays open without an answer.
    Silence,
    /// This status.
    Status(u16),
    /// Answers as a server without streaming lists.
    NoStreaming,
    /// A page of a list and its continue token.
    Page(Vec<Value>, &'static str),
}

/// A line of a watch; kind `END` is the bookmark that ends the initial events.
pub(crate) fn event(kind: &str, mut object: Value) -> String {
    if kind == "END" {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let kind = if kind == "END" { "BOOKMARK" } else { kind };
    json!({"type": kind, "object": object}).to_string()
}

pub(crate) fn node(name: &str, version: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "resourceVersion": version.to_string()}})
}

pub(crate) fn policy(name: &str, version: u32) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "x", "resourceVersion": version.to_string()},
        "spec": {"podSelector": {}}})
}

type Scripts = HashMap<&'static str, Vec<Step>>;

/// The double; its threads end with the process.
pub(crate) struct Double {
    port: u16,
    state: Arc<Mutex<State>>,
    folder: PathBuf,
}

#[derive(Default)]
struct State {
    scripts: Scripts,
    /// Requests by resource, in order.
    asked: HashMap<String, Vec<String>>,
}

impl Double {
    pub(crate) fn new(scripts: Vec<(&'static str, Vec<Step>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State { scripts: scripts.into_iter().collect(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &state));
            }
        });
        let folder =
            std::env::temp_dir().join(format!("podgate-double-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { port, state, folder }
    }

    /// A kubeconfig file that leads here.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.join("kubeconfig");
        let server = format!("http://127.0.0.1:{}", self.port);
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "d", "user": "u"}}],
            "clusters": [{"name": "d", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}]});
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Requests for a resource so far.
    pub(crate) fn asked(&self, resource: &str) -> Vec<String> {
        self.state.lock().unwrap().asked.get(resource).cloned().unwrap_or_default()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Answers the requests of one connection until it ends.
fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split_whitespace().nth(1).unwrap_or("").to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if header.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let resource = path.split('?').next().unwrap_or("").rsplit('/').next().unwrap_or("");
        if resource.starts_with('v') {
            // Discovery: every kind is installed.
            let resources = ["clusternetworkpolicies", "clusteregressfirewalls"];
            let resources = resources.map(|name| json!({"name": name, "verbs": ["create"]}));
            if whole(&mut stream, 200, &json!({"resources": resources})).is_err() {
                return;
            }
            continue;
        }
        let step = {
            let mut state = state.lock().unwrap();
            state.asked.entry(resource.to_owned()).or_default().push(path.clone());
            let script = state.scripts.get_mut(resource);
            script.filter(|steps| !steps.is_empty()).map(|steps| steps.remove(0))
        };
        let goes_on = match step {
            Some(step) => play(&mut stream, step),
            None => idle(&mut stream, &path),
        };
        if goes_on.is_err() {
            return;
        }
    }
}

fn play(stream: &mut TcpStream, step: Step) -> std::io::Result<()> {
    let status = |code: u16, message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "message": message})
    };
    match step {
        Step::Stream(lines) => {
            head(stream)?;
            lines.iter().try_for_each(|line| chunk(stream, &format!("{line}\n")))?;
            stream.write_all(b"0\r\n\r\n")
        }
        Step::Slow(lines) => {
            head(stream)?;
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            for part in text.as_bytes().chunks(7) {
                chunk(stream, std::str::from_utf8(part).unwrap())?;
                thread::sleep(Duration::from_millis(1));
            }
            stream.write_all(b"0\r\n\r\n")
        }
        Step::Cut(lines) => {
            head(stream)?;
            lines.iter().try_for_each(|line| chunk(stream, &format!("{line}\n")))?;
            chunk(stream, "{\"type\":\"ADD")?;
            stream.shutdown(std::net::Shutdown::Both)?;
            Err(std::io::ErrorKind::ConnectionAborted.into())
        }
        Step::Expired => {
            head(stream)?;
            let error = json!({"type": "ERROR", "object": status(410, "too old resource version")});
            chunk(stream, &format!("{error}\n"))?;
            stream.write_all(b"0\r\n\r\n")
        }
        Step::Drop => Err(std::io::ErrorKind::ConnectionAborted.into()),
        Step::Silence => loop {
            thread::park();
        },
        Step::Status(code) => whole(stream, code, &status(code, "refused")),
        Step::NoStreaming => {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch";
            whole(stream, 422, &status(422, message))
        }
        Step::Page(items, rest) => whole(
            stream,
            200,
            &json!({"metadata": {"resourceVersion": "8", "continue": rest}, "items": items}),
        ),
    }
}

/// An empty list, or a watch on which nothing happens.
fn idle(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    if !path.contains("watch=1") {
        return whole(stream, 200, &json!({"metadata": {"resourceVersion": "1"}, "items": []}));
    }
    head(stream)?;
    if path.contains("sendInitialEvents") {
        let end = event("END", json!({"metadata": {"resourceVersion": "1"}}));
        chunk(stream, &format!("{end}\n"))?;
        return stream.write_all(b"0\r\n\r\n");
    }
    // Until the other side goes.
    let _ = stream.read(&mut [0]);
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

fn head(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
}

fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    write!(stream, "{:x}\r\n{text}\r\n", text.len())?;
    stream.flush()
}

fn whole(stream: &mut TcpStream, code: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}
