//! The client of the local API against servers of all kinds.

use std::io::{BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use local_api::{AttachPod, Client, ClientError, ErrorKind, REQUEST_BYTES, Request, read_line};
use serde_json::json;
use testkit::TempDir;

/// Long enough that only a server that never answers uses it up.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// A server that hands each connection, after its first request, to `behave`.
fn server(behave: impl Fn(String, UnixStream) + Send + 'static) -> (TempDir, PathBuf) {
    let folder = TempDir::new("api");
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if let Ok(Some(line)) = read_line(&mut reader, REQUEST_BYTES) {
                behave(line, stream);
            }
        }
    });
    (folder, socket)
}

/// A server that writes `text`, whatever is asked, and closes.
fn says(text: &'static str) -> (TempDir, PathBuf) {
    // The client may have gone before all of it is written.
    server(move |_, mut stream| drop(stream.write_all(text.as_bytes())))
}

fn ask(socket: &Path, timeout: Duration) -> Result<serde_json::Value, ClientError> {
    Client::connect(socket, timeout)?.call(&Request::Status)
}

#[test]
fn a_result_and_an_error() {
    let (_folder, socket) = says("{\"result\":{\"pods\":3}}\n");
    assert_eq!(ask(&socket, LONG).unwrap(), json!({"pods": 3}));
    let (_folder, socket) = says("{\"error\":{\"kind\":\"not-ready\",\"message\":\"wait\"}}\n");
    match ask(&socket, LONG).unwrap_err() {
        ClientError::Refused(error) => assert_eq!(error.kind, ErrorKind::NotReady),
        other => panic!("{other}"),
    }
}

#[test]
fn nobody_listens() {
    let folder = TempDir::new("api");
    let socket = folder.path().join("socket");
    let absent = ask(&socket, LONG).unwrap_err();
    assert!(matches!(absent, ClientError::NoSocket { .. }));
    let text = format!(
        "podgate is not running, or listens elsewhere: there is no socket {}",
        socket.display()
    );
    assert_eq!(absent.to_string(), text);

    drop(UnixListener::bind(&socket).unwrap());
    assert!(matches!(ask(&socket, LONG), Err(ClientError::NotRunning { .. })));

    let plain = folder.path().join("file");
    std::fs::write(&plain, "").unwrap();
    let error = ask(&plain, LONG).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: is not a socket", plain.display()));
    let file = plain.join("socket");
    let error = ask(&file, LONG).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

#[test]
fn a_server_that_does_not_answer() {
    let (sender, kept) = std::sync::mpsc::channel();
    let (_folder, socket) = server(move |_, stream| sender.send(stream).unwrap());
    let error = ask(&socket, SHORT).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    drop(kept);
}

#[test]
fn a_server_that_drips_does_not_get_more_time() {
    // A byte at a time, for ever: every single read succeeds.
    let (_folder, socket) = server(|_, mut stream| {
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let error = ask(&socket, SHORT).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
}

#[test]
fn a_server_that_never_accepts() {
    let folder = TempDir::new("api");
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let error = ask(&socket, SHORT).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
}

#[test]
fn answers_that_are_none() {
    for (text, expected) in [
        ("", "ended without an answer"),
        ("{\"result\":1}", "ended within a line"),
        ("nonsense\n", "expected"),
        ("{\"neither\":1}\n", "unknown variant"),
    ] {
        let (_folder, socket) = says(text);
        let error = ask(&socket, LONG).unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{text}: {error}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
    let (_folder, socket) = says("{\"result\":{\"generation\":\"seven\"}}\n");
    let pod: AttachPod = serde_json::from_value(json!({
        "namespace": "a", "name": "b", "container_id": "c", "interface": "eth0",
        "netns": "/run/netns/c", "host_interface": "pg0", "mac": "02:00:00:00:00:01",
        "addresses": ["10.0.0.1"]
    }))
    .unwrap();
    let error = Client::connect(&socket, LONG).unwrap().attach_pod(&pod).unwrap_err();
    assert!(error.to_string().contains("seven"), "{error}");
}

#[test]
fn a_line_without_end_is_not_read_for_ever() {
    let (_folder, socket) = server(|_, mut stream| {
        let block = [b'x'; 64 * 1024];
        while stream.write_all(&block).is_ok() {}
    });
    let error = ask(&socket, LONG).unwrap_err();
    assert!(error.to_string().contains("longer than 16777216 bytes"), "{error}");
}

#[test]
fn a_stream_goes_on_until_it_ends() {
    let filters = Request::Observe(Box::default());
    let (_folder, socket) = says("{\"result\":1}\n{\"result\":2}\n");
    let stream = Client::connect(&socket, LONG).unwrap().stream(&filters).unwrap();
    assert_eq!(stream.map(Result::unwrap).collect::<Vec<_>>(), [json!(1), json!(2)]);

    let (_folder, socket) = says("{\"result\":1}\nnonsense\n{\"result\":2}\n");
    let stream = Client::connect(&socket, LONG).unwrap().stream(&filters).unwrap();
    assert_eq!(stream.map(|item| item.is_ok()).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_stream_may_be_quiet_longer_than_a_call() {
    // Long enough for the request to be sent on a busy machine.
    let timeout = Duration::from_secs(2);
    let (_folder, socket) = server(move |_, mut stream| {
        std::thread::sleep(timeout.mul_f32(1.25));
        drop(stream.write_all(b"{\"result\":1}\n"));
    });
    let filters = Request::Observe(Box::default());
    let mut stream = Client::connect(&socket, timeout).unwrap().stream(&filters).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), json!(1));
}

#[test]
fn several_calls_on_one_connection() {
    let folder = TempDir::new("api");
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Ok(Some(line)) = read_line(&mut reader, REQUEST_BYTES) {
            let answer = match Request::parse(&line) {
                Ok(Request::Ready) => "{\"result\":{}}\n",
                Ok(Request::ListPods) => "{\"result\":[]}\n",
                _ => "{\"error\":{\"kind\":\"internal\",\"message\":\"unexpected\"}}\n",
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let mut client = Client::connect(&socket, LONG).unwrap();
    client.ready().unwrap();
    assert_eq!(client.list_pods().unwrap(), []);
    assert!(matches!(client.call(&Request::Status), Err(ClientError::Refused(_))));
    client.ready().unwrap();
}
