//! An API server double: HTTP/1.1 by hand, each resource playing a script.
//!
//! A request for a resource takes the next step of its script. When the script is over, or
//! there is none, an empty list is served and watches stay open without a word.

pub(crate) mod still;

use std::cell::Cell;
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
    /// This status, and a body that is not that of the API server.
    Odd(u16, Odd),
    /// Answers as a server without streaming lists.
    NoStreaming,
    /// A page of a list and its continue token.
    Page(Vec<Value>, &'static str),
}

/// The body of an error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Odd {
    /// It has no end.
    Endless,
    /// A message of 1 MB.
    Long,
    /// It begins, and nothing follows.
    Hangs,
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

thread_local! {
    /// Whether the doubles of this thread's test speak protobuf where they are asked to.
    static PROTOBUF: Cell<bool> = const { Cell::new(true) };
}

/// Makes the doubles of the current test speak JSON alone, or protobuf too.
pub(crate) fn speak_protobuf(too: bool) {
    PROTOBUF.set(too);
}

/// Runs tests twice, as `json::NAME` and `protobuf::NAME`: with doubles that speak JSON alone, and protobuf.
macro_rules! both_ways {
    ($($name:ident),+ $(,)?) => {
        mod json {
            $(#[test] fn $name() { crate::double::speak_protobuf(false); super::$name(); })+
        }
        mod protobuf {
            $(#[test] fn $name() { crate::double::speak_protobuf(true); super::$name(); })+
        }
    };
}
pub(crate) use both_ways;

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
    /// Their media types.
    accepted: HashMap<String, Vec<String>>,
    protobuf: bool,
}

/// A connection, and the kind of which it answers in protobuf; JSON otherwise.
struct Out {
    stream: TcpStream,
    protobuf: Option<&'static str>,
}

impl Double {
    pub(crate) fn new(scripts: Vec<(&'static str, Vec<Step>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let scripts = scripts.into_iter().collect();
        let state = State { scripts, protobuf: PROTOBUF.get(), ..State::default() };
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

    /// The media types that requests for a resource accepted so far.
    pub(crate) fn accepted(&self, resource: &str) -> Vec<String> {
        self.state.lock().unwrap().accepted.get(resource).cloned().unwrap_or_default()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Answers the requests of one connection until it ends.
fn serve(stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut out = Out { stream, protobuf: None };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split_whitespace().nth(1).unwrap_or("").to_owned();
        let (mut length, mut accept) = (0, String::new());
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("accept:") {
                accept = value.trim().to_owned();
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
        let protobuf = accept.contains("protobuf") && state.lock().unwrap().protobuf;
        out.protobuf = testkit::protobuf::kind_of(resource).filter(|_| protobuf);
        if resource.starts_with('v') {
            // Discovery: every kind is installed.
            let resources = ["clusternetworkpolicies", "clusteregressfirewalls"];
            let resources = resources.map(|name| json!({"name": name, "verbs": ["create"]}));
            if whole(&mut out, 200, &json!({"resources": resources})).is_err() {
                return;
            }
            continue;
        }
        let step = {
            let mut state = state.lock().unwrap();
            state.asked.entry(resource.to_owned()).or_default().push(path.clone());
            state.accepted.entry(resource.to_owned()).or_default().push(accept);
            let script = state.scripts.get_mut(resource);
            script.filter(|steps| !steps.is_empty()).map(|steps| steps.remove(0))
        };
        let goes_on = match step {
            Some(step) => play(&mut out, step),
            None => idle(&mut out, &path),
        };
        if goes_on.is_err() {
            return;
        }
    }
}

fn play(out: &mut Out, step: Step) -> std::io::Result<()> {
    let status = |code: u16, message: &str| {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "message": message})
    };
    match step {
        Step::Stream(lines) => {
            head(out)?;
            lines.iter().try_for_each(|text| line(out, text))?;
            out.stream.write_all(b"0\r\n\r\n")
        }
        Step::Slow(lines) => {
            head(out)?;
            let text: Vec<u8> = lines.iter().flat_map(|line| framed(out, line)).collect();
            for part in text.chunks(7) {
                chunk(out, part)?;
                thread::sleep(Duration::from_millis(1));
            }
            out.stream.write_all(b"0\r\n\r\n")
        }
        Step::Cut(lines) => {
            head(out)?;
            lines.iter().try_for_each(|text| line(out, text))?;
            chunk(out, b"\x00\x00\x7f\x00{\"type\":\"ADD")?;
            out.stream.shutdown(std::net::Shutdown::Both)?;
            Err(std::io::ErrorKind::ConnectionAborted.into())
        }
        Step::Expired => {
            head(out)?;
            let error = json!({"type": "ERROR", "object": status(410, "too old resource version")});
            line(out, &error.to_string())?;
            out.stream.write_all(b"0\r\n\r\n")
        }
        Step::Drop => Err(std::io::ErrorKind::ConnectionAborted.into()),
        Step::Silence => loop {
            thread::park();
        },
        Step::Status(code) => whole(out, code, &status(code, "refused")),
        Step::Odd(code, Odd::Long) => whole(out, code, &status(code, &"x".repeat(1 << 20))),
        Step::Odd(code, odd) => {
            let head = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            write!(out.stream, "HTTP/1.1 {code} Whatever\r\n{head}")?;
            chunk(out, b"{\"message\": \"")?;
            loop {
                match odd {
                    Odd::Endless => chunk(out, &[b'x'; 1 << 14])?,
                    _ => thread::park(),
                }
            }
        }
        Step::NoStreaming => {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch";
            whole(out, 422, &status(422, message))
        }
        Step::Page(items, rest) => whole(
            out,
            200,
            &json!({"metadata": {"resourceVersion": "8", "continue": rest}, "items": items}),
        ),
    }
}

/// An empty list, or a watch on which nothing happens.
fn idle(out: &mut Out, path: &str) -> std::io::Result<()> {
    if !path.contains("watch=1") {
        return whole(out, 200, &json!({"metadata": {"resourceVersion": "1"}, "items": []}));
    }
    head(out)?;
    if path.contains("sendInitialEvents") {
        let end = event("END", json!({"metadata": {"resourceVersion": "1"}}));
        line(out, &end)?;
        return out.stream.write_all(b"0\r\n\r\n");
    }
    // Until the other side goes.
    let _ = out.stream.read(&mut [0]);
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

fn head(out: &mut Out) -> std::io::Result<()> {
    let content = match out.protobuf {
        Some(_) => "application/vnd.kubernetes.protobuf;stream=watch",
        None => "application/json",
    };
    write!(
        out.stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {content}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

/// A line as it is sent; in protobuf, what is no event is sent as it is.
fn framed(out: &Out, line: &str) -> Vec<u8> {
    let Some(kind) = out.protobuf else { return format!("{line}\n").into_bytes() };
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let kind = event["object"]["kind"].as_str().unwrap_or(kind);
    testkit::protobuf::event(&event, kind)
        .unwrap_or_else(|_| [&(line.len() as u32).to_be_bytes(), line.as_bytes()].concat())
}

fn line(out: &mut Out, line: &str) -> std::io::Result<()> {
    let framed = framed(out, line);
    chunk(out, &framed)
}

fn chunk(out: &mut Out, bytes: &[u8]) -> std::io::Result<()> {
    write!(out.stream, "{:x}\r\n", bytes.len())?;
    out.stream.write_all(bytes)?;
    out.stream.write_all(b"\r\n")?;
    out.stream.flush()
}

fn whole(out: &mut Out, code: u16, body: &Value) -> std::io::Result<()> {
    let (content, body) = match out.protobuf {
        Some(kind) => (
            "application/vnd.kubernetes.protobuf",
            testkit::protobuf::answer(body, kind).expect("protobuf can say it"),
        ),
        None => ("application/json", body.to_string().into_bytes()),
    };
    write!(
        out.stream,
        "HTTP/1.1 {code} Whatever\r\nContent-Type: {content}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    out.stream.write_all(&body)?;
    out.stream.flush()
}
