//! Fragmented datagrams, and the outcomes of their first fragments.

use acl::Address;

use crate::packet::Packet;
use crate::wire::{Flow, Fragment};
use crate::{Outcome, PortId};

/// Key of a datagram: the common fields of its fragments, beside their ingress port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::graph) struct Datagram {
    pub(super) source: Address,
    destination: Address,
    identification: u32,
    protocol: u8,
    in_port: PortId,
}

/// Outcome of a first fragment.
#[derive(Clone, Copy)]
pub(in crate::graph) enum First {
    /// It was dropped.
    Refused,
    /// It was forwarded: with its flow, and whether that has a session.
    Passed { flow: Flow, has_session: bool },
}

impl First {
    /// The outcome of the later fragments, if they do not go on.
    pub(super) fn end(self) -> Option<Outcome> {
        matches!(self, Self::Refused).then_some(Outcome::FragmentUnknown)
    }
}

impl Datagram {
    /// The datagram of a fragment.
    pub(super) fn of(packet: &Packet) -> Option<Self> {
        let (Fragment::First(identification) | Fragment::Later(identification)) =
            packet.headers.fragment
        else {
            return None;
        };
        Some(Self {
            source: packet.headers.flow.source,
            destination: packet.headers.flow.destination,
            identification,
            protocol: packet.headers.flow.protocol,
            in_port: packet.in_port,
        })
    }

    pub(super) fn port(&self) -> usize {
        usize::from(self.in_port.0)
    }
}
