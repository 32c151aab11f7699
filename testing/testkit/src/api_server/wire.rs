//! The subset of HTTP/1.1 that the double needs: requests, answers, events of a watch.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{Value, json};

use crate::protobuf;

/// A connection.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A request.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) token: Option<String>,
    /// All others but those about the connection.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

pub(super) fn read(stream: &mut BufReader<Box<dyn Stream>>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut token, mut headers) = (0, None, Vec::new());
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
            "host" | "connection" => {}
            _ => headers.push((name.to_owned(), value.trim().to_owned())),
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(Request { method, target, token, headers, body }))
}

pub(super) fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message})
}

pub(super) fn refuse(stream: &mut Box<dyn Stream>, code: u16, message: &str) -> io::Result<()> {
    whole(stream, code, &status(code, message))
}

pub(super) fn head(stream: &mut Box<dyn Stream>, protobuf: Option<&str>) -> io::Result<()> {
    let content = match protobuf {
        Some(_) => "application/vnd.kubernetes.protobuf;stream=watch",
        None => "application/json",
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {content}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

/// Sends an event.
pub(super) fn event(
    stream: &mut Box<dyn Stream>,
    kind: Option<&str>,
    event: &Value,
) -> io::Result<()> {
    let line = match kind {
        Some(kind) => protobuf::event(event, kind).map_err(io::Error::other)?,
        None => format!("{event}\n").into_bytes(),
    };
    let chunk = [format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat();
    stream.write_all(&chunk)?;
    stream.flush()
}

pub(super) fn whole(stream: &mut Box<dyn Stream>, code: u16, value: &Value) -> io::Result<()> {
    body(stream, code, "application/json", value.to_string().as_bytes())
}

pub(super) fn body(
    stream: &mut Box<dyn Stream>,
    code: u16,
    content: &str,
    body: &[u8],
) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {code} Whatever\r\nContent-Type: {content}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    stream.flush()
}
