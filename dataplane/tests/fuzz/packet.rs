//! Any bytes as a frame: through every parser and everything that rewrites what they let pass.

use acl::Address;
use dataplane::Outcome;
use dataplane::wire::icmp_error::{self, IcmpError, LONGEST};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{
    self, Flow, Fragment, Headers, Kind, Role, checksum, partial_checksum, protocol, translate,
};

/// Parses a frame, and holds what is written to what was parsed.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(headers) = wire::parse(bytes) else { return };
    if !matches!(headers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return;
    }
    if let Some(at) = OVERLAY.inside(bytes, &headers) {
        // What is inside is a frame of its own, and no tunnel again.
        let inside = &bytes[at..];
        if wire::parse(inside).is_ok_and(|inner| OVERLAY.inside(inside, &inner).is_none()) {
            check(inside);
        }
    }
    translates(bytes, &headers);
    answers(bytes, &headers);
}

const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: true };

fn address(headers: &Headers, n: u8) -> Address {
    match headers.kind {
        Kind::Ipv4 => Address::from_v4_bits(0x0a09_0000 + u32::from(n)),
        _ => Address::from_bits((0xfd09 << 112) + u128::from(n)),
    }
}

/// A translated packet is one between its new ends.
fn translates(bytes: &[u8], headers: &Headers) {
    let mut frame = bytes.to_vec();
    if headers.ttl > 1 {
        checksum::decrement_ttl(&mut frame, headers);
    }
    partial_checksum::complete(&mut frame, headers);
    let flow = headers.flow;
    let (source, destination) = (address(headers, 1), address(headers, 2));
    let mut to = Flow { source, destination, ..flow };
    if headers.role == Role::Quotes {
        let Some(quoted) = wire::quoted(bytes, headers) else { return };
        let quote = Flow { source: destination, destination: source, ..quoted };
        translate::rewrite_error(&mut frame, headers, &to, &quote);
        let after = wire::parse(&frame).expect("a translated error is a packet");
        assert_eq!((after.flow.source, after.flow.destination), (source, destination));
        assert_eq!(wire::quoted(&frame, &after), Some(quote));
        return;
    }
    let has_ports = matches!(flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
        && !matches!(headers.fragment, Fragment::Later(_));
    if has_ports {
        to = Flow { source_port: 1025, destination_port: 1026, ..to };
    }
    translate::rewrite(&mut frame, headers, &to);
    let after = wire::parse(&frame).expect("a translated packet is a packet");
    assert_eq!((after.flow, after.fragment, after.role), (to, headers.fragment, headers.role));
}

/// An answer is a packet to whoever sent the one that is answered.
fn answers(bytes: &[u8], headers: &Headers) {
    let from = address(headers, 3);
    for error in [IcmpError::TimeExceeded, IcmpError::TooBig(1280), IcmpError::PortUnreachable] {
        let mut text = [0; LONGEST];
        let Some(length) = icmp_error::write(error, bytes, headers, from, &mut text) else {
            continue;
        };
        match wire::parse(&text[..length]) {
            Ok(answer) => assert_eq!(answer.flow.destination, headers.flow.source),
            // It takes its MAC address from what was sent to everybody, goes to an address that
            // nobody has, or quotes what no connection is made of.
            Err(outcome) => {
                use Outcome::{MalformedEthernet, Martian, Multicast, NoSession};
                let odd = [MalformedEthernet, Martian, Multicast, NoSession];
                assert!(odd.contains(&outcome), "{outcome}: {:02x?}", &text[..length]);
            }
        }
    }
}
