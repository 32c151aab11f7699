//! Takes note of connections that programs have opened and ended, in the order in which they did.
//!
//! The worker that takes frames from the punt link reads the reports first. A connection that a template has
//! opened goes through the graph as a copy of the frame that opened it, which does not leave: so it is
//! evaluated, counted, shown to observers and gets its session like any other, and before every further packet
//! of it that the switch gets. Of a connection that has ended the session notes the FINs.

use ahash::AHashMap;
use dataplane::port::{Buffers, Tag};
use dataplane::session::{Found, SessionId, TupleOrigin};
use dataplane::wire::{Flow, parse, tcp_flags};
use dataplane::{Frame, PortId, Switch};

use crate::engine::Engine;
use crate::layout::{Ended, FlowKey, GUARD_PORTS, Report};
use crate::reports::Reports;

/// Connections whose frames are in a vector that the graph has not seen yet.
#[derive(Default)]
pub(crate) struct Openings {
    opened: AHashMap<Flow, Opened>,
    ended: Vec<Ended>,
}

struct Opened {
    port: PortId,
    /// Whether it has ended as well.
    has_ended: bool,
}

impl Openings {
    /// Begins the next vector: the graph has seen the last one.
    pub(crate) fn begin(&mut self, engine: &Engine, reports: &Reports) {
        reports.release();
        let switch = &engine.context.switch;
        for (flow, Opened { port, has_ended }) in self.opened.drain() {
            if !has_ended && find(switch, &flow).is_none() {
                withdraw(engine, &flow, port);
            }
        }
        self.ended.drain(..).for_each(|ended| note_end(engine, ended));
    }

    /// Whether a connection that the graph has still to see has ended.
    pub(crate) fn is_behind(&self) -> bool {
        !self.ended.is_empty()
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
            Report::Opened(bytes) => {
                // One that cannot be read is none.
                let Ok(headers) = parse(bytes) else { return true };
                let is_again = self.opened.contains_key(&headers.flow);
                if frames.len() >= most || is_again {
                    return false;
                }
                let Some(frame) = buffers.filled(bytes) else { return false };
                let port = Tag::of(buffers.memory, &frame).map_or(PortId::NONE, Tag::port);
                frames.push(frame.copied());
                self.opened.insert(headers.flow, Opened { port, has_ended: false });
                true
            }
            Report::Ended(ended) => {
                match self.opened.get_mut(&ended.key.flow()) {
                    Some(opened) => {
                        opened.has_ended = true;
                        self.ended.push(ended);
                    }
                    None => note_end(engine, ended),
                }
                true
            }
        };
        while reports.next(&mut one) {}
        if self.opened.is_empty() {
            reports.release();
        }
    }
}

/// The session of an initiator's flow.
fn find(switch: &Switch, flow: &Flow) -> Option<Found> {
    let (sessions, now_s) = (switch.sessions(), switch.now().seconds());
    sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s)
}

/// Removes the entries of a connection that the graph has refused: there is no room for its session, or a
/// snapshot that denies it came just behind its first packet.
#[cold]
fn withdraw(engine: &Engine, flow: &Flow, port: PortId) {
    let kernel = &engine.context.kernel;
    let Some(ifindex) = engine.interfaces.lock().get(&port).copied() else { return };
    let key = FlowKey::new(ifindex, flow);
    let Some(entry) = kernel.flow(&key).filter(|entry| entry.by_template != 0) else { return };
    let both = [key, FlowKey::new(entry.egress, &flow.reversed())];
    let last = both.map(|key| kernel.remove_flow(&key).ok().flatten().unwrap_or_default());
    let ended = Ended {
        by_template: true,
        ports: [0, 1].map(|n| entry.guards[n].saturating_sub(GUARD_PORTS)),
        key,
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

fn end_session(switch: &Switch, flow: &Flow) -> Option<SessionId> {
    const ACK: u8 = tcp_flags::ACK;
    const FIN: u8 = tcp_flags::FIN;
    let found = find(switch, flow).filter(|found| found.forward)?;
    let seen = [(tcp_flags::SYN | ACK, false), (ACK, true), (FIN | ACK, true), (FIN | ACK, false)];
    switch.sessions().note(found.id, &seen, switch.now().seconds());
    Some(found.id)
}
