//! Frames by hand, and arbitrary bytes.

mod limits;
mod rfc9113;

use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;

use super::frame::{self, flag, kind};
use super::{Field, Handler, Link, Receiver, Role, Settings, hpack};

/// Events that a connection made of the bytes it got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Calls of the handler.
    events: Vec<String>,
    /// Code and text of the fault that ended it.
    fault: Option<(u32, String)>,
    /// Frames it sent, without its settings: `RST_STREAM 1 00000008`.
    sent: Vec<String>,
}

impl Seen {
    fn code(&self) -> Option<u32> {
        self.fault.as_ref().map(|it| it.0)
    }
}

impl Handler for Seen {
    fn headers(&mut self, _: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool) {
        let fields: Vec<String> =
            fields.iter().map(|field| format!("{}={}", field.name, field.value)).collect();
        self.events.push(format!("{stream}: {} end={end}", fields.join(" ")));
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        // Pieces make no difference.
        let start = format!("{stream}: data ");
        match self.events.last_mut().filter(|it| it.starts_with(&start)) {
            Some(last) => last.push_str(&hex(bytes)),
            None => self.events.push(start + &hex(bytes)),
        }
        if end {
            self.events.push(format!("{stream}: end"));
        }
    }

    fn reset(&mut self, _: &Arc<Link>, stream: u32, code: u32) {
        self.events.push(format!("{stream}: reset {code}"));
    }

    fn going_away(&mut self, _: &Arc<Link>, code: u32, text: &str) {
        self.events.push(format!("going away {code} {text}"));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const OFFER: Settings = Settings { stream_window: 65_535, connection_window: 65_535, streams: 3 };

/// Frames that a link has queued.
fn sent(link: &Link) -> Vec<String> {
    let mut bytes = Vec::new();
    link.fill(&mut bytes, &mut Vec::new(), Waker::noop());
    let mut rest = bytes.strip_prefix(frame::PREFACE).unwrap_or(&bytes);
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(frame::HEAD) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let names = [
            "DATA",
            "HEADERS",
            "PRIORITY",
            "RST_STREAM",
            "SETTINGS",
            "PUSH_PROMISE",
            "PING",
            "GOAWAY",
            "WINDOW_UPDATE",
            "CONTINUATION",
        ];
        let ack = matches!(head[3], kind::SETTINGS | kind::PING) && head[4] & flag::ACK != 0;
        let ack = if ack { " ACK" } else { "" };
        let text =
            format!("{}{ack} {stream} {}", names[usize::from(head[3])], hex(&after[..length]));
        frames.push(text.trim_end().to_owned());
        rest = &after[length..];
    }
    frames
}

fn run(role: Role, bytes: &[u8], piece: usize, before: impl FnOnce(&Link)) -> Seen {
    let link = Link::new(role, OFFER);
    sent(&link);
    before(&link);
    let mut receiver = Receiver::new(role);
    let mut seen = Seen::default();
    for chunk in bytes.chunks(piece.max(1)) {
        if let Err(fault) = receiver.receive(chunk, 1_000, &link, &mut seen) {
            seen.fault = Some((fault.code, fault.text));
            break;
        }
    }
    seen.sent = sent(&link);
    seen
}

/// A server's view, in pieces of every size, which make no difference.
fn serve(bytes: &[u8]) -> Seen {
    let whole = run(Role::Server, bytes, bytes.len(), |_| ());
    for piece in 1..bytes.len().min(64) {
        assert_eq!(run(Role::Server, bytes, piece, |_| ()), whole, "in pieces of {piece}");
    }
    whole
}

fn put(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    frame::put_head(bytes, payload.len(), kind, flags, stream);
    bytes.extend_from_slice(payload);
}

/// A frame: kind, flags, stream, payload.
type Raw<'a> = (u8, u8, u32, &'a [u8]);

/// A client's connection: preface, settings, and these frames.
fn client(frames: &[Raw<'_>]) -> Vec<u8> {
    let mut bytes = frame::PREFACE.to_vec();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    for (kind, flags, stream, payload) in frames {
        put(&mut bytes, *kind, *flags, *stream, payload);
    }
    bytes
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    hpack::encode(fields.iter().copied(), &mut block);
    block
}

const POST: [(&str, &str); 3] = [(":method", "POST"), (":scheme", "http"), (":path", "/a")];

/// The headers of a request.
fn post() -> Vec<u8> {
    block(&POST)
}

const END_HEADERS: u8 = flag::END_HEADERS;
const END_BOTH: u8 = flag::END_HEADERS | flag::END_STREAM;

#[test]
fn headers_in_every_form() {
    // What kube-apiserver sends over a unix socket, with padding, priority and in three frames.
    let mut fields = POST.to_vec();
    fields.push((":authority", "%2Frun%2Fserver.sock"));
    let block = block(&fields);
    let (first, rest) = block.split_at(3);
    let (second, third) = rest.split_at(5);
    let mut payload = vec![4, 0, 0, 0, 0, 16];
    payload.extend_from_slice(first);
    payload.extend([0; 4]);
    let seen = serve(&client(&[
        (kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &payload),
        (kind::CONTINUATION, 0, 1, second),
        (kind::CONTINUATION, END_HEADERS, 1, third),
    ]));
    let wanted = "1: :method=POST :scheme=http :path=/a :authority=%2Frun%2Fserver.sock end=false";
    assert_eq!((seen.events, seen.fault), (vec![wanted.to_owned()], None));
}

#[test]
fn data_in_every_form() {
    // Two frames, the first with padding; then an empty one that ends the stream.
    let seen = serve(&client(&[
        (kind::HEADERS, END_HEADERS, 1, &post()),
        (kind::DATA, flag::PADDED, 1, &[2, 1, 2, 3, 9, 9]),
        (kind::DATA, 0, 1, &[4, 5]),
        (kind::DATA, flag::END_STREAM | flag::PADDED, 1, &[3, 0, 0, 0]),
    ]));
    assert_eq!(seen.events[1..], ["1: data 0102030405", "1: end"]);
    assert_eq!(seen.fault, None);
}

/// Frames that are nearly right.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..24);
    let one = (0_u8..12, any::<u8>(), 0_u32..6, payload);
    proptest::collection::vec(one, 0..12).prop_map(|frames| {
        let mut bytes = client(&[(kind::HEADERS, END_HEADERS, 1, &post())]);
        for (kind, flags, stream, payload) in frames {
            put(&mut bytes, kind, flags, stream, &payload);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn pieces_make_no_difference(bytes in frames(), piece in 1_usize..40) {
        let whole = run(Role::Server, &bytes, bytes.len(), |_| ());
        prop_assert_eq!(run(Role::Server, &bytes, piece, |_| ()), whole);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut connection = client(&[]);
        connection.extend_from_slice(&bytes);
        let whole = run(Role::Server, &connection, connection.len(), |_| ());
        prop_assert_eq!(run(Role::Server, &connection, 7, |_| ()), whole);
    }
}
