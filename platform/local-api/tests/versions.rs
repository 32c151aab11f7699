//! The plugin and the switch of neighbouring minor versions understand each other.
//!
//! `wire/MAJOR.MINOR.jsonl` holds what the plugin of that version asks, and what the switch of that version
//! answers, as it is on the wire. Files of released versions are never changed. Today's side has to
//! understand both the current file and the one before it, and to write what those versions read.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use local_api::{
    Answer, AttachPod, AttachedPod, Client, ClientError, REQUEST_BYTES, Request, read_line,
};
use serde_json::{Value, json};
use testkit::TempDir;

/// The exchanges of a version; none if it never existed.
fn exchanges(major: u32, minor: u32) -> Vec<(Value, Value)> {
    let file = format!("{}/tests/wire/{major}.{minor}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(PathBuf::from(file)).unwrap_or_default();
    let exchange = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        (line["request"].take(), line["answer"].take())
    };
    text.lines().map(exchange).collect()
}

/// Those of today's version, and of the one before it.
fn neighbours() -> Vec<(Value, Value)> {
    let number = |text: &str| text.parse::<u32>().unwrap();
    let major = number(env!("CARGO_PKG_VERSION_MAJOR"));
    let minor = number(env!("CARGO_PKG_VERSION_MINOR"));
    let today = exchanges(major, minor);
    assert!(!today.is_empty(), "tests/wire/{major}.{minor}.jsonl is missing");
    let before = minor.checked_sub(1).map_or_else(Vec::new, |minor| exchanges(major, minor));
    today.into_iter().chain(before).collect()
}

/// Adds an unknown field to every object.
fn from_later(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let later = ("later".to_owned(), json!({"x": [1]}));
            // The answer itself says by its only field whether it is a result.
            let is_answer = fields.contains_key("result") || fields.contains_key("error");
            let fields = fields.iter().map(|(name, value)| (name.clone(), from_later(value)));
            fields.chain((!is_answer).then_some(later)).collect()
        }
        Value::Array(items) => items.iter().map(from_later).collect(),
        other => other.clone(),
    }
}

/// Returns whether all of `part` is in `whole`, with the same values.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|it| holds(it, value)))
        }
        _ => whole == part,
    }
}

#[test]
fn an_older_plugins_requests_are_understood_and_a_newer_ones_too() {
    for (request, _) in neighbours() {
        let read = Request::parse(&request.to_string()).unwrap();
        // What an older switch reads, today's plugin writes.
        let written = serde_json::to_value(&read).unwrap();
        assert!(holds(&written, &request), "{written} lacks something of {request}");
        let later = from_later(&request).to_string();
        assert_eq!(Request::parse(&later).unwrap(), read, "{later}");
    }
}

#[test]
fn an_older_switchs_answers_are_understood_and_a_newer_ones_too() {
    for (request, answer) in neighbours() {
        for answer in [answer.clone(), from_later(&answer)] {
            let line = answer.to_string();
            serde_json::from_str::<Answer>(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            call(&request, line);
        }
    }
}

/// Makes the client send a request of this kind, and reads the answer as the plugin does.
fn call(request: &Value, answer: String) {
    let folder = TempDir::new("versions");
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let fails = answer.contains("\"error\"");
    let switch = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_line(&mut BufReader::new(stream.try_clone().unwrap()), REQUEST_BYTES).unwrap();
        stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
    });
    let mut client = Client::connect(&socket, Duration::from_secs(30)).unwrap();
    let done: Result<(), ClientError> = match Request::parse(&request.to_string()).unwrap() {
        Request::AttachPod(pod) => client.attach_pod(&pod).map(|done: AttachedPod| {
            assert_eq!(done.generation, 7);
        }),
        Request::DetachPod(attachment) => client.detach_pod(&attachment),
        Request::CheckPod(attachment) => client.check_pod(&attachment).map(|pod: AttachPod| {
            assert_eq!(pod.name, "db");
        }),
        Request::ListPods => client.list_pods().map(|pods| assert_eq!(pods.len(), 1)),
        Request::Ready => client.ready(),
        other => panic!("the plugin makes no {other:?}"),
    };
    switch.join().unwrap();
    match done {
        Ok(()) => assert!(!fails),
        Err(error) => assert!(fails && matches!(error, ClientError::Refused(_)), "{error}"),
    }
}
