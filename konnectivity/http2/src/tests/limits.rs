//! Peers that cost much, and the limits that stop them.

use super::*;
use crate::code;

const CALM: Option<u32> = Some(code::ENHANCE_YOUR_CALM);

#[test]
fn resets_a_second() {
    // Rapid reset: each request is cancelled at once.
    let mut bytes = client(&[]);
    for stream in (1..2_000).step_by(2) {
        put(&mut bytes, kind::HEADERS, END_HEADERS, stream, &post());
        put(&mut bytes, kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    }
    let seen = run(Role::Server, &bytes, 4_096, |_| ());
    assert_eq!(seen.code(), CALM);
    assert_eq!(seen.events.iter().filter(|it| it.contains("reset 8")).count(), 200);
}

#[test]
fn refused_and_malformed_requests_a_second() {
    // Three streams are allowed; a client that asks for many more is disconnected.
    let mut bytes = client(&[]);
    for stream in (1..2_000).step_by(2) {
        put(&mut bytes, kind::HEADERS, END_HEADERS, stream, &post());
    }
    let seen = run(Role::Server, &bytes, 4_096, |_| ());
    assert_eq!((seen.code(), seen.events.len()), (CALM, 3));
    let mut bytes = client(&[]);
    for stream in (1..2_000).step_by(2) {
        put(&mut bytes, kind::HEADERS, END_HEADERS, stream, &block(&[(":method", "POST")]));
    }
    let seen = run(Role::Server, &bytes, 4_096, |_| ());
    assert_eq!((seen.code(), seen.events.len()), (CALM, 0));
}

#[test]
fn provoked_resets_a_second() {
    // The peer resets nothing itself: a fault in each request makes this side reset its stream.
    let too_large = 0x7fff_ffff_u32.to_be_bytes();
    let mut with_length = POST.to_vec();
    with_length.push(("content-length", "1"));
    let (request, with_length) = (post(), block(&with_length));
    let cases: [(&[u8], u8, Raw<'_>); 5] = [
        (&request, END_HEADERS, (kind::WINDOW_UPDATE, 0, 0, &[0; 4])),
        (&request, END_HEADERS, (kind::WINDOW_UPDATE, 0, 0, &too_large)),
        (&request, END_BOTH, (kind::DATA, 0, 0, b"late")),
        (&request, END_BOTH, (kind::HEADERS, END_BOTH, 0, &request)),
        (&with_length, END_HEADERS, (kind::DATA, 0, 0, b"more than one")),
    ];
    for (request, flags, (kind, fault_flags, _, payload)) in cases {
        let mut bytes = client(&[]);
        for stream in (1..2_000).step_by(2) {
            put(&mut bytes, kind::HEADERS, flags, stream, request);
            put(&mut bytes, kind, fault_flags, stream, payload);
        }
        let seen = run(Role::Server, &bytes, 4_096, |_| ());
        assert_eq!(seen.code(), CALM, "kind {kind} {payload:?}");
        assert_eq!(seen.events.iter().filter(|it| it.contains("reset")).count(), 201);
    }
}

#[test]
fn settings_and_pings_a_second() {
    let mut bytes = client(&[]);
    for _ in 0..100 {
        put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    }
    let seen = run(Role::Server, &bytes, 4_096, |_| ());
    assert_eq!(seen.code(), CALM);
    assert_eq!(seen.sent.len(), 50);
    let mut bytes = client(&[]);
    for _ in 0..30_000 {
        put(&mut bytes, kind::PING, 0, 0, &[0; 8]);
    }
    assert_eq!(run(Role::Server, &bytes, 4_096, |_| ()).code(), CALM);
}

#[test]
fn frames_that_carry_nothing() {
    for (kind, payload) in
        [(kind::DATA, &[][..]), (kind::PRIORITY, &[0; 5]), (0x30, &[]), (0x30, &[0; 100])]
    {
        let mut bytes = client(&[(kind::HEADERS, END_HEADERS, 1, &post())]);
        for _ in 0..2_001 {
            put(&mut bytes, kind, 0, 1, payload);
        }
        assert_eq!(run(Role::Server, &bytes, 4_096, |_| ()).code(), CALM, "kind {kind}");
    }
}

#[test]
fn header_blocks_without_end() {
    let mut bytes = client(&[(kind::HEADERS, 0, 1, &[])]);
    for _ in 0..100 {
        put(&mut bytes, kind::CONTINUATION, 0, 1, &[]);
    }
    assert_eq!(run(Role::Server, &bytes, 100, |_| ()).code(), CALM);
    let mut bytes = client(&[(kind::HEADERS, 0, 1, &[])]);
    for _ in 0..5 {
        put(&mut bytes, kind::CONTINUATION, 0, 1, &[0; 16_384]);
    }
    assert_eq!(run(Role::Server, &bytes, 10_000, |_| ()).code(), CALM);
}

#[test]
fn header_lists_that_grow_when_they_are_decoded() {
    // A long value, indexed once and referred to very often.
    let mut block = post();
    block.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend([b'x'; 4_000]);
    block.extend([0xbe; 17]);
    let bytes = client(&[(kind::HEADERS, END_HEADERS, 1, &block)]);
    assert_eq!(run(Role::Server, &bytes, 10_000, |_| ()).code(), CALM);
}

#[test]
fn answers_that_are_requested_and_not_read() {
    let link = Link::new(Role::Server, OFFER);
    let mut receiver = Receiver::new(Role::Server);
    let mut seen = Seen::default();
    receiver.receive(&client(&[]), 0, &link, &mut seen).unwrap();
    let mut ping = Vec::new();
    put(&mut ping, kind::PING, 0, 0, &[0; 8]);
    // Slow enough for the rate, and never read.
    let fault = (0..100_000).find_map(|at| receiver.receive(&ping, at, &link, &mut seen).err());
    assert_eq!(fault.map(|it| it.code), CALM);
}

#[test]
fn memory_is_given_back() {
    let offer = Settings { streams: 10_000, ..OFFER };
    let link = Link::new(Role::Server, offer);
    let mut receiver = Receiver::new(Role::Server);
    let mut seen = Seen::default();
    let mut bytes = client(&[]);
    for stream in (1..10_000).step_by(2) {
        put(&mut bytes, kind::HEADERS, END_BOTH, stream, &post());
    }
    receiver.receive(&bytes, 0, &link, &mut seen).unwrap();
    for stream in (1..10_000).step_by(2) {
        link.send(stream, vec![0; 10].into());
        link.finish(stream, Some(block(&[("grpc-status", "0")])));
    }
    while !sent(&link).is_empty() {}
    let (streams, ready, control) = link.room();
    assert!(streams <= 64 && ready <= 64 && control <= 128, "{streams} {ready} {control}");
}
