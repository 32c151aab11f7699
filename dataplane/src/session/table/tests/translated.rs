//! Sessions of services.

use super::*;

/// A client's connection to a service, as the client and the pod behind it see it.
#[test]
fn a_translated_session_is_found_where_its_packets_enter_and_where_they_left() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    let Tuples { initiator, responder, .. } = service(1);
    sessions.open(&service(1), &opening(0), 0).unwrap();
    let find = |flow: &Flow, origin| {
        let found = sessions.find(sessions.hash(flow), flow, origin, 0)?;
        assert_eq!(sessions.tuples(&found), Some(service(1)));
        Some(found.forward)
    };
    let cases = [
        (initiator, Some(true), None),
        (initiator.reversed(), None, Some(false)),
        (responder, None, Some(true)),
        (responder.reversed(), Some(false), None),
    ];
    for (flow, entering, quoted) in cases {
        assert_eq!(find(&flow, TupleOrigin::Entering), entering, "{flow:?}");
        assert_eq!(find(&flow, TupleOrigin::Quoted), quoted, "{flow:?}");
    }
    assert_eq!(sessions.iter().map(|(_, tuples)| tuples).collect::<Vec<_>>(), [service(1)]);
    sessions.end_of(PortId(0));
    assert_eq!(find(&initiator, TupleOrigin::Entering), None);
    assert_eq!(sessions.used(), 0);
    // Nothing of it is left in the index either: its room can be used again.
    for n in 0..16 {
        sessions.open(&service(n), &opening(0), 0).unwrap();
    }
}

#[test]
fn a_responder_can_tell_its_connections_apart() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    sessions.open(&service(1), &opening(0), 0).unwrap();
    let direct = service(1).responder;
    assert_eq!(open_one(&sessions, &direct, 0), Err(Refusal::Taken));
    let reply = sessions.open(&Tuples::plain(direct.reversed()), &opening(0), 0);
    assert!(matches!(reply, Ok(Opened::Known(found)) if !found.forward));
    // The same connection is found, not made twice.
    let again = sessions.open(&service(1), &opening(0), 0);
    assert!(matches!(again, Ok(Opened::Known(_))));
    // With another port of the responder it is another connection.
    let elsewhere = Flow { source_port: 999, ..direct };
    let tuples = Tuples { responder: elsewhere, ..Tuples::plain(direct) };
    assert!(matches!(sessions.open(&tuples, &opening(0), 0), Ok(Opened::New(_))));
    let found = find(&sessions, &direct, 0).unwrap();
    assert_eq!(sessions.tuples(&found), Some(tuples));
    // An idle session gives way to a new one.
    let later = sessions.open(&Tuples::plain(direct), &opening(0), 100_000);
    assert!(matches!(later, Ok(Opened::New(_))));
}

/// A pod uses a port with the pod behind a service, and then with the service.
#[test]
fn a_port_serves_again_once_its_connection_is_over() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    let direct = service(1).responder;
    open_one(&sessions, &direct, 0).unwrap();
    for (flags, forward) in [(FIN | ACK, true), (FIN | ACK, false)] {
        assert!(matches!(sessions.open(&service(1), &opening(0), 0), Err(Refusal::Taken)));
        let flow = if forward { direct } else { direct.reversed() };
        sessions.touch(&find(&sessions, &flow, 0).unwrap(), flags, 0);
    }
    let late = Opening { tcp_flags: ACK, ..opening(0) };
    assert!(matches!(sessions.open(&service(1), &late, 0), Err(Refusal::Taken)), "no SYN");
    assert!(matches!(sessions.open(&service(1), &opening(0), 0), Ok(Opened::New(_))));
    assert_eq!(sessions.used(), 1);
}
