//! `podgate observe` beside a switch that ends: it waits for the next one, says so, and fails where
//! none comes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use testkit::TempDir;

const EVENT: &str = concat!(
    r#"{"result":{"time":"2026-11-21T02:25:35.123Z","node":"n","verdict":"dropped","#,
    r#""reason":"policy-denied","by":["default-deny of NetworkPolicy shop/db"],"#,
    r#""from":{"pod":"shop/web","port":4100},"to":{"pod":"shop/db","port":22},"protocol":"TCP"}}"#,
);

/// Answers one request with one verdict, and ends; returns the request.
fn serve(listener: &UnixListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
    stream.write_all(format!("{EVENT}\n").as_bytes()).unwrap();
    request
}

#[test]
fn a_stream_goes_on_with_the_next_switch_and_fails_without_one() {
    let folder = TempDir::new("streams");
    let socket = folder.path().join("podgate.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_podgate"))
        .args(["observe", "--follow", "--color", "always", "--reconnect", "2s", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let first = serve(&listener);
    assert!(first.contains(r#""follow":true"#) && first.contains(r#""last":0"#), "{first}");
    // The next switch receives a request for its verdicts since the first one ended.
    let second = serve(&listener);
    assert!(second.contains(r#""last":4294967295"#) && second.contains(r#""since":"#), "{second}");
    drop(listener);
    std::fs::remove_file(&socket).unwrap();
    let output = command.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(out.matches("\u{1b}[31mDROPPED\u{1b}[0m").count(), 2, "{out}");
    let said: Vec<&str> = err.lines().collect();
    assert_eq!(said.len(), 4, "{err}");
    assert_eq!(said[0], "podgate: the switch has ended; waiting for another one");
    assert!(said[1].starts_with("podgate: connected again after "), "{err}");
    assert_eq!(said[3], "podgate: the switch has ended, and no other one has begun");
}

#[test]
fn a_filter_that_means_nothing_is_refused_before_anything_is_asked() {
    let output = Command::new(env!("CARGO_BIN_EXE_podgate"))
        .args(["observe", "--since", "yesterday", "--socket", "/nowhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("podgate: --since: 'yesterday' is neither a span"), "{said}");
}
