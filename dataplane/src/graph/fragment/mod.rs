//! Fragments: later ones carry no ports and follow the flow of their first.
//!
//! A table of fixed size remembers first fragments that were let through. Its places are
//! chosen by the datagram and the port it came from; a newcomer takes the place of an older
//! one, so that fragments without end push out fragments and nothing else.

mod waiting;

use ahash::RandomState;

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::session::Sight;
use crate::wire::{Flow, Fragment};
use crate::{Now, Outcome, PortId, Verdict};
use waiting::Waiting;

const PLACES: usize = 4096;
/// How long later fragments may take (RFC 8200, section 4.5, gives them 60 seconds; RFC 791
/// suggests 15).
const PATIENCE_S: u32 = 30;

/// This node comes behind those that judge first fragments, so that a datagram whose fragments
/// share a vector is known in time.
pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let Fragment::Later(identification) = packet.headers.fragment else {
        return Next::End(Outcome::FragmentUnknown);
    };
    let flow = match context.fragments.first(packet, identification, context.now) {
        Some(First { flow: Some(flow), .. }) => *flow,
        Some(First { flow: None, .. }) => return Next::End(Outcome::FragmentUnknown),
        None => return Next::Node(Node::Wait),
    };
    packet.headers.flow = flow;
    packet.hash = context.sessions.hash(&flow);
    match context.sessions.find(packet.hash, &flow, Sight::Entering, context.now.seconds()) {
        Some(found) => session::go_on(context, packet, &found, Outcome::Fragment),
        None => Next::End(Outcome::FragmentUnknown),
    }
}

impl Context<'_> {
    /// Remembers a first fragment that is let through.
    pub(super) fn remember_fragment(&mut self, packet: &Packet) {
        if let Fragment::First(identification) = packet.headers.fragment {
            self.fragments.remember(packet, identification, self.now);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Datagram {
    source: acl::Address,
    destination: acl::Address,
    identification: u32,
    protocol: u8,
    in_port: PortId,
}

struct First {
    datagram: Datagram,
    /// `None` if it was refused.
    flow: Option<Flow>,
    seen_s: u32,
}

/// First fragments that one worker has seen, and later ones that wait for theirs.
#[derive(Default)]
pub struct Fragments {
    places: Vec<Option<First>>,
    hasher: RandomState,
    waiting: Waiting,
    /// Whether the vector under way has a first fragment.
    has_first: bool,
}

impl Fragments {
    /// The vector has a first fragment.
    pub(super) fn note_first(&mut self) {
        self.has_first = true;
    }

    /// Remembers a first fragment that was let through; those that waited for it may go on.
    fn remember(&mut self, packet: &Packet, identification: u32, now: Now) {
        let datagram = datagram(packet, identification);
        self.set(First { datagram, flow: Some(packet.headers.flow), seen_s: now.seconds() });
        self.waiting.first_came(&datagram, None);
    }

    /// Remembers the first fragments of a vector that were refused, and ends what waited for them.
    pub(super) fn refuse(&mut self, packets: &[Packet], now: Now) {
        if !std::mem::take(&mut self.has_first) {
            return;
        }
        for packet in packets {
            let Fragment::First(identification) = packet.headers.fragment else { continue };
            let is_refused = packet.outcome.is_some_and(|it| it.verdict() == Verdict::Drop);
            if !is_refused || self.first(packet, identification, now).is_some() {
                continue;
            }
            let datagram = datagram(packet, identification);
            self.set(First { datagram, flow: None, seen_s: now.seconds() });
            self.waiting.first_came(&datagram, Some(Outcome::FragmentUnknown));
        }
    }

    fn set(&mut self, first: First) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let place = self.place(&first.datagram);
        self.places[place] = Some(first);
    }

    /// The first fragment of a later fragment's datagram.
    fn first(&self, packet: &Packet, identification: u32, now: Now) -> Option<&First> {
        if self.places.is_empty() {
            return None;
        }
        let datagram = datagram(packet, identification);
        let first = self.places[self.place(&datagram)].as_ref()?;
        let in_time = now.seconds().saturating_sub(first.seen_s) <= PATIENCE_S;
        (first.datagram == datagram && in_time).then_some(first)
    }

    /// The flow of the first fragment of a later fragment's datagram, if it was let through.
    pub(super) fn find(&self, packet: &Packet, identification: u32, now: Now) -> Option<Flow> {
        self.first(packet, identification, now).and_then(|first| first.flow)
    }

    /// Leaves room for other packets where there are only so many frames.
    pub(super) fn fit(&mut self, frames: usize) {
        self.waiting.fit(frames);
    }

    /// Has a packet wait that the graph sent to [`Node::Wait`].
    pub(super) fn hold(&mut self, mut packet: Packet, now: Now) {
        match packet.headers.fragment {
            Fragment::Later(identification) => {
                self.waiting.hold(datagram(&packet, identification), packet, now);
            }
            _ => {
                packet.outcome = Some(Outcome::FragmentUnknown);
                self.waiting.ended.push(packet);
            }
        }
    }

    /// The next packet that waits no longer because its first was let through.
    pub(super) fn take_ready(&mut self) -> Option<Packet> {
        self.waiting.ready.pop_front()
    }

    /// The next packet that waits no longer and has its outcome.
    pub(super) fn take_ended(&mut self) -> Option<Packet> {
        self.waiting.ended.pop()
    }

    /// Whether it is time to [`expire`](Self::expire).
    #[inline]
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.waiting.is_due(now)
    }

    /// Ends what has waited too long.
    pub(super) fn expire(&mut self, now: Now) {
        self.waiting.expire(now);
    }

    /// Forgets everything about a port that is gone.
    pub(super) fn forget(&mut self, port: PortId) {
        self.waiting.forget(port);
        for place in &mut self.places {
            place.take_if(|first| first.datagram.in_port == port);
        }
    }

    /// Gives everything back that waits.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.waiting.take_all()
    }

    fn place(&self, datagram: &Datagram) -> usize {
        self.hasher.hash_one(datagram) as usize % PLACES
    }
}

fn datagram(packet: &Packet, identification: u32) -> Datagram {
    Datagram {
        source: packet.headers.flow.source,
        destination: packet.headers.flow.destination,
        identification,
        protocol: packet.headers.flow.protocol,
        in_port: packet.in_port,
    }
}
