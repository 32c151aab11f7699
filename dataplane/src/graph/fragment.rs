//! Fragments: later ones carry no ports and follow the flow of their first.
//!
//! A table of fixed size remembers first fragments that were let through. Its places are
//! chosen by the datagram and the port it came from; a newcomer takes the place of an older
//! one, so that fragments without end push out fragments and nothing else.

use ahash::RandomState;

use super::{Context, Next, session};
use crate::packet::Packet;
use crate::session::Sight;
use crate::wire::{Flow, Fragment};
use crate::{Now, Outcome, PortId};

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
    let Some(flow) = context.fragments.find(packet, identification, context.now) else {
        return Next::End(Outcome::FragmentUnknown);
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
    flow: Flow,
    seen_s: u32,
}

/// First fragments that were let through by one worker.
pub struct Fragments {
    places: Vec<Option<First>>,
    hasher: RandomState,
}

impl Default for Fragments {
    fn default() -> Self {
        Self { places: Vec::new(), hasher: RandomState::new() }
    }
}

impl Fragments {
    /// Remembers the flow of a first fragment.
    fn remember(&mut self, packet: &Packet, identification: u32, now: Now) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let datagram = datagram(packet, identification);
        let place = self.place(&datagram);
        let flow = packet.headers.flow;
        self.places[place] = Some(First { datagram, flow, seen_s: now.seconds() });
    }

    /// The flow of the first fragment of a later fragment's datagram.
    pub(super) fn find(&self, packet: &Packet, identification: u32, now: Now) -> Option<Flow> {
        if self.places.is_empty() {
            return None;
        }
        let datagram = datagram(packet, identification);
        let first = self.places[self.place(&datagram)].as_ref()?;
        let in_time = now.seconds().saturating_sub(first.seen_s) <= PATIENCE_S;
        (first.datagram == datagram && in_time).then_some(first.flow)
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
