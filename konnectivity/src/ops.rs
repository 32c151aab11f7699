//! Health, readiness, metrics: as much of HTTP/1.1 as a probe or a scraper needs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Answers paths.
pub(crate) trait Pages: Send + Sync + 'static {
    /// Code and text for a path and a query; `None` if there is no such page.
    fn page(&self, path: &str, query: &str) -> Option<(u16, String)>;
}

/// Connections at a time; who comes then waits.
const CONNECTIONS: usize = 64;
const MOST_REQUEST: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the task is ended.
pub(crate) async fn serve(listener: TcpListener, pages: Arc<dyn Pages>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = crate::accept::tcp(&listener).await;
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            let served = tokio::time::timeout(PATIENCE, answer(stream, &*pages)).await;
            if let Ok(Err(error)) = served {
                log::debug!("http: {error}");
            }
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream, pages: &dyn Pages) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MOST_REQUEST || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (code, text) = match method {
        "GET" | "HEAD" => {
            pages.page(path, query).unwrap_or_else(|| (404, "404 page not found\n".to_owned()))
        }
        _ => (405, "only GET and HEAD\n".to_owned()),
    };
    let reason = match code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        500 => "Internal Server Error",
        _ => "Service Unavailable",
    };
    let kind = if path == "/metrics" { "text/plain; version=0.0.4" } else { "text/plain" };
    let mut answer = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    if method != "HEAD" {
        answer.push_str(&text);
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // What the other side still sends is taken, or closing would cost it the answer.
    let mut rest = [0; 512];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
