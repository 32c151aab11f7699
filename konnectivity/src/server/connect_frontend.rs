//! The API server speaking HTTP/1.1 CONNECT (RFC 9110, section 9.3.6).

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;

use super::connection::{Cause, Client, Failure, Kind, Sink};
use super::dial::{Dialed, dial};
use super::proxy::Proxy;
use crate::grpc::data_message;
use crate::raw::{Ended, Owner, run};

/// Longest request head.
const MOST_HEAD: usize = 8 * 1024;
/// Limit of bytes that a client sends before its response.
const MOST_EARLY: usize = 16 * 1024;
/// The response to a successful dial; clients compare it byte by byte.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// Serves one connection of the API server.
pub(crate) async fn serve<I>(proxy: &Arc<Proxy>, mut io: I, who: String) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let handshake = proxy.options.limits.handshake;
    let head = tokio::time::timeout(handshake, read_head(&mut io)).await;
    let head = head.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let Some((head, early)) = head else {
        return refuse(&mut io, 431, "Request Header Fields Too Large", "the request is too long")
            .await;
    };
    let (target, agent) = match parse(&head) {
        Ok(parsed) => parsed,
        Err((code, reason, text)) => return refuse(&mut io, code, reason, &text).await,
    };
    let who: Arc<str> = match agent {
        None => who.into(),
        Some(agent) => format!("{who} ({agent})").into(),
    };
    proxy.metrics.http_connections.add(1);
    let result = tunnel(proxy, io, &who, &target, &early).await;
    proxy.metrics.http_connections.add(-1);
    result
}

async fn tunnel<I>(
    proxy: &Arc<Proxy>,
    mut io: I,
    who: &Arc<str>,
    target: &str,
    early: &[u8],
) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (client, answer) = Client::new();
    let sink = Sink::Raw(Arc::clone(&client));
    let dialed = dial(proxy, sink, who, target, random());
    let connection = match dialed {
        Ok(connection) => connection,
        Err(failure) => return refuse_dial(&mut io, &failure).await,
    };
    let side = Side(connection);
    let mut early = early.to_vec();
    let answer = wait(&mut io, answer, &mut early).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            side.0.part("the client went away");
            return Err(error);
        }
    };
    if let Err(failure) = answer {
        return refuse_dial(&mut io, &failure).await;
    }
    if let Err(error) = io.write_all(ESTABLISHED).await {
        side.0.part("the client went away");
        return Err(error);
    }
    if !early.is_empty() {
        side.read(&early);
    }
    let ended = run(io, &client.raw, &side).await;
    match ended {
        Ended::ByOwner => {}
        Ended::ByPeer => side.0.part("closed by client"),
        Ended::Failed(error) => side.0.part(&format!("the client's connection: {error}")),
    }
    Ok(())
}

/// Waits for the answer to a dial. Buffers what the client sends; fails if it disconnects.
async fn wait<I: AsyncRead + Unpin>(
    io: &mut I,
    mut answer: oneshot::Receiver<Result<(), Failure>>,
    early: &mut Vec<u8>,
) -> io::Result<Result<(), Failure>> {
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => {
                let given_up = |_| Err(Failure::of_agent("the dial was given up".to_owned()));
                return Ok(answer.unwrap_or_else(given_up));
            }
            read = io.read_buf(early), if early.len() < MOST_EARLY => {
                if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

/// The client's side of a connection.
struct Side(Dialed);

impl Owner for Side {
    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn read(&self, bytes: &[u8]) {
        self.0.submit(data_message(self.0.number(), bytes), bytes.len());
    }

    fn written(&self, bytes: usize) {
        self.0.drained(bytes);
    }

    fn half_closed(&self) -> bool {
        self.0.half_close()
    }
}

/// Everything up to the empty line and what came behind it; `None` if it is too long.
async fn read_head<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut head = Vec::new();
    loop {
        let seen = head.len().saturating_sub(3);
        if io.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(at) = head[seen..].windows(4).position(|end| end == b"\r\n\r\n") {
            let early = head.split_off(seen + at + 4);
            return Ok(Some((String::from_utf8_lossy(&head).into_owned(), early)));
        }
        if head.len() > MOST_HEAD {
            return Ok(None);
        }
    }
}

type Refusal = (u16, &'static str, String);

/// The target and the client's name for itself. The target is what the request line says; the
/// original's clients send something else as host.
fn parse(head: &str) -> Result<(String, Option<String>), Refusal> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err((400, "Bad Request", "this is not an HTTP/1.1 request".to_owned()));
    };
    if method != "CONNECT" {
        return Err((
            405,
            "Method Not Allowed",
            "this proxy only supports CONNECT passthrough".to_owned(),
        ));
    }
    let port = target.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        return Err((400, "Bad Request", format!("'{target}' is not host:port")));
    }
    let agent = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("user-agent").then(|| value.trim().to_owned())
    });
    Ok((target.to_owned(), agent))
}

async fn refuse_dial<I>(io: &mut I, failure: &Failure) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let (code, reason) = match failure.kind {
        Kind::NoAgent => (500, "Internal Server Error"),
        Kind::Denied | Kind::Refused(Cause::Denied) => (403, "Forbidden"),
        Kind::TooManyPending | Kind::Refused(Cause::TooManyFiles) => (503, "Service Unavailable"),
        Kind::NoAnswer | Kind::Refused(Cause::Timeout) => (504, "Gateway Timeout"),
        Kind::AgentGone | Kind::Refused(Cause::Other) => (502, "Bad Gateway"),
    };
    refuse(io, code, reason, &failure.text).await
}

async fn refuse<I>(io: &mut I, code: u16, reason: &str, text: &str) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let answer = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    io.write_all(answer.as_bytes()).await?;
    io.shutdown().await
}

/// A number for a dial. It only has to differ from others that wait for the same agent.
fn random() -> i64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(http2::millis()).cast_signed() & i64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_line_counts() {
        let head = "CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube\r\n\r\n";
        assert_eq!(parse(head), Ok(("10.0.0.1:443".to_owned(), Some("kube".to_owned()))));
        assert_eq!(parse("CONNECT [::1]:443 HTTP/1.1\r\n\r\n").unwrap().0, "[::1]:443");
        let code = |head: &str| parse(head).unwrap_err().0;
        assert_eq!(code("GET / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(code("CONNECT nowhere HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(code("CONNECT a:1 HTTP/2\r\n\r\n"), 400);
        assert_eq!(code("\r\n\r\n"), 400);
    }
}
