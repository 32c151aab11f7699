//! Another implementation's ends, on the `h2` crate: without credit, as the original is.

use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use konnectivity::packet::Packet;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::World;

/// One side of a stream of packets.
pub(crate) struct Plain {
    pub(crate) headers: HeaderMap,
    send: SendStream<Bytes>,
    receive: RecvStream,
    partial: BytesMut,
}

/// Connects as an agent with these metadata, and waits for the server's headers.
pub(crate) async fn agent(
    world: &World,
    server: SocketAddr,
    metadata: &[(&str, &str)],
) -> Result<Plain, String> {
    let config = world.client_config(&world.files("agent"), &["h2"]);
    let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(config).connect(name, stream).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let (mut client, connection) =
        h2::client::handshake(stream).await.map_err(|it| it.to_string())?;
    tokio::spawn(async move {
        let _over = connection.await;
    });
    let mut request = Request::post("https://127.0.0.1/AgentService/Connect")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in metadata {
        request = request.header(*name, *value);
    }
    let (answer, send) =
        client.send_request(request.body(()).unwrap(), false).map_err(|error| error.to_string())?;
    let answer = answer.await.map_err(|error| error.to_string())?;
    if let Some(status) = answer.headers().get("grpc-status") {
        let text = answer.headers().get("grpc-message").and_then(|it| it.to_str().ok());
        return Err(format!("{}: {}", status.to_str().unwrap(), text.unwrap_or_default()));
    }
    let headers = answer.headers().clone();
    Ok(Plain { headers, send, receive: answer.into_body(), partial: BytesMut::new() })
}

/// Waits for an agent as a server called `server_id`.
pub(crate) async fn accept(
    listener: &TcpListener,
    acceptor: &TlsAcceptor,
    server_id: &str,
    count: usize,
) -> Plain {
    let (stream, _) = listener.accept().await.unwrap();
    let stream = acceptor.accept(stream).await.unwrap();
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    tokio::spawn(async move { while connection.accept().await.is_some() {} });
    assert_eq!(request.uri().path(), "/AgentService/Connect");
    let headers = request.headers().clone();
    let answer = Response::builder()
        .header("content-type", "application/grpc")
        .header("serverid", server_id)
        .header("servercount", count.to_string());
    let send = respond.send_response(answer.body(()).unwrap(), false).unwrap();
    Plain { headers, send, receive: request.into_body(), partial: BytesMut::new() }
}

impl Plain {
    pub(crate) async fn send(&mut self, packet: &Packet) {
        let mut body = Vec::new();
        packet.encode(&mut body);
        let mut message = vec![0];
        message.extend_from_slice(&(body.len() as u32).to_be_bytes());
        message.extend_from_slice(&body);
        self.send_raw(message.into()).await;
    }

    pub(crate) async fn send_raw(&mut self, mut message: Bytes) {
        while !message.is_empty() {
            self.send.reserve_capacity(message.len());
            let Some(Ok(room)) = std::future::poll_fn(|cx| self.send.poll_capacity(cx)).await
            else {
                return;
            };
            let chunk = message.split_to(room.min(message.len()));
            if self.send.send_data(chunk, false).is_err() {
                return;
            }
        }
    }

    /// The next packet; `None` when the stream has ended.
    pub(crate) async fn receive(&mut self) -> Option<Packet> {
        loop {
            if let Some(prefix) = self.partial.first_chunk::<5>() {
                let length = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                if self.partial.len() >= 5 + length {
                    self.partial.advance(5);
                    let body = self.partial.split_to(length).freeze();
                    return Some(Packet::decode(&body).unwrap());
                }
            }
            let chunk = self.receive.data().await?.ok()?;
            self.receive.flow_control().release_capacity(chunk.len()).unwrap();
            self.partial.extend_from_slice(&chunk);
        }
    }
}
