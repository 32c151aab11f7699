//! Any bytes as a resolver's answers, by UDP and by TCP.

use std::net::SocketAddr;
use std::time::Duration;

use domain_names::message::{question, response};
use domain_names::{Follower, Seen, Segment};

/// A question for the addresses of `www.example.org`, number 7.
const QUESTION: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03org\0\0\x01\0\x01";

/// Whatever is answered, addresses are those of the name that was asked for.
pub(crate) fn check(bytes: &[u8]) {
    let _ = (question(bytes), response(bytes));
    let pod: SocketAddr = ([10, 1, 1, 2], 40000).into();
    let resolver: SocketAddr = ([10, 96, 0, 10], 53).into();
    let seen = |from_pod, segment, payload| Seen { pod, resolver, from_pod, segment, payload };
    let mut follower = Follower::default();
    let wants = |name: &str| name == "www.example.org";
    let asked = [&(QUESTION.len() as u16).to_be_bytes()[..], QUESTION].concat();
    let mut take = |seen: &Seen<'_>| {
        let answers = follower.take(seen, wants, Duration::from_secs(1));
        assert!(answers.len() <= 1, "one question");
        assert!(answers.iter().all(|it| &*it.name == "www.example.org"));
        answers.len()
    };
    take(&seen(true, None, QUESTION));
    take(&seen(false, None, bytes));
    let syn = |sequence| Some(Segment { sequence, syn: true, rst: false });
    let next = |sequence| Some(Segment { sequence, syn: false, rst: false });
    take(&seen(true, syn(0), b""));
    take(&seen(false, syn(0), b""));
    take(&seen(true, next(1), &asked));
    // The first byte cuts the stream.
    let cut = usize::from(bytes.first().copied().unwrap_or(0)).min(bytes.len());
    let (front, rest) = bytes.split_at(cut);
    let counted =
        take(&seen(false, next(1 + cut as u32), rest)) + take(&seen(false, next(1), front));
    assert!(counted <= 1);
}
