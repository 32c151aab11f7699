//! Connections that get their entries at the handshake.
//!
//! ```text
//!   responder ── SYN, ACK ─▶ the switch ── entries ─▶ the kernel's map
//!                                       └─ SYN, ACK ─▶ initiator
//! ```
//!
//! Most connections are a request and its answer. They end before a scan sees them, and each of their
//! packets would take the punt link. So the worker that sends a responder's SYN and ACK into a pod
//! enters the connection first: what follows finds its entries, and the packets that take the punt
//! link are those that open and end the connection.
//!
//! The kernel forwards the FINs of these connections too (`takes_fin`), and the switch reads of that a
//! moment later. A port may be used again before: so the worker that takes a SYN from a pod looks whether
//! the pod has ended the connection before it.
//!
//! The worker never waits. Where the connections are locked, the thread that scans them enters what came
//! meanwhile, in its next step.

use std::sync::{Arc, OnceLock, Weak};

use dataplane::dns::DNS_PORT;
use dataplane::port::Tag;
use dataplane::session::TupleOrigin;
use dataplane::wire::{Flow, parse, protocol, tcp_flags};
use dataplane::{Frame, Memory};

use crate::engine::Engine;
use crate::layout::FlowKey;

/// Connections that wait while others are locked; those beyond are entered by the next scan.
const MOST_LATE: usize = 4096;

/// The receiver of connections from workers, once flow offload runs.
#[derive(Default)]
pub(crate) struct Handshakes(OnceLock<Weak<Engine>>);

impl Handshakes {
    /// Enters connections from now on.
    pub(crate) fn serve(&self, engine: &Arc<Engine>) {
        // Flow offload starts once over a loaded program.
        let _ = self.0.set(Arc::downgrade(engine));
    }

    /// Flow offload, while it runs.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.0.get().and_then(Weak::upgrade)
    }

    /// Ends the connections that these frames of pods, which were just taken, replace.
    #[inline]
    pub(crate) fn see_taken(&self, memory: &Memory, frames: &[Frame]) {
        for frame in frames.iter().filter(|frame| is_opening(memory.bytes(frame))) {
            self.replace(memory, frame);
        }
    }

    #[inline(never)]
    fn replace(&self, memory: &Memory, frame: &Frame) {
        let Some(engine) = self.engine() else { return };
        let (Some(tag), Ok(headers)) = (Tag::of(memory, frame), parse(memory.bytes(frame))) else {
            return;
        };
        let Some(ifindex) = engine.interfaces.lock().get(&tag.port()).copied() else { return };
        let (flow, key) = (&headers.flow, FlowKey::new(ifindex, &headers.flow));
        let mut connections = engine.connections.try_lock();
        if connections.as_ref().is_some_and(|it| !it.has(&key)) {
            return;
        }
        let context = &engine.context;
        if context.kernel.flow(&key).is_none_or(|entry| entry.had_fin == 0) {
            return;
        }
        if let Some(connections) = &mut connections {
            // The graph knows then whether this opens another connection.
            return connections.end_if_over(context, &key);
        }
        // The entry's last counts are lost, and the responder's FIN is not looked for. Only the pod that
        // opened the connection can end it in this way.
        drop(context.kernel.remove_flow(&key));
        let (sessions, now_s) = (context.switch.sessions(), context.switch.now().seconds());
        let found = sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s);
        if let Some(found) = found.filter(|it| it.forward) {
            sessions.end(&found);
        }
    }

    /// Enters the connections that these frames, which are sent next, accept, and takes note of resolvers' answers.
    #[inline]
    pub(crate) fn see(&self, memory: &Memory, frames: &[Frame]) {
        let leaves_template = |frame: &[u8]| is_accepting(inside(frame)) || is_answer(frame);
        if frames.iter().any(|frame| leaves_template(memory.bytes(frame))) {
            self.enter(memory, frames);
        }
    }

    #[inline(never)]
    fn enter(&self, memory: &Memory, frames: &[Frame]) {
        let Some(engine) = self.engine() else { return };
        let frames = frames.iter().map(|frame| inside(memory.bytes(frame)));
        let accepting = frames.filter(|it| is_accepting(it) || is_answer(it));
        let initiators: Vec<Flow> =
            accepting.filter_map(|frame| Some(parse(frame).ok()?.flow.reversed())).collect();
        let published = engine.published.try_lock().map(|published| published.clone());
        let interfaces = engine.interfaces.lock().clone();
        match (published, engine.connections.try_lock()) {
            (Some(published), Some(mut connections)) => {
                connections.accept(&engine.context, &published, &interfaces, &initiators);
            }
            _ => {
                let mut late = engine.late.lock();
                let room = MOST_LATE.saturating_sub(late.len());
                late.extend(initiators.into_iter().take(room));
            }
        }
    }
}

/// The frame that another one carries in a tunnel, as far as that can be seen, or itself. What it is not is no
/// connection that is being opened.
#[inline]
fn inside(frame: &[u8]) -> &[u8] {
    /// Bytes of the header of UDP, and of that of VXLAN.
    const HEADER: usize = 8;
    let Some(l4) = transport(frame, protocol::UDP) else { return frame };
    let is_vxlan = at(frame, l4 + HEADER) & 0x08 != 0;
    frame.get(l4 + 2 * HEADER..).filter(|_| is_vxlan).unwrap_or(frame)
}

/// Whether a frame is a responder's first one of a TCP connection, as far as entries are about it:
/// neither options of IPv4 nor extension headers.
#[inline]
fn is_accepting(frame: &[u8]) -> bool {
    handshake_flags(frame) == Some(tcp_flags::SYN | tcp_flags::ACK)
}

/// Whether a frame is from the port of a resolver.
#[inline]
fn is_answer(frame: &[u8]) -> bool {
    transport(frame, protocol::UDP)
        .is_some_and(|l4| u16::from_be_bytes([at(frame, l4), at(frame, l4 + 1)]) == DNS_PORT)
}

/// Whether a frame is an initiator's first one of a TCP connection.
#[inline]
fn is_opening(frame: &[u8]) -> bool {
    handshake_flags(frame) == Some(tcp_flags::SYN)
}

/// SYN, FIN, RST and ACK of a TCP packet.
#[inline]
fn handshake_flags(frame: &[u8]) -> Option<u8> {
    const FLAGS: u8 = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST | tcp_flags::ACK;
    transport(frame, protocol::TCP).map(|l4| at(frame, l4 + 13) & FLAGS)
}

/// Place of the transport header of a frame with this protocol, without options of IPv4 or extension headers.
#[inline]
fn transport(frame: &[u8], protocol: u8) -> Option<usize> {
    match (at(frame, 12), at(frame, 13)) {
        (0x08, 0x00) if at(frame, 14) == 0x45 && at(frame, 23) == protocol => Some(34),
        (0x86, 0xdd) if at(frame, 20) == protocol => Some(54),
        _ => None,
    }
}

/// A byte of a frame; 0 behind its end.
#[inline]
fn at(frame: &[u8], place: usize) -> u8 {
    frame.get(place).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use testkit::packet;

    use super::*;

    #[test]
    fn a_responders_first_packet_is_recognized() {
        for (from, to) in [("10.1.0.2:80", "10.1.0.1:4000"), ("[fd00::2]:80", "[fd00::1]:4000")] {
            let flags = |flags: u8| {
                let frame = packet::tcp(from, to).ack().build();
                let l4 = usize::from(parse(&frame).unwrap().l4);
                packet::patch(frame, l4 + 13, &[flags])
            };
            assert!(is_accepting(&flags(tcp_flags::SYN | tcp_flags::ACK)));
            // With marks of congestion (RFC 3168).
            assert!(is_accepting(&flags(tcp_flags::SYN | tcp_flags::ACK | 0x40)));
            assert!(is_opening(&flags(tcp_flags::SYN)) && is_opening(&flags(0xc2)));
            for other in [tcp_flags::SYN | tcp_flags::ACK, tcp_flags::ACK, 0x03, 0x06, 0x11] {
                assert!(!is_opening(&flags(other)), "{other:#x}");
            }
            for other in [tcp_flags::SYN, tcp_flags::ACK, 0x11, 0x14, 0x13, 0x16, 0x18] {
                assert!(!is_accepting(&flags(other)), "{other:#x}");
            }
            assert!(!is_accepting(&packet::cut(flags(0x12), 47)));
            assert!(!is_accepting(&packet::udp(from, to).payload(&[0x12; 60]).build()));
        }
        assert!(!is_accepting(&[]));
    }

    #[test]
    fn a_resolvers_answer_is_recognized() {
        for (resolver, other, pod) in [
            ("10.1.0.2:53", "10.1.0.2:54", "10.1.0.1:4000"),
            ("[fd00::2]:53", "[fd00::2]:54", "[fd00::1]:4000"),
        ] {
            let is = |from, to| is_answer(&packet::udp(from, to).payload(&[1; 20]).build());
            assert!(is(resolver, pod));
            assert!(!is(pod, resolver) && !is(other, pod));
            assert!(!is_answer(&packet::tcp(resolver, pod).ack().build()));
        }
        assert!(!is_answer(&[]));
    }
}
