//! The server on a unix socket, asked over HTTP/2 as gRPC clients do.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use hubble::messages::Empty;
use hubble::messages::flow::flow_filter::Experimental;
use hubble::messages::flow::layer4::Protocol;
use hubble::messages::flow::{FlowFilter, LostEventSource};
use hubble::messages::observer::get_flows_response::ResponseTypes;
use hubble::messages::observer::{GetFlowsRequest, GetFlowsResponse, ServerStatusResponse};
use hubble::{Endpoint, Observer, Server};
use observe::verdicts::EventBroker;
use prost::Message;
use testkit::TempDir;
use testkit::packet;
use tokio::net::UnixStream;

const FLOWS: &str = "/observer.Observer/GetFlows";
const LONG: Duration = Duration::from_secs(60);

struct Switch {
    broker: Arc<EventBroker>,
    server: Server,
    socket: PathBuf,
    _folder: TempDir,
}

impl Switch {
    fn new(label: &str) -> Self {
        let folder = TempDir::new(label);
        let socket = folder.path().join("hubble.sock");
        let broker = EventBroker::new("node-a", 1);
        let observer = Observer::new(Arc::clone(&broker), "node-a");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = Server::start(Endpoint::Unix(listener, socket.clone()), observer).unwrap();
        Self { broker, server, socket, _folder: folder }
    }

    /// A policy denies a connection to this port.
    fn deny(&self, port: u16) {
        let syn = packet::tcp("10.1.0.3:40000", &format!("10.1.0.2:{port}")).syn().build();
        // From the IP header on.
        self.broker.record_denied("NetworkPolicy shop/db ingress[0]", &syn[14..]);
    }

    async fn connect(&self) -> SendRequest<Bytes> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        client.ready().await.unwrap()
    }
}

/// A call: messages as they come, and the status at its end.
struct Call {
    body: h2::RecvStream,
    head: HeaderMap,
    received: BytesMut,
}

impl Call {
    async fn begin(client: &mut SendRequest<Bytes>, path: &str, message: &[u8]) -> Self {
        let request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = request.body(()).unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        body.send_data(Bytes::copy_from_slice(message), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let (parts, body) = response.into_parts();
        Self { body, head: parts.headers, received: BytesMut::new() }
    }

    /// The next message; `None` at the end.
    async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if self.received.len() >= 5 {
                let length = u32::from_be_bytes(self.received[1..5].try_into().unwrap()) as usize;
                if self.received.len() >= 5 + length {
                    self.received.advance(5);
                    return Some(M::decode(self.received.split_to(length)).unwrap());
                }
            }
            let data = self.body.data().await?.unwrap();
            self.body.flow_control().release_capacity(data.len()).unwrap();
            self.received.extend_from_slice(&data);
        }
    }

    /// Code and message of the status.
    async fn status(mut self) -> (String, String) {
        let all = match self.head.contains_key("grpc-status") {
            true => self.head,
            false => self.body.trailers().await.unwrap().unwrap_or_default(),
        };
        let text = |name: &str| {
            let value = all.get(name).map(|value| value.to_str().unwrap().to_owned());
            value.unwrap_or_default()
        };
        (text("grpc-status"), text("grpc-message"))
    }
}

fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &bytes].concat()
}

fn port(response: &GetFlowsResponse) -> u32 {
    let Some(ResponseTypes::Flow(flow)) = &response.response_types else {
        panic!("no flow: {response:?}")
    };
    match flow.l4.unwrap().protocol {
        Some(Protocol::Tcp(tcp)) => tcp.destination_port,
        other => panic!("no TCP: {other:?}"),
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = async { tokio::time::timeout(LONG, test).await };
    runtime.block_on(test).expect("it ends in time");
}

#[test]
fn past_and_new_flows_on_one_connection() {
    let switch = Switch::new("hubble-past");
    run(async {
        let mut client = switch.connect().await;
        (80..83).for_each(|port| switch.deny(port));
        let wanted = GetFlowsRequest { number: 2, ..Default::default() };
        let mut call = Call::begin(&mut client, FLOWS, &framed(&wanted)).await;
        let first = call.next::<GetFlowsResponse>().await.unwrap();
        assert_eq!((port(&first), first.node_name.as_str()), (81, "node-a"));
        assert_eq!(port(&call.next().await.unwrap()), 82);
        assert!(call.next::<GetFlowsResponse>().await.is_none());
        assert_eq!(call.status().await.0, "0");

        let whitelist =
            vec![FlowFilter { destination_port: vec!["90".into()], ..Default::default() }];
        let wanted = GetFlowsRequest { follow: true, whitelist, ..Default::default() };
        let mut followed = Call::begin(&mut client, FLOWS, &framed(&wanted)).await;
        switch.deny(91);
        switch.deny(90);
        assert_eq!(port(&followed.next().await.unwrap()), 90);
        let mut call =
            Call::begin(&mut client, "/observer.Observer/ServerStatus", &framed(&Empty {})).await;
        let status = call.next::<ServerStatusResponse>().await.unwrap();
        assert_eq!((status.num_flows, status.seen_flows), (5, 5));
        // The stream ends with the switch.
        switch.broker.stop();
        assert!(followed.next::<GetFlowsResponse>().await.is_none());
        assert_eq!(followed.status().await.0, "0");
    });
    drop(switch.server);
    assert!(!switch.socket.exists());
}

#[test]
fn failures_have_their_status() {
    let switch = Switch::new("hubble-failures");
    run(async {
        let mut client = switch.connect().await;
        let expression = FlowFilter {
            experimental: Some(Experimental { cel_expression: vec!["true".into()] }),
            ..Default::default()
        };
        let refused = GetFlowsRequest { whitelist: vec![expression], ..Default::default() };
        let exclusive = GetFlowsRequest { first: true, follow: true, ..Default::default() };
        for (path, message, code, text) in [
            ("/observer.Observer/GetDebugEvents", framed(&Empty {}), "12", "there is no method"),
            ("/peer.Peer/Others", framed(&Empty {}), "12", "there is no method"),
            (FLOWS, framed(&refused), "3", "experimental.cel_expression"),
            (FLOWS, framed(&exclusive), "3", "first and follow"),
            (FLOWS, vec![1, 0, 0, 0, 0], "12", "request: compressed"),
            (FLOWS, vec![0, 0, 0], "13", "request: there is no message"),
            (FLOWS, vec![0, 0, 0, 0, 2, 0x3a, 0xff], "3", "request: "),
            (FLOWS, vec![0; 2 << 20], "8", "request: "),
        ] {
            let mut call = Call::begin(&mut client, path, &message).await;
            assert!(call.next::<GetFlowsResponse>().await.is_none(), "{path}");
            let status = call.status().await;
            assert_eq!(status.0, code, "{path}: {status:?}");
            assert!(status.1.starts_with(text), "{path}: {status:?}");
        }
        let request = Request::get("http://localhost/metrics").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), 415);
    });
}

#[test]
fn streams_are_bounded_and_end_with_their_clients() {
    let switch = Switch::new("hubble-streams");
    run(async {
        let follow = framed(&GetFlowsRequest { follow: true, ..Default::default() });
        let mut client = switch.connect().await;
        let mut calls = Vec::new();
        for _ in 0..16 {
            calls.push(Call::begin(&mut client, FLOWS, &follow).await);
        }
        let refused = Call::begin(&mut client, FLOWS, &follow).await;
        assert_eq!(refused.status().await.0, "8");
        // Clients leave, with their calls or with their connection.
        calls.truncate(8);
        drop((calls, client));
        let mut client = switch.connect().await;
        let began = Instant::now();
        loop {
            let call = Call::begin(&mut client, FLOWS, &follow).await;
            // The head of a call that goes on has no status.
            if !call.head.contains_key("grpc-status") {
                break;
            }
            assert!(began.elapsed() < LONG);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_slow_client_is_told_of_its_losses() {
    let switch = Switch::new("hubble-slow");
    run(async {
        let mut client = switch.connect().await;
        let follow = framed(&GetFlowsRequest { follow: true, ..Default::default() });
        let mut call = Call::begin(&mut client, FLOWS, &follow).await;
        // More than the channels and windows on the way take.
        const ALL: u64 = 30_000;
        (0..ALL).for_each(|n| switch.deny(n as u16));
        let (mut flows, mut lost) = (0, 0);
        while flows + lost < ALL {
            match call.next::<GetFlowsResponse>().await.unwrap().response_types {
                Some(ResponseTypes::Flow(_)) => flows += 1,
                Some(ResponseTypes::LostEvents(events)) => {
                    assert_eq!(events.source(), LostEventSource::HubbleRingBuffer);
                    lost += events.num_events_lost;
                }
                None => panic!("an empty response"),
            }
        }
        assert_eq!(flows + lost, ALL, "{flows} flows and {lost} lost");
        assert!(lost > 0);
    });
}

/// A frame of HTTP/2: its type, its flags, the stream 1 unless it is about the connection.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let stream = if kind == SETTINGS { 0 } else { 1 };
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

#[test]
fn a_client_of_the_c_core_names_the_socket_by_its_encoded_path() {
    use std::io::{Read as _, Write as _};
    let switch = Switch::new("authority");
    let mut stream = std::os::unix::net::UnixStream::connect(&switch.socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut fields = Vec::new();
    let authority = switch.socket.display().to_string().replace('/', "%2F");
    let head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/observer.Observer/ServerStatus"),
        (":authority", authority.as_str()),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    http2::encode(head, &mut fields);
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, &[]),
        frame(HEADERS, 4, &fields),
        frame(DATA, 1, &[0; 5]),
    ];
    stream.write_all(&request.concat()).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut payload).unwrap();
        assert_ne!(head[3], RST_STREAM, "{payload:?}");
        if head[3] == DATA {
            assert!(ServerStatusResponse::decode(&payload[5..]).is_ok());
            return;
        }
    }
}
