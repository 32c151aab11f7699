//! Switches whose nodes are somebody else's by now: what they answer through the API server is bounded.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use control::api_server::{Access, Deployment, Failure, Switches, connect};
use serde_json::Value;
use testkit::TempDir;

/// The subject of a request.
fn read_request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(first)
}

/// The bytes of an answer of the switch, after its status.
type Body = fn(&mut TcpStream) -> std::io::Result<()>;

fn respond(mut stream: TcpStream, code: u16, answer: Body) -> Option<()> {
    let request = read_request(&stream)?;
    let head = "Content-Type: application/json\r\nConnection: close\r\n";
    let body = if request.contains("/proxy/") {
        write!(stream, "HTTP/1.1 {code} Whatever\r\n{head}\r\n").ok()?;
        return answer(&mut stream).ok();
    } else if request.contains("/token") {
        r#"{"status":{"token":"t"}}"#
    } else {
        r#"{"items":[{"metadata":{"name":"p","namespace":"n"},"spec":{"nodeName":"n1"}}]}"#
    };
    write!(stream, "HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok()
}

/// The one switch of a cluster, whose answers are these bytes.
async fn switches(code: u16, answer: Body) -> (TempDir, Switches) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || respond(stream, code, answer));
        }
    });
    let folder = TempDir::new("hostile-switch");
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         users: [{{name: c, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    let access = Access::User { kubeconfig: Some(path), context: None };
    let connection = connect(&access).await.unwrap();
    let deployment = Deployment {
        namespace: "n".into(),
        selector: "app=podgate".into(),
        account: "viewer".into(),
        audience: |node| format!("podgate/{node}"),
        header: "x-podgate-authorization",
        port_name: "metrics".into(),
        port: 9471,
    };
    (folder, Switches::find(&connection, deployment, None).await.unwrap())
}

fn runs<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Bytes without a line's end, for as long as they are read.
fn without_end(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"{\"lost\":1}\n\"")?;
    loop {
        stream.write_all(&[b'x'; 1 << 16])?;
    }
}

#[test]
fn a_line_without_an_end_ends_the_lines() {
    runs(async {
        let (_folder, switches) = switches(200, without_end).await;
        let mut lines = switches.lines(&switches.all()[0], "/podgate/v1/journal").await.unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap()["lost"], 1);
        let error = lines.next().await.unwrap_err();
        assert!(error.to_string().contains("has no end"), "{error}");
    });
}

#[test]
fn a_page_without_an_end_is_an_error() {
    runs(async {
        let (_folder, switches) = switches(200, without_end).await;
        let pages = switches.pages::<Value>(switches.all(), "/podgate/v1/policies").await;
        // On a busy machine the time ends first.
        assert!(matches!(pages[0], Err(Failure::TooLong(_) | Failure::Late(_))), "{pages:?}");
    });
}

#[test]
fn an_answer_that_is_no_json_is_an_error() {
    runs(async {
        let (_folder, switches) = switches(200, |stream| stream.write_all(b"\xff\n[[[[")).await;
        let mut lines = switches.lines(&switches.all()[0], "/x").await.unwrap();
        assert!(matches!(lines.next().await, Err(Failure::Unreadable(_))));
        let pages = switches.pages::<Value>(switches.all(), "/x").await;
        assert!(matches!(pages[0], Err(Failure::Unreadable(_))), "{pages:?}");
    });
}

#[test]
fn an_error_without_an_end_is_an_error_with_its_status() {
    runs(async {
        let (_folder, switches) = switches(503, without_end).await;
        let error = switches.lines(&switches.all()[0], "/podgate/v1/journal").await.err().unwrap();
        let Failure::Refused { code: 503, message, .. } = error else { panic!("{error}") };
        assert!(message.len() < 2000, "{} bytes", message.len());
    });
}
