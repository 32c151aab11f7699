//! The subset of HTTP/1.1 that the double needs: requests, answers, events of a watch.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{Value, json};

use crate::protobuf;

/// A connection.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A request to the double.
pub struct Request {
    /// Its method, such as GET.
    pub method: String,
    /// Path and query.
    pub target: String,
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

pub(super) fn refuse(stream: &mut dyn Stream, code: u16, message: &str) -> io::Result<()> {
    whole(stream, code, &status(code, message))
}

/// Begins the answer to a watch, of events with objects of a kind in protobuf, or in JSON.
///
/// # Errors
/// As the stream's.
pub fn begin_watch(stream: &mut dyn Write, protobuf: Option<&str>) -> io::Result<()> {
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
pub(super) fn event(stream: &mut dyn Stream, kind: Option<&str>, event: &Value) -> io::Result<()> {
    write_event(stream, kind, event)?;
    stream.flush()
}

/// Writes an event with an object of a kind in protobuf, or in JSON; returns its size without what HTTP adds.
///
/// # Errors
/// As the stream's, and fields that protobuf does not have.
pub fn write_event(out: &mut dyn Write, kind: Option<&str>, event: &Value) -> io::Result<usize> {
    let line = match kind {
        Some(kind) => protobuf::event(event, kind).map_err(io::Error::other)?,
        None => format!("{event}\n").into_bytes(),
    };
    out.write_all(&[format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat())?;
    Ok(line.len())
}

/// Sends an answer in JSON.
///
/// # Errors
/// As the stream's.
pub fn whole(stream: &mut dyn Stream, code: u16, value: &Value) -> io::Result<()> {
    body(stream, code, "application/json", value.to_string().as_bytes())
}

pub(super) fn body(
    stream: &mut dyn Stream,
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
