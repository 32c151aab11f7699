//! Takes note of connections that programs have opened and ended, in the order in which they did.
//!
//! The worker that takes frames from the punt link reads the reports first. A connection that a template has
//! opened goes through the graph as a copy of the frame that opened it, which does not leave: so it is
//! evaluated, counted, shown to observers and gets its session like any other, and before every further packet
//! of it that the switch gets. Of a connection that has ended the session notes the FINs.

use ahash::AHashMap;
use dataplane::port::Buffers;
use dataplane::session::{Found, SessionId, TupleOrigin};
use dataplane::wire::{Flow, protocol, tcp_flags};
use dataplane::{Frame, Switch};

use crate::engine::Engine;
use crate::layout::{Ended, FlowKey, GUARD_PORTS, Opened, Report, TemplateKey};
use crate::reports::Reports;

/// Connections whose frames are in a vector that the graph has not seen yet.
#[derive(Default)]
pub(crate) struct Openings {
    opened: AHashMap<Flow, Pending>,
    late: Vec<Deferred>,
}

/// A report about a connection that may be in such a vector.
enum Deferred {
    Ended(Ended),
    Reset(FlowKey),
}

struct Pending {
    /// The initiator's packets.
    key: FlowKey,
    /// As the responder gets it.
    responder: Flow,
    /// Number of the service's backend, counted from 1, or 0.
    backend: u32,
    /// Whether it has ended as well.
    has_ended: bool,
}

impl Openings {
    /// Finishes with the connections of the last vector, which the graph has seen.
    pub(crate) fn finish(&mut self, engine: &Engine, reports: &Reports) {
        release(engine, reports);
        let switch = &engine.context.switch;
        for (flow, pending) in self.opened.drain() {
            if pending.has_ended {
                continue;
            }
            match find(switch, &flow) {
                None => withdraw(engine, &pending.key),
                Some(found) if !leads_to(switch, &found, &pending.responder) => {
                    leave_to_switch(engine, &pending);
                }
                Some(_) => {}
            }
        }
        for late in self.late.drain(..) {
            match late {
                Deferred::Ended(ended) => note_end(engine, ended),
                Deferred::Reset(key) => note_reset(switch, &key),
            }
        }
    }

    /// Whether a connection that the graph has still to see has ended.
    pub(crate) fn is_behind(&self) -> bool {
        !self.late.is_empty()
    }

    /// Reads reports, and appends up to `most` copies of frames that opened connections.
    pub(crate) fn read(
        &mut self,
        engine: &Engine,
        reports: &Reports,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) {
        let most = frames.len() + most;
        let mut one = |report: Report<'_>| match report {
            Report::Opened(Opened { key, backend, responder, frame: bytes }) => {
                let flow = key.flow();
                let is_again = self.opened.contains_key(&flow);
                if frames.len() >= most || is_again {
                    return false;
                }
                let Some(frame) = buffers.filled(bytes) else { return false };
                frames.push(frame.copied());
                let (destination, destination_port) = responder;
                let responder = Flow { destination, destination_port, ..flow };
                let pending = Pending { key, responder, backend, has_ended: false };
                self.opened.insert(flow, pending);
                true
            }
            Report::Ended(ended) => {
                match self.opened.get_mut(&ended.key.flow()) {
                    Some(opened) => {
                        opened.has_ended = true;
                        self.late.push(Deferred::Ended(ended));
                    }
                    None => note_end(engine, ended),
                }
                true
            }
            Report::Reset(key) => {
                match self.opened.is_empty() {
                    true => note_reset(&engine.context.switch, &key),
                    false => self.late.push(Deferred::Reset(key)),
                }
                true
            }
        };
        while reports.next(&mut one) {}
        if self.opened.is_empty() {
            release(engine, reports);
        }
    }
}

/// Releases what was read, and wakes the workers of queues that wait for it.
fn release(engine: &Engine, reports: &Reports) {
    if reports.release() {
        engine.context.switch.wake();
    }
}

/// The session of a flow as it enters.
fn find(switch: &Switch, flow: &Flow) -> Option<Found> {
    let (sessions, now_s) = (switch.sessions(), switch.now().seconds());
    sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s)
}

/// Whether the session of a connection has this responder. Its port may belong to another connection of the initiator
/// with the same backend, which the programs do not know any more; then the session has another one.
fn leads_to(switch: &Switch, found: &Found, responder: &Flow) -> bool {
    switch.sessions().tuples(found).is_some_and(|tuples| tuples.responder == *responder)
}

/// Leaves a connection to the switch that leads elsewhere, and others like it until the next template. The backend
/// resets it if it has answered by now.
#[cold]
fn leave_to_switch(engine: &Engine, pending: &Pending) {
    let Pending { key, backend, .. } = pending;
    let template = TemplateKey::new(key.ingress(), &key.flow()).of_backend(*backend);
    engine.context.kernel.remove_template(&template);
    withdraw(engine, key);
}

/// Removes the entries of a connection that the graph has refused: there is no room for its session, or a
/// snapshot that denies it came just behind its first packet.
#[cold]
fn withdraw(engine: &Engine, key: &FlowKey) {
    let kernel = &engine.context.kernel;
    let Some(entry) = kernel.flow(key).filter(|entry| entry.by_template != 0) else { return };
    let both = [*key, entry.reverse_key(key)];
    let last = both.map(|key| kernel.remove_flow(&key).ok().flatten().unwrap_or_default());
    let ended = Ended {
        by_template: true,
        ports: [0, 1].map(|n| entry.guards[n].saturating_sub(GUARD_PORTS)),
        key: *key,
        packets: last.map(|it| it.packets),
        bytes: last.map(|it| it.bytes),
        used_ns: last.map(|it| it.used_ns),
    };
    engine.ended.lock().push((ended, None));
}

/// Notes in a session that both ends have closed the connection, and leaves its counters to the thread that
/// scans.
fn note_end(engine: &Engine, ended: Ended) {
    let id = end_session(&engine.context.switch, &ended.key.flow());
    engine.ended.lock().push((ended, id));
}

/// Notes in a session that an end, which sends by this key, has reset the connection.
fn note_reset(switch: &Switch, key: &FlowKey) {
    if let Some(found) = find(switch, &key.flow()) {
        let now_s = switch.now().seconds();
        switch.sessions().note(found.id, &[(tcp_flags::RST, found.forward)], now_s);
    }
}

fn end_session(switch: &Switch, flow: &Flow) -> Option<SessionId> {
    const ACK: u8 = tcp_flags::ACK;
    const FIN: u8 = tcp_flags::FIN;
    let found = find(switch, flow).filter(|found| found.forward)?;
    let of_tcp =
        [(tcp_flags::SYN | ACK, false), (ACK, true), (FIN | ACK, true), (FIN | ACK, false)];
    // A resolver's answer.
    let of_udp = [(0, false)];
    let is_tcp = flow.protocol == protocol::TCP;
    let seen = if is_tcp { &of_tcp[..] } else { &of_udp };
    switch.sessions().note(found.id, seen, switch.now().seconds());
    Some(found.id)
}
