//! Sessions found, charged, ended, taken up again.

mod ends;
mod limits;
mod saved;
mod translated;

use std::sync::atomic::Ordering;

use super::*;
use crate::Adjacency;
use crate::session::Usage;
use crate::wire::protocol;
use crate::wire::tcp_flags::{ACK, FIN, PSH, RST, SYN};

fn flow(n: u32) -> Flow {
    Flow {
        source: acl::Address::from_v4_bits(0x0a01_0002),
        destination: acl::Address::from_v4_bits(0x0a02_0000 + (n >> 16)),
        source_port: n as u16,
        destination_port: 80,
        protocol: protocol::TCP,
    }
}

fn opening(port: u16) -> Opening {
    Opening {
        owner: Owner::port(PortId(port)),
        adjacency: Adjacency(9),
        generation: 1,
        tcp_flags: SYN,
    }
}

fn id(opened: Opened) -> SessionId {
    match opened {
        Opened::New(id) => id,
        Opened::Known(found) => found.id,
    }
}

fn open_one(sessions: &Sessions, flow: &Flow, port: u16) -> Result<SessionId, Refusal> {
    sessions.open(&Tuples::plain(*flow), &opening(port), 0).map(id)
}

fn find(sessions: &Sessions, flow: &Flow, now_s: u32) -> Option<Found> {
    sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s)
}

fn service(n: u32) -> Tuples {
    let initiator = flow(n);
    let responder = Flow {
        destination: acl::Address::from_v4_bits(0x0a01_0009),
        destination_port: 8080,
        ..initiator
    };
    Tuples { initiator, responder, return_mac: [1, 2, 3, 4, 5, 6] }
}

#[test]
fn both_directions_find_the_session() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let forward = find(&sessions, &flow(1), 0).unwrap();
    let reverse = find(&sessions, &flow(1).reversed(), 0).unwrap();
    assert!(forward.forward && !reverse.forward);
    assert_eq!(forward.id, reverse.id);
    assert_eq!((forward.adjacency(), reverse.adjacency()), (Adjacency(9), Adjacency::NONE));
    assert!(find(&sessions, &flow(2), 0).is_none());
}

#[test]
fn output_ports_belong_to_one_generation() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let back = flow(1).reversed();
    sessions.stamp(&find(&sessions, &back, 0).unwrap(), 1, Adjacency(4));
    assert_eq!(find(&sessions, &flow(1), 0).unwrap().adjacency(), Adjacency(9));
    assert_eq!(find(&sessions, &back, 0).unwrap().adjacency(), Adjacency(4));
    sessions.stamp(&find(&sessions, &back, 0).unwrap(), 2, Adjacency(5));
    let forward = find(&sessions, &flow(1), 0).unwrap();
    assert!(forward.is_of(2) && forward.adjacency() == Adjacency::NONE);
}

#[test]
fn a_connection_lives_as_long_as_its_state_says() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let see = |flags, flow: &Flow| {
        sessions.touch(&find(&sessions, flow, 0).unwrap(), flags, 0);
    };
    assert!(find(&sessions, &flow(1), 30).is_some(), "no handshake yet");
    assert!(find(&sessions, &flow(1), 31).is_none(), "half open");
    see(SYN | ACK, &flow(1).reversed());
    see(ACK, &flow(1));
    assert!(find(&sessions, &flow(1), 24 * 3600).is_some(), "established");
    see(FIN | ACK, &flow(1));
    assert!(!find(&sessions, &flow(1), 0).unwrap().state().is_over());
    assert!(find(&sessions, &flow(1), 7_440).is_some(), "one end has closed, or nobody has");
    assert!(find(&sessions, &flow(1), 7_441).is_none());
    see(RST, &flow(1).reversed());
    assert!(find(&sessions, &flow(1), 0).unwrap().state().is_over());
    assert!(find(&sessions, &flow(1), 10).is_some(), "its last segments are known");
    assert!(find(&sessions, &flow(1), 11).is_none(), "reset");
}

/// Packets after the handshake, of the initiator (`>`) and of the responder: seconds without a packet after which
/// the session ends. A reset is what it says only if no end goes on.
#[test]
fn a_connection_that_goes_on_after_a_reset_is_established() {
    for (packets, idle) in [
        ("<R", 10),
        ("<R >A", 86_400),
        ("<R <A", 86_400),
        (">R <A", 86_400),
        (">R <A >R", 10),
        // Refused by the responder, then a challenge (RFC 5961, section 4).
        (">R >S", 10),
        (">R >S <A", 86_400),
        (">R >S <SA", 30),
        (">R >S <SA >A", 86_400),
        ("<F >R", 10),
        ("<F >R <A", 7_440),
        // What an end sends behind its FIN takes it back; what the other one sends does not.
        ("<F", 7_440),
        ("<F <P", 86_400),
        (">F >P", 86_400),
        ("<F <A", 7_440),
        ("<F >P", 7_440),
        ("<F >F", 10),
        ("<F >F <P", 7_440),
        ("<F >F <P >P", 86_400),
        ("<F >F <R >A", 10),
    ] {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        open_one(&sessions, &flow(1), 0).unwrap();
        for packet in ["<SA", ">A"].into_iter().chain(packets.split(' ')) {
            let (end, letters) = packet.split_at(1);
            let flags = letters.bytes().map(|letter| match letter {
                b'S' => SYN,
                b'A' => ACK,
                b'F' => FIN | ACK,
                b'P' => PSH | ACK,
                _ => RST,
            });
            let flow = if end == ">" { flow(1) } else { flow(1).reversed() };
            let flags = flags.fold(0, |all, flag| all | flag);
            sessions.touch(&find(&sessions, &flow, 0).unwrap(), flags, 0);
        }
        assert!(find(&sessions, &flow(1), idle).is_some(), "{packets}: {idle}");
        assert!(find(&sessions, &flow(1), idle + 1).is_none(), "{packets}: {idle}");
    }
}

/// Seconds without a packet after which each session ends: packets of the initiator (`>`) and of the responder.
#[test]
fn datagrams_have_a_session_for_as_long_as_an_exchange_needs() {
    const GRE: u8 = 47;
    let (udp, icmp, icmpv6) = (protocol::UDP, protocol::ICMP, protocol::ICMPV6);
    for (protocol, port, packets, idle) in [
        (udp, 80, ">", 30),
        (udp, 80, ">>", 30),
        (udp, 80, "><", 30),
        (udp, 80, "><<<", 30),
        (udp, 80, "><>", 30),
        (udp, 80, "><><", 120),
        (udp, 53, ">", 30),
        (udp, 53, "><", 5),
        (udp, 53, ">><", 5),
        (udp, 53, "><>", 30),
        (udp, 53, "><><", 5),
        (icmp, 0, ">", 10),
        (icmp, 0, "><", 10),
        (icmpv6, 0, "><><", 10),
        (GRE, 0, ">", 30),
        (GRE, 0, "><", 600),
    ] {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        let flow = Flow { protocol, destination_port: port, ..flow(1) };
        open_one(&sessions, &flow, 0).unwrap();
        for packet in packets[1..].chars() {
            let flow = if packet == '>' { flow } else { flow.reversed() };
            sessions.touch(&find(&sessions, &flow, 0).unwrap(), 0, 0);
        }
        let lives = |now_s| find(&sessions, &flow, now_s).is_some();
        assert_eq!((lives(idle), lives(idle + 1)), (true, false), "{protocol} {port} {packets}");
    }
}
