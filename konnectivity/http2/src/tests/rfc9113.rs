//! A test for each MUST of RFC 9113 that concerns a receiver of this kind, by section.

use super::*;
use crate::code::*;

fn code(frames: &[Raw<'_>]) -> Option<u32> {
    serve(&client(frames)).code()
}

/// Frames after the headers of stream 1.
fn on_stream(frames: &[Raw<'_>]) -> Seen {
    let post = post();
    let mut all = vec![(kind::HEADERS, END_HEADERS, 1, &post[..])];
    all.extend_from_slice(frames);
    serve(&client(&all))
}

/// Returns a client's reaction to a server's frames, with streams 1 and 3 open.
fn as_client(frames: &[Raw<'_>]) -> Seen {
    let mut bytes = Vec::new();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    for (kind, flags, stream, payload) in frames {
        put(&mut bytes, *kind, *flags, *stream, payload);
    }
    run(Role::Client, &bytes, bytes.len(), |link| {
        assert_eq!(link.request(&post()), Some(1));
        assert_eq!(link.request(&post()), Some(3));
        sent(link);
    })
}

fn reset_with(seen: &Seen, stream: u32, code: u32) -> bool {
    seen.sent.contains(&format!("RST_STREAM {stream} {code:08x}"))
        && seen.events.contains(&format!("{stream}: reset {code}"))
}

#[test]
fn section_3_4_preface() {
    assert_eq!(serve(b"GET / HTTP/1.1\r\n\r\n").code(), Some(PROTOCOL_ERROR));
    // The first frame is SETTINGS, and no acknowledgement.
    for (kind, flags) in [(kind::PING, 0), (kind::SETTINGS, flag::ACK)] {
        let mut bytes = frame::PREFACE.to_vec();
        put(&mut bytes, kind, flags, 0, &[0; 8][..if kind == kind::PING { 8 } else { 0 }]);
        assert_eq!(serve(&bytes).code(), Some(PROTOCOL_ERROR));
    }
    assert_eq!(serve(&client(&[])).sent, ["SETTINGS ACK 0"]);
}

#[test]
fn section_4_1_unknown_types_and_the_reserved_bit_are_ignored() {
    let seen = on_stream(&[
        (0x2a, 0xff, 1, &[1, 2, 3]),
        (0x2a, 0, 0, &[]),
        (kind::DATA, 0, 1 | 1 << 31, &[7]),
    ]);
    assert_eq!((seen.events.last().unwrap().as_str(), seen.fault), ("1: data 07", None));
}

#[test]
fn section_4_2_frame_size() {
    let mut bytes = client(&[]);
    bytes.extend([2, 0, 1, 0, 0, 0, 0, 0, 1]);
    assert_eq!(serve(&bytes).code(), Some(FRAME_SIZE_ERROR));
    for (kind, flags, stream, payload) in [
        (kind::PING, 0, 0, &[0; 7][..]),
        (kind::SETTINGS, 0, 0, &[0; 5]),
        (kind::SETTINGS, flag::ACK, 0, &[0; 6]),
        (kind::RST_STREAM, 0, 1, &[0; 5]),
        (kind::PRIORITY, 0, 1, &[0; 4]),
        (kind::WINDOW_UPDATE, 0, 0, &[0; 3]),
        (kind::GOAWAY, 0, 0, &[0; 7]),
    ] {
        let seen = on_stream(&[(kind, flags, stream, payload)]);
        assert_eq!(seen.code(), Some(FRAME_SIZE_ERROR), "kind {kind}");
    }
}

#[test]
fn section_4_3_header_blocks() {
    // One that cannot be decoded ends the connection.
    assert_eq!(code(&[(kind::HEADERS, END_HEADERS, 1, &[0xc6])]), Some(COMPRESSION_ERROR));
    // No frame comes between its frames, not even an unknown one.
    for other in [kind::PING, kind::DATA, 0x2a] {
        let payload = &[0; 8][..if other == kind::PING { 8 } else { 0 }];
        let stream = u32::from(other == kind::DATA);
        let frames: [Raw<'_>; 2] = [(kind::HEADERS, 0, 1, &[0x82]), (other, 0, stream, payload)];
        assert_eq!(code(&frames), Some(PROTOCOL_ERROR), "kind {other}");
    }
    let frames: [Raw<'_>; 2] =
        [(kind::HEADERS, 0, 1, &[0x82]), (kind::CONTINUATION, END_HEADERS, 3, &[0x84])];
    assert_eq!(code(&frames), Some(PROTOCOL_ERROR));
    // The table is the connection's: blocks of refused streams are decoded all the same.
    let mut indexed = post();
    indexed.extend([0x40, 1, b'x', 1, b'1']);
    let mut later = post();
    later.push(0xbe);
    let (end, post) = (&post()[..], post());
    let frames: Vec<Raw<'_>> = vec![
        (kind::HEADERS, END_HEADERS, 1, end),
        (kind::HEADERS, END_HEADERS, 3, end),
        (kind::HEADERS, END_HEADERS, 5, &post),
        (kind::HEADERS, END_HEADERS, 7, &indexed),
        (kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]),
        (kind::HEADERS, END_HEADERS, 9, &later),
    ];
    let seen = serve(&client(&frames));
    assert_eq!(seen.sent[1], format!("RST_STREAM 7 {REFUSED_STREAM:08x}"));
    assert_eq!(seen.events.last().unwrap(), "9: :method=POST :scheme=http :path=/a x=1 end=false");
}

#[test]
fn section_5_1_idle_streams() {
    for (kind, payload) in [
        (kind::DATA, &[1][..]),
        (kind::RST_STREAM, &[0; 4]),
        (kind::WINDOW_UPDATE, &[0, 0, 0, 1]),
        (kind::CONTINUATION, &[]),
    ] {
        assert_eq!(code(&[(kind, 0, 1, payload)]), Some(PROTOCOL_ERROR), "kind {kind}");
        let seen = as_client(&[(kind, 0, 5, payload)]);
        assert_eq!(seen.code(), Some(PROTOCOL_ERROR), "kind {kind} at a client");
    }
    assert_eq!(code(&[(kind::PRIORITY, 0, 1, &[0; 5])]), None);
    let headers = block(&[(":status", "200")]);
    let seen = as_client(&[(kind::HEADERS, END_HEADERS, 5, &headers)]);
    assert_eq!(seen.code(), Some(PROTOCOL_ERROR));
}

#[test]
fn section_5_1_half_closed_streams() {
    let (post, trailers) = (post(), block(&[("a", "b")]));
    let ended: Raw<'_> = (kind::HEADERS, END_BOTH, 1, &post);
    for late in [(kind::DATA, 0, 1, &[1][..]), (kind::HEADERS, END_BOTH, 1, &trailers)] {
        let seen = serve(&client(&[ended, late]));
        assert!(reset_with(&seen, 1, STREAM_CLOSED), "{seen:?}");
        assert_eq!(seen.fault, None);
    }
    let seen = serve(&client(&[
        ended,
        (kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        (kind::PRIORITY, 0, 1, &[0; 5]),
        (kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]),
    ]));
    assert_eq!((seen.events.last().unwrap().as_str(), seen.fault), ("1: reset 8", None));
}

#[test]
fn section_5_1_closed_streams() {
    let trailers = block(&[("a", "b")]);
    for late in [(kind::DATA, 0, 1, &[1][..]), (kind::HEADERS, END_BOTH, 1, &trailers)] {
        let seen = on_stream(&[(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]), late]);
        assert_eq!(seen.code(), Some(STREAM_CLOSED));
    }
    // What was on its way when this side closed the stream is ignored, and the connection's
    // window is given back.
    let seen = on_stream(&[
        (kind::HEADERS, END_HEADERS, 3, &block(&[(":method", "POST")])),
        (kind::DATA, 0, 3, &[0; 20_000]),
        (kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]),
        (kind::HEADERS, END_BOTH, 3, &trailers),
        (kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]),
    ]);
    assert_eq!((seen.fault, seen.events.len()), (None, 1));
    assert!(seen.sent.contains(&"WINDOW_UPDATE 0 00004e20".to_owned()), "{:?}", seen.sent);
}

#[test]
fn section_5_1_1_stream_numbers() {
    let post = post();
    // A client's are odd, and grow; one that was left out cannot be used any more.
    assert_eq!(code(&[(kind::HEADERS, END_HEADERS, 2, &post)]), Some(PROTOCOL_ERROR));
    let frames: [Raw<'_>; 2] =
        [(kind::HEADERS, END_HEADERS, 5, &post), (kind::HEADERS, END_HEADERS, 3, &post)];
    assert_eq!(code(&frames), Some(PROTOCOL_ERROR));
}

#[test]
fn section_5_1_2_concurrent_streams() {
    let post = post();
    let frames: Vec<Raw<'_>> =
        [1, 3, 5, 7].map(|stream| (kind::HEADERS, END_HEADERS, stream, &post[..])).to_vec();
    let seen = serve(&client(&frames));
    assert_eq!((seen.events.len(), seen.fault), (3, None));
    assert_eq!(seen.sent[1], format!("RST_STREAM 7 {REFUSED_STREAM:08x}"));
}

#[test]
fn section_6_frames_of_streams_and_of_connections() {
    for kind in [
        kind::DATA,
        kind::HEADERS,
        kind::PRIORITY,
        kind::RST_STREAM,
        kind::PUSH_PROMISE,
        kind::CONTINUATION,
    ] {
        assert_eq!(code(&[(kind, 4, 0, &[0; 4])]), Some(PROTOCOL_ERROR), "kind {kind}");
    }
    for (kind, payload) in
        [(kind::SETTINGS, &[][..]), (kind::PING, &[0; 8]), (kind::GOAWAY, &[0; 8])]
    {
        assert_eq!(code(&[(kind, 0, 1, payload)]), Some(PROTOCOL_ERROR), "kind {kind}");
    }
}

#[test]
fn sections_6_1_and_6_2_padding() {
    for payload in [&[][..], &[1], &[5, 0, 0, 0, 0]] {
        let seen = on_stream(&[(kind::DATA, flag::PADDED, 1, payload)]);
        assert_eq!(seen.code(), Some(PROTOCOL_ERROR), "{payload:?}");
        let frames: [Raw<'_>; 1] = [(kind::HEADERS, END_HEADERS | flag::PADDED, 1, payload)];
        assert_eq!(code(&frames), Some(PROTOCOL_ERROR), "{payload:?}");
    }
    // All of it padding.
    let seen = on_stream(&[(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[2, 0, 0])]);
    assert_eq!((seen.events.last().unwrap().as_str(), seen.fault), ("1: end", None));
}

#[test]
fn section_6_5_settings() {
    let setting = |name: u8, value: u32| {
        let mut payload = vec![0, name];
        payload.extend(value.to_be_bytes());
        code(&[(kind::SETTINGS, 0, 0, &payload)])
    };
    assert_eq!(setting(2, 2), Some(PROTOCOL_ERROR));
    assert_eq!(setting(4, 1 << 31), Some(FLOW_CONTROL_ERROR));
    assert_eq!(setting(5, 16_383), Some(PROTOCOL_ERROR));
    assert_eq!(setting(5, 1 << 24), Some(PROTOCOL_ERROR));
    for (name, value) in [(0x2a, u32::MAX), (2, 1), (4, u32::MAX >> 1), (5, (1 << 24) - 1)] {
        assert_eq!(setting(name, value), None, "setting {name}");
    }
    // A server never allows pushes.
    let seen = as_client(&[(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])]);
    assert_eq!(seen.code(), Some(PROTOCOL_ERROR));
    // Each is acknowledged, an acknowledgement is not.
    let seen = serve(&client(&[
        (kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1]),
        (kind::SETTINGS, flag::ACK, 0, &[]),
    ]));
    assert_eq!(seen.sent, ["SETTINGS ACK 0", "SETTINGS ACK 0"]);
}

#[test]
fn section_6_6_pushes_are_refused() {
    let seen = as_client(&[(kind::PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])]);
    assert_eq!(seen.code(), Some(PROTOCOL_ERROR));
    let seen = on_stream(&[(kind::PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])]);
    assert_eq!(seen.code(), Some(PROTOCOL_ERROR));
}

#[test]
fn section_6_7_pings_are_answered_with_their_payload() {
    let seen = serve(&client(&[
        (kind::PING, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (kind::PING, flag::ACK, 0, &[9; 8]),
    ]));
    assert_eq!(seen.sent, ["SETTINGS ACK 0", "PING ACK 0 0102030405060708"]);
}

#[test]
fn section_6_8_goaway() {
    let seen = serve(&client(&[(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'h', b'i'])]));
    assert_eq!((seen.events, seen.fault), (vec!["going away 2 hi".to_owned()], None));
    // Ours names the last stream that was processed.
    let link = Link::new(Role::Server, OFFER);
    let bytes = client(&[(kind::HEADERS, END_HEADERS, 5, &post())]);
    Receiver::new(Role::Server).receive(&bytes, 0, &link, &mut Seen::default()).unwrap();
    link.close(NO_ERROR, "");
    assert_eq!(sent(&link).last().unwrap(), "GOAWAY 0 0000000500000000");
}

#[test]
fn section_6_9_windows() {
    let nothing = [0; 4];
    assert_eq!(code(&[(kind::WINDOW_UPDATE, 0, 0, &nothing)]), Some(PROTOCOL_ERROR));
    let seen = on_stream(&[(kind::WINDOW_UPDATE, 0, 1, &nothing)]);
    assert!(seen.fault.is_none() && reset_with(&seen, 1, PROTOCOL_ERROR), "{seen:?}");
    let most = [0x7f, 255, 255, 255];
    assert_eq!(code(&[(kind::WINDOW_UPDATE, 0, 0, &most)]), Some(FLOW_CONTROL_ERROR));
    let seen = on_stream(&[(kind::WINDOW_UPDATE, 0, 1, &most)]);
    assert!(seen.fault.is_none() && reset_with(&seen, 1, FLOW_CONTROL_ERROR), "{seen:?}");
    // Settings change the windows of streams that are open, and may not overflow them either.
    let seen = on_stream(&[
        (kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        (kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 255, 255, 255]),
    ]);
    assert_eq!(seen.code(), Some(FLOW_CONTROL_ERROR));
    // More than the window offered.
    let big = vec![0; 65_536];
    let bytes = client(&[(kind::HEADERS, END_HEADERS, 1, &post()), (kind::DATA, 0, 1, &big)]);
    assert_eq!(run(Role::Server, &bytes, 9_000, |_| ()).code(), Some(FLOW_CONTROL_ERROR));
}

#[test]
fn section_6_9_nothing_is_sent_beyond_a_window() {
    let link = Link::new(Role::Server, OFFER);
    let mut receiver = Receiver::new(Role::Server);
    let mut seen = Seen::default();
    let mut bytes = frame::PREFACE.to_vec();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]);
    put(&mut bytes, kind::HEADERS, END_HEADERS, 1, &post());
    receiver.receive(&bytes, 0, &link, &mut seen).unwrap();
    sent(&link);
    link.send(1, vec![7; 20].into());
    assert_eq!(sent(&link), [format!("DATA 1 {}", "07".repeat(10))]);
    // The window shrinks below nothing, and opens again (section 6.9.2).
    let mut bytes = Vec::new();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4]);
    put(&mut bytes, kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 6]);
    receiver.receive(&bytes, 0, &link, &mut seen).unwrap();
    assert_eq!(sent(&link), ["SETTINGS ACK 0"]);
    let mut bytes = Vec::new();
    put(&mut bytes, kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 3]);
    receiver.receive(&bytes, 0, &link, &mut seen).unwrap();
    assert_eq!(sent(&link), ["DATA 1 070707"]);
}

#[test]
fn section_6_10_continuation_of_nothing() {
    let seen = on_stream(&[(kind::CONTINUATION, END_HEADERS, 1, &[0x82])]);
    assert_eq!(seen.code(), Some(PROTOCOL_ERROR));
}

#[test]
fn section_8_malformed_requests() {
    let malformed: [&[(&str, &str)]; 16] = [
        &[(":method", "POST"), (":scheme", "http")],
        &[(":method", "POST"), (":path", "/")],
        &[(":scheme", "http"), (":path", "/")],
        &[(":method", "POST"), (":scheme", "http"), (":path", "")],
        &[(":method", "A"), (":method", "A"), (":scheme", "http"), (":path", "/")],
        &[(":method", "A"), (":scheme", "http"), ("a", "b"), (":path", "/")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), (":status", "200")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), (":other", "x")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("Upper", "x")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("a b", "x")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("", "x")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("a", "x\r\ny: z")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("a", " x")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("connection", "close")],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("te", "gzip")],
        &[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")],
    ];
    for fields in malformed {
        let seen = serve(&client(&[(kind::HEADERS, END_HEADERS, 1, &block(fields))]));
        assert_eq!(seen.fault, None, "{fields:?}");
        assert_eq!(seen.sent[1], format!("RST_STREAM 1 {PROTOCOL_ERROR:08x}"), "{fields:?}");
        assert!(seen.events.is_empty(), "{fields:?}");
    }
    for fields in [
        &[(":method", "CONNECT"), (":authority", "a:1")][..],
        &[(":method", "A"), (":scheme", "http"), (":path", "/"), ("te", "trailers")],
    ] {
        let seen = serve(&client(&[(kind::HEADERS, END_HEADERS, 1, &block(fields))]));
        assert_eq!((seen.events.len(), seen.fault), (1, None), "{fields:?}");
    }
}

#[test]
fn section_8_1_1_the_content_length_is_the_length_of_the_content() {
    let with = |values: &[&str]| {
        let lengths = values.iter().map(|value| ("content-length", *value));
        block(&POST.into_iter().chain(lengths).collect::<Vec<_>>())
    };
    let (three, trailers) = (with(&["3"]), block(&[("a", "b")]));
    let opening = (kind::HEADERS, END_HEADERS, 1, &three[..]);
    let wrong: [&[Raw<'_>]; 6] = [
        &[(kind::DATA, 0, 1, &[1, 2, 3, 4])],
        &[(kind::DATA, 0, 1, &[1, 2, 3]), (kind::DATA, flag::END_STREAM, 1, &[4])],
        &[(kind::DATA, flag::END_STREAM, 1, &[1, 2])],
        &[(kind::DATA, flag::END_STREAM | flag::PADDED, 1, &[1, 1, 2, 0])],
        &[(kind::DATA, flag::END_STREAM, 1, &[])],
        &[(kind::DATA, 0, 1, &[1]), (kind::HEADERS, END_BOTH, 1, &trailers)],
    ];
    for frames in wrong {
        let seen = serve(&client(&[&[opening][..], frames].concat()));
        assert!(seen.fault.is_none() && reset_with(&seen, 1, PROTOCOL_ERROR), "{seen:?}");
    }
    let right: [&[Raw<'_>]; 3] = [
        &[(kind::DATA, flag::END_STREAM, 1, &[1, 2, 3])],
        &[
            (kind::DATA, flag::PADDED, 1, &[2, 1, 2, 3, 0, 0]),
            (kind::HEADERS, END_BOTH, 1, &trailers),
        ],
        &[(kind::DATA, 0, 1, &[1, 2]), (kind::DATA, flag::END_STREAM, 1, &[3])],
    ];
    for frames in right {
        let seen = serve(&client(&[&[opening][..], frames].concat()));
        assert!(seen.fault.is_none() && seen.events.last().unwrap().contains("end"), "{seen:?}");
    }
    for values in [&["x"][..], &["+3"], &["3", "4"], &[""]] {
        let seen = serve(&client(&[(kind::HEADERS, END_HEADERS, 1, &with(values))]));
        assert_eq!(seen.sent[1], format!("RST_STREAM 1 {PROTOCOL_ERROR:08x}"), "{values:?}");
    }
    let seen = serve(&client(&[(kind::HEADERS, END_BOTH, 1, &three)]));
    assert_eq!(seen.sent[1], format!("RST_STREAM 1 {PROTOCOL_ERROR:08x}"));
}

#[test]
fn section_8_1_trailers_end_the_stream_and_have_no_pseudo_headers() {
    let (good, bad) = (block(&[("a", "b")]), block(&[(":path", "/")]));
    for trailers in [(kind::HEADERS, END_HEADERS, 1, &good[..]), (kind::HEADERS, END_BOTH, 1, &bad)]
    {
        let seen = on_stream(&[trailers]);
        assert!(seen.fault.is_none() && reset_with(&seen, 1, PROTOCOL_ERROR), "{seen:?}");
    }
    let seen = on_stream(&[(kind::HEADERS, END_BOTH, 1, &good)]);
    assert_eq!(seen.events.last().unwrap(), "1: a=b end=true");
}

#[test]
fn section_8_1_responses() {
    let (ok, early, none) =
        (block(&[(":status", "200")]), block(&[(":status", "103")]), block(&[("a", "b")]));
    // Interim answers are not answers, nor are headers without a status.
    let seen = as_client(&[
        (kind::HEADERS, END_HEADERS, 1, &early),
        (kind::HEADERS, END_HEADERS, 1, &ok),
        (kind::DATA, 0, 1, &[1]),
        (kind::HEADERS, END_BOTH, 1, &none),
        (kind::HEADERS, END_HEADERS, 3, &none),
    ]);
    assert_eq!(
        seen.events,
        ["1: :status=200 end=false", "1: data 01", "1: a=b end=true", "3: reset 1"]
    );
    assert_eq!(seen.fault, None);
    // Data before any answer.
    let seen = as_client(&[(kind::DATA, 0, 1, &[1])]);
    assert!(seen.fault.is_none() && reset_with(&seen, 1, PROTOCOL_ERROR), "{seen:?}");
}

#[test]
fn rfc_7541_section_4_2_a_smaller_table_is_announced() {
    let link = Link::new(Role::Server, OFFER);
    let mut bytes = frame::PREFACE.to_vec();
    put(&mut bytes, kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
    for stream in [1, 3] {
        put(&mut bytes, kind::HEADERS, END_HEADERS, stream, &post());
    }
    Receiver::new(Role::Server).receive(&bytes, 0, &link, &mut Seen::default()).unwrap();
    sent(&link);
    for stream in [1, 3] {
        link.headers(stream, &block(&[(":status", "200")]));
    }
    assert_eq!(sent(&link), ["HEADERS 1 2088", "HEADERS 3 88"]);
}
