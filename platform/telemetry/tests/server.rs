//! The HTTP server, over sockets, with clients that mean no good.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::{Page, Pages, Post, Server};

struct Book;

impl Pages for Book {
    fn page(&self, path: &str, query: &str) -> Option<Page> {
        match path {
            "/healthz" => Some(Page::new(200, "ok\n")),
            "/readyz" => Some(Page::new(503, format!("not ready, {query}\n"))),
            // More than the buffers of two sockets take.
            "/metrics" => Some(Page::new(200, "m 1\n".repeat(4 << 20))),
            _ => None,
        }
    }
}

fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, Arc::new(Book)).unwrap()
}

fn open(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut answer = String::new();
    open(address, request).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer with a head");
    (head.to_owned(), body.to_owned())
}

struct Private;

impl Pages for Private {
    fn page(&self, _: &str, _: &str) -> Option<Page> {
        Some(Page::new(200, "secret\n"))
    }

    fn is_called(&self, name: &str, _path: &str) -> bool {
        name == "node-a"
    }
}

/// A page of another site that has its name point here (DNS rebinding) reads nothing.
#[test]
fn other_hosts_names_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, Arc::new(Private)).unwrap();
    for (host, code) in [
        ("127.0.0.1", "200"),
        ("127.0.0.1:9470", "200"),
        ("[::1]:9470", "200"),
        ("LocalHost:9470", "200"),
        ("node-a:9470", "200"),
        ("evil.example", "421"),
        ("evil.example:9470", "421"),
        ("localhost.evil.example", "421"),
        ("127.0.0.1.evil.example:80", "421"),
        ("", "421"),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, body) = ask(server.address(), &request);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{host}: {head}");
        assert_eq!(body == "secret\n", code == "200", "{host}");
    }
    let (head, _) = ask(server.address(), "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
}

#[test]
fn answers_what_there_is() {
    let server = server();
    let (head, body) = ask(server.address(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; charset=utf-8"), "{head}");
    assert_eq!(body, "ok\n");
    let (head, body) = ask(server.address(), "GET /readyz?why HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 503 "), "{head}");
    assert_eq!(body, "not ready, why\n");
    let (head, body) = ask(server.address(), "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.contains("Content-Length: 3"), "{head}");
    assert_eq!(body, "");
    for (request, code) in [
        ("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "404"),
        ("POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".to_owned(), "405"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9_000)), "4"),
    ] {
        let (head, _) = ask(server.address(), &request);
        let status = head.split(' ').nth(1).unwrap();
        assert!(status.starts_with(code), "{head}");
    }
}

#[test]
fn metrics_have_their_own_type() {
    let server = server();
    let mut stream = open(server.address(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = [0; 512];
    let count = stream.read(&mut head).unwrap();
    let head = String::from_utf8_lossy(&head[..count]).into_owned();
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
}

#[test]
fn slow_clients_do_not_keep_out_a_probe() {
    let server = server();
    // Three times as many as are served at once: silent, half a request, and an unread answer.
    let slow: Vec<TcpStream> = ["", "GET /heal", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"]
        .into_iter()
        .flat_map(|text| (0..32).map(move |_| text))
        .map(|text| open(server.address(), text))
        .collect();
    for _ in 0..100 {
        let (head, _) = ask(server.address(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    }
    drop(slow);
}

#[test]
fn clients_of_one_network_replace_each_other_and_no_others() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let _server = Server::start(listener, Arc::new(Book)).unwrap();
    let mut slow = open((std::net::Ipv6Addr::LOCALHOST, port).into(), "GET /heal");
    let flood: Vec<TcpStream> =
        (0..200).map(|_| open((std::net::Ipv4Addr::LOCALHOST, port).into(), "GET /heal")).collect();
    // Once this is answered, all of them were accepted.
    ask((std::net::Ipv4Addr::LOCALHOST, port).into(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    slow.write_all(b"thz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    drop(flood);
}

#[test]
fn slow_readers_time_out() {
    let server = server();
    let mut silent = open(server.address(), "GET /heal");
    let mut slow = open(server.address(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    // The read ends once the server has closed; before that it would wait for its timeout.
    let ended = silent.read(&mut [0; 512]);
    assert!(ended.is_ok(), "{ended:?}");
    // What is read before the server has closed makes room for more.
    let (here, there) = (slow.local_addr().unwrap().port(), server.address().port());
    testkit::eventually("the end of the slow one", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let ends = format!(":{there:04X} 0100007F:{here:04X} ");
        let of_server = table.lines().find(|line| line.contains(&ends));
        let is_open = of_server.is_some_and(|line| line.contains(&format!("{ends}01 ")));
        (!is_open).then_some(())
    });
    let mut body = Vec::new();
    // Cut off, with or without a reset: not everything came.
    let _cut = slow.read_to_end(&mut body);
    assert!(body.len() < 16 << 20, "{} bytes", body.len());
}

#[test]
fn dropping_it_frees_the_port() {
    let server = server();
    let address = server.address();
    let _waiting = open(address, "GET ");
    drop(server);
    TcpListener::bind(address).unwrap();
}

/// Answers a post when the lock is free.
#[derive(Default)]
struct Slow {
    is_open: Mutex<()>,
    begun: AtomicUsize,
}

struct Webhook(Arc<Slow>);

impl Pages for Webhook {
    fn page(&self, _: &str, _: &str) -> Option<Page> {
        Some(Page::new(200, "ok\n"))
    }

    fn post(&self, _: &str) -> Option<Post> {
        let slow = Arc::clone(&self.0);
        Some(Box::new(move |body| {
            slow.begun.fetch_add(1, Ordering::SeqCst);
            let _open = slow.is_open.lock().unwrap();
            Page::new(200, format!("{}\n", body.len()))
        }))
    }
}

/// Their answers are computed on threads, which go on when they leave.
#[test]
fn posts_whose_clients_leave_keep_few_threads() {
    let slow = Arc::new(Slow::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, Arc::new(Webhook(Arc::clone(&slow)))).unwrap();
    let post = "POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd";
    let closed = slow.is_open.lock().unwrap();
    for _ in 0..100 {
        drop(open(server.address(), post));
        // Connections are accepted in turn.
        ask(server.address(), "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    assert!(slow.begun.load(Ordering::SeqCst) <= 16);
    drop(closed);
    testkit::eventually("an answer", || {
        let mut answer = String::new();
        open(server.address(), post).read_to_string(&mut answer).ok()?;
        answer.ends_with("\r\n\r\n4\n").then_some(())
    });
}
