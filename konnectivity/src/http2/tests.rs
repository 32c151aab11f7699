//! Frames by hand, and whatever bytes there are.

use std::sync::Arc;

use proptest::prelude::*;

use super::frame::{self, flag, kind};
use super::hpack;
use crate::survey::{Survey, survey};

/// A client's connection up to its first frames.
fn opened() -> Vec<u8> {
    let mut bytes = frame::PREFACE.to_vec();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    bytes
}

fn put(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    frame::put_head(bytes, payload.len(), kind, flags, stream);
    bytes.extend_from_slice(payload);
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    hpack::encode(fields.iter().copied(), &mut block);
    block
}

/// In pieces of every size, which make no difference.
fn survey_all(bytes: &[u8]) -> Survey {
    let whole = survey(bytes, bytes.len());
    for piece in 1..bytes.len().min(64) {
        assert_eq!(survey(bytes, piece), whole, "in pieces of {piece}");
    }
    whole
}

fn fault(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> String {
    let mut bytes = opened();
    put(&mut bytes, kind, flags, stream, payload);
    survey_all(&bytes).fault.unwrap_or_default()
}

#[test]
fn headers_in_every_dress() {
    // What kube-apiserver sends over a unix socket, with padding, priority and in three frames.
    let block = block(&[(":method", "POST"), (":authority", "%2Frun%2Fserver.sock")]);
    let (first, rest) = block.split_at(3);
    let (second, third) = rest.split_at(5);
    let mut bytes = opened();
    let mut payload = vec![4, 0, 0, 0, 0, 16];
    payload.extend_from_slice(first);
    payload.extend([0; 4]);
    put(&mut bytes, kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &payload);
    put(&mut bytes, kind::CONTINUATION, 0, 1, second);
    put(&mut bytes, kind::CONTINUATION, flag::END_HEADERS, 1, third);
    let seen = survey_all(&bytes);
    assert_eq!(seen.events, ["1: :method=POST :authority=%2Frun%2Fserver.sock end=false"]);
    assert_eq!(seen.fault, None);
}

#[test]
fn data_in_every_dress() {
    let mut bytes = opened();
    put(&mut bytes, kind::HEADERS, flag::END_HEADERS, 1, &block(&[(":method", "POST")]));
    // DRAIN, in two frames, the first with padding; then an empty one that ends the stream.
    put(&mut bytes, kind::DATA, flag::PADDED, 1, &[2, 0, 0, 0, 9, 9]);
    put(&mut bytes, kind::DATA, 0, 1, &[0, 4, 8, 6, 0x42, 0]);
    put(&mut bytes, kind::DATA, flag::END_STREAM | flag::PADDED, 1, &[3, 0, 0, 0]);
    // Nobody's: the stream was never opened.
    put(&mut bytes, kind::DATA, 0, 3, &[1, 2, 3]);
    let seen = survey_all(&bytes);
    assert_eq!(seen.packets[&1], ["Drain"]);
    assert_eq!(seen.events.last().unwrap(), "1: end");
    assert_eq!(seen.fault, None);
}

#[test]
fn faults_end_the_connection() {
    let start = "http2: ";
    for (wanted, found) in [
        ("a header block that does not go on", {
            let mut bytes = opened();
            put(&mut bytes, kind::HEADERS, 0, 1, &[0x82]);
            put(&mut bytes, kind::PING, 0, 0, &[0; 8]);
            survey_all(&bytes).fault.unwrap()
        }),
        ("the first frame is no SETTINGS", {
            let mut bytes = frame::PREFACE.to_vec();
            put(&mut bytes, kind::PING, 0, 0, &[0; 8]);
            survey_all(&bytes).fault.unwrap()
        }),
        ("this is not HTTP/2", survey_all(b"GET / HTTP/1.1\r\n\r\n").fault.unwrap()),
        ("header block: index 70 is in no table", fault(kind::HEADERS, 4, 1, &[0xc6])),
        ("HEADERS: padding beyond the frame", fault(kind::HEADERS, 4 | 8, 1, &[9, 0x82])),
        ("HEADERS on stream 2", fault(kind::HEADERS, 4, 2, &[0x82])),
        ("DATA on stream 0", fault(kind::DATA, 0, 0, &[1])),
        ("padding without its length", fault(kind::DATA, flag::PADDED, 1, &[])),
        ("frame of kind 6 with 7 bytes", fault(kind::PING, 0, 0, &[0; 7])),
        ("frame of kind 4 with 5 bytes", fault(kind::SETTINGS, 0, 0, &[0; 5])),
        ("frame size 16383", fault(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff])),
        ("a window update of nothing", fault(kind::WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a window above 2^31-1", fault(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("RST_STREAM on stream 0", fault(kind::RST_STREAM, 0, 0, &[0; 4])),
        ("CONTINUATION of nothing", fault(kind::CONTINUATION, 4, 1, &[0x82])),
        ("a push nobody allowed", fault(kind::PUSH_PROMISE, 4, 1, &[0; 4])),
    ] {
        assert_eq!(found, format!("{start}{wanted}"));
    }
    let mut bytes = opened();
    bytes.extend([2, 0, 1, 0, 0, 0, 0, 0, 1]);
    assert_eq!(survey_all(&bytes).fault.unwrap(), "http2: a frame of 131073 bytes");
}

#[test]
fn more_than_the_window_ends_the_connection() {
    let mut bytes = opened();
    // On a stream nobody reads, the connection's window is given back; on none of them more
    // than the window comes at a time.
    for _ in 0..4 {
        put(&mut bytes, kind::DATA, 0, 3, &[0; 60_000]);
    }
    assert_eq!(survey(&bytes, 10_000).fault, None);
    put(&mut bytes, kind::DATA, 0, 3, &[0; 70_000]);
    let fault = survey(&bytes, 10_000).fault.unwrap();
    assert_eq!(fault, "http2: connection: beyond its window");
}

#[test]
fn whoever_asks_and_never_listens_is_cut_off() {
    let mut bytes = opened();
    for _ in 0..70_000 {
        put(&mut bytes, kind::PING, 0, 0, &[0; 8]);
    }
    let fault = survey(&bytes, 16_384).fault.unwrap();
    assert_eq!(fault, "http2: answers are asked for and not read");
    let mut bytes = opened();
    put(&mut bytes, kind::HEADERS, 0, 1, &[]);
    for _ in 0..100 {
        put(&mut bytes, kind::CONTINUATION, 0, 1, &[]);
    }
    assert_eq!(survey(&bytes, 100).fault.unwrap(), "http2: an endless header block");
}

#[test]
fn whoever_wants_to_remember_less_is_told_to_forget() {
    use super::{Handler, Link, Receiver, Role, Windows};
    struct Nobody;
    impl Handler for Nobody {
        fn headers(&mut self, _: &Arc<Link>, _: u32, _: Vec<super::Field>, _: bool) {}
        fn data(&mut self, _: &Arc<Link>, _: u32, _: &[u8], _: bool) {}
        fn reset(&mut self, _: &Arc<Link>, _: u32, _: u32) {}
    }
    let link = Link::new(Role::Server, Windows { stream: 65_535, connection: 65_535 });
    let mut bytes = frame::PREFACE.to_vec();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    for stream in [1, 3] {
        let block = block(&[(":method", "POST")]);
        put(&mut bytes, kind::HEADERS, flag::END_HEADERS, stream, &block);
    }
    Receiver::new(Role::Server).receive(&bytes, &link, &mut Nobody).unwrap();
    let mut sent = Vec::new();
    link.fill(&mut sent, &mut Vec::new(), std::task::Waker::noop());
    sent.clear();
    for stream in [1, 3] {
        link.headers(stream, &block(&[(":status", "200")]));
    }
    link.fill(&mut sent, &mut Vec::new(), std::task::Waker::noop());
    let mut wanted = Vec::new();
    put(&mut wanted, kind::HEADERS, flag::END_HEADERS, 1, &[0x20, 0x88]);
    put(&mut wanted, kind::HEADERS, flag::END_HEADERS, 3, &[0x88]);
    assert_eq!(sent, wanted);
}

/// Frames that are nearly right.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..24);
    let one = (0_u8..12, any::<u8>(), 0_u32..6, payload);
    proptest::collection::vec(one, 0..12).prop_map(|frames| {
        let mut bytes = opened();
        for (kind, flags, stream, payload) in frames {
            put(&mut bytes, kind, flags, stream, &payload);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn pieces_make_no_difference(bytes in frames(), piece in 1_usize..40) {
        prop_assert_eq!(survey(&bytes, piece), survey(&bytes, bytes.len()));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut connection = opened();
        connection.extend_from_slice(&bytes);
        prop_assert_eq!(survey(&connection, 7), survey(&connection, connection.len()));
    }
}
