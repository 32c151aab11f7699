//! The API server's side of the gRPC frontend: one connection and one stream for each dial, as
//! kube-apiserver does it. For tests and benchmarks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use crate::grpc::{Assembler, data_message, failure, message, request};
use crate::packet::Packet;
use http2::{Field, Handler, Link, Role, Settings, drive};

/// The path that dials are sent to.
const PATH: &str = "/ProxyService/Proxy";
/// Larger than any message a server sends.
const SETTINGS: Settings =
    Settings { stream_window: 128 * 1024, connection_window: 128 * 1024, streams: 0 };

/// A stream to a server. Dropping it drops its connection without a close.
#[derive(Debug)]
pub struct Tunnel {
    link: Arc<Link>,
    stream: u32,
    packets: mpsc::UnboundedReceiver<(Packet, usize)>,
    driver: tokio::task::JoinHandle<()>,
    /// The reason of the stream's end.
    ended: mpsc::UnboundedReceiver<String>,
}

impl Tunnel {
    /// Connects over a unix socket. `:authority` is the path, percent-encoded, as gRPC for Go
    /// sends it.
    ///
    /// # Errors
    /// Fails if no server listens there.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        let authority = path.to_string_lossy().replace('/', "%2F");
        Ok(Self::over(stream, "http", &authority))
    }

    /// Connects over TLS.
    ///
    /// # Errors
    /// Fails if no server listens there, or either certificate is refused.
    pub async fn tls(address: &str, name: &str, config: Arc<ClientConfig>) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Self::over(stream, "https", address))
    }

    /// Opens a stream over an established connection.
    pub fn over<I>(io: I, scheme: &str, authority: &str) -> Self
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let link = Link::new(Role::Client, SETTINGS);
        let stream = link.request(&request(scheme, authority, PATH, &[])).unwrap_or(1);
        let (sender, packets) = mpsc::unbounded_channel();
        let (why, ended) = mpsc::unbounded_channel();
        let mut reader = Reader { assembler: Assembler::default(), sender: Some(sender), why };
        let driven = Arc::clone(&link);
        let driver = tokio::spawn(async move {
            let result = drive(io, driven, &mut reader).await;
            if let Err(error) = result {
                reader.end(error.to_string());
            }
        });
        Self { link, stream, packets, driver, ended }
    }

    /// Dials, and waits for the answer: the connection's number.
    ///
    /// # Errors
    /// Packets from the server.
    pub async fn dial(&mut self, target: &str) -> Result<i64, String> {
        self.send(&Packet::DialRequest {
            protocol: "tcp".to_owned(),
            address: target.to_owned(),
            random: 0x1234_5678_9abc,
        });
        match self.receive().await {
            Some(Packet::DialResponse { error, connection, .. }) if error.is_empty() => {
                Ok(connection)
            }
            Some(Packet::DialResponse { error, .. }) => Err(error),
            Some(other) => Err(format!("{} instead of an answer", other.name())),
            None => Err(format!("the stream ended: {}", self.why())),
        }
    }

    /// Sends a packet.
    pub fn send(&self, packet: &Packet) {
        self.link.send(self.stream, message(packet));
    }

    /// Sends bytes.
    pub fn send_data(&self, connection: i64, bytes: &[u8]) {
        self.link.send(self.stream, data_message(connection, bytes));
    }

    /// Sends arbitrary bytes.
    pub fn send_raw(&self, bytes: Bytes) {
        self.link.send(self.stream, bytes);
    }

    /// Bytes not sent yet.
    pub fn unsent(&self) -> usize {
        self.link.queued(self.stream)
    }

    /// The next packet; `None` when the stream has ended. When the window is full, the server holds
    /// the rest.
    pub async fn receive(&mut self) -> Option<Packet> {
        let (packet, bytes) = self.packets.recv().await?;
        self.link.release(self.stream, bytes);
        Some(packet)
    }

    /// Receives exactly so many bytes of data.
    ///
    /// # Errors
    /// Fails if something else comes before they are complete.
    pub async fn receive_data(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            match self.receive().await {
                Some(Packet::Data { bytes, .. }) => all.extend_from_slice(&bytes),
                Some(Packet::CloseResponse { error, .. }) => {
                    return Err(format!("closed after {} bytes: {error}", all.len()));
                }
                Some(other) => return Err(format!("{} instead of data", other.name())),
                None => {
                    return Err(format!("ended after {} bytes: {}", all.len(), self.why()));
                }
            }
        }
        Ok(all)
    }

    /// Returns why the stream ended.
    pub fn why(&mut self) -> String {
        self.ended.try_recv().unwrap_or_else(|_| "no reason was given".to_owned())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

struct Reader {
    assembler: Assembler,
    sender: Option<mpsc::UnboundedSender<(Packet, usize)>>,
    why: mpsc::UnboundedSender<String>,
}

impl Reader {
    fn end(&mut self, why: String) {
        // The receiver may be gone.
        let _unheard = self.why.send(why);
        self.sender = None;
    }
}

impl Handler for Reader {
    fn headers(&mut self, _link: &Arc<Link>, _stream: u32, fields: Vec<Field>, end: bool) {
        if end {
            self.end(failure(&fields).unwrap_or_else(|| "status 0".to_owned()));
        }
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        let Some(sender) = &self.sender else { return link.release(stream, bytes.len()) };
        let pushed = self.assembler.push(bytes, |it| {
            // If the receiver was dropped, this is dropped soon.
            sender.send((it.packet, it.raw.len())).is_ok()
        });
        if let Err(error) = pushed {
            self.end(error.to_string());
        } else if end {
            self.end("the stream ended".to_owned());
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, _stream: u32, code: u32) {
        self.end(format!("RST_STREAM {code}"));
    }
}
