//! Templates and what programs report of connections (`bpf/flow.h`).

use acl::Address;
use dataplane::PortId;
use dataplane::bpf::Plain;
use dataplane::services::Backends;
use dataplane::wire::Flow;

use super::{FlowEntry, FlowKey, GUARD_SERVICES, GUARDS, role};

/// Connections that differ in the initiator's port alone (`struct template_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct TemplateKey {
    ingress: u32,
    source: [u8; 16],
    destination: [u8; 16],
    destination_port: [u8; 2],
    protocol: u8,
    family: u8,
    backend: u32,
}

/// A part of a service's choice among its backends (`struct choice_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct ChoiceKey {
    destination: [u8; 16],
    destination_port: [u8; 2],
    protocol: u8,
    family: u8,
    part: u32,
}

/// Places of a service's table in one value (`CHOICE_PLACES`).
const CHOICE_PLACES: usize = 256;

/// `struct choice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Choice {
    generation: u32,
    size: u32,
    backends: [u8; CHOICE_PLACES],
}

impl Default for Choice {
    fn default() -> Self {
        Self { generation: 0, size: 0, backends: [0; CHOICE_PLACES] }
    }
}

/// A template: the program opens connections like the one that the switch has allowed (`struct template`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Template {
    /// Both entries, as they begin.
    pub forward: FlowEntry,
    /// The responder's.
    pub reverse: FlowEntry,
    /// Number of the interface that the responder's packets enter by.
    pub responder: u32,
    /// Number of the initiator's port.
    pub port: u32,
}

/// A report of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report<'a> {
    /// A template has opened a connection.
    Opened(Opened<'a>),
    Ended(Ended),
    /// The end that sends by this key has reset the connection (`struct reset`).
    Reset(FlowKey),
}

/// A connection that a template has opened (`struct opened`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened<'a> {
    /// The initiator's packets.
    pub(crate) key: FlowKey,
    /// The backend in the template's key.
    pub(crate) backend: u32,
    /// The end that it leads to.
    pub(crate) responder: (Address, u16),
    /// The first packet, with its port's tag.
    pub(crate) frame: &'a [u8],
}

/// The entries of a connection that both ends have closed, as they were last (`struct ended`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) by_template: bool,
    /// The initiator's and the responder's, as in the rest.
    pub(crate) ports: [u32; 2],
    /// The initiator's packets.
    pub(crate) key: FlowKey,
    pub(crate) packets: [u64; 2],
    pub(crate) bytes: [u64; 2],
    pub(crate) used_ns: [u64; 2],
}

// SAFETY: the fields fill the structure.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for TemplateKey {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for Template {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for ChoiceKey {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for Choice {}

const _: () = {
    assert!(size_of::<TemplateKey>() == 44);
    assert!(size_of::<ChoiceKey>() == 24);
    assert!(size_of::<Choice>() == 264);
    assert!(size_of::<Template>() == 344);
};

impl TemplateKey {
    /// The key of the connections that differ from `flow`, which enters by the interface `ingress`, in the
    /// source port alone.
    pub fn new(ingress: u32, flow: &Flow) -> Self {
        let FlowKey { ingress, source, destination, destination_port, protocol, family, .. } =
            FlowKey::new(ingress, flow);
        Self { ingress, source, destination, destination_port, protocol, family, backend: 0 }
    }

    /// The same of those that lead to this backend of a service, counted from 1.
    #[must_use]
    pub fn of_backend(self, backend: u32) -> Self {
        Self { backend, ..self }
    }
}

impl ChoiceKey {
    /// The parts of the choice among `backends` of the service that `flow` is for, in this generation of services;
    /// `None` if there are too many of them.
    pub fn parts(flow: &Flow, backends: &Backends, generation: u32) -> Option<Vec<(Self, Choice)>> {
        let places = backends.places()?;
        let FlowKey { destination, destination_port, protocol, family, .. } = FlowKey::new(0, flow);
        let size = places.len() as u32;
        let part = |(part, places): (usize, &[u8])| {
            let mut choice = Choice { generation, size, ..Choice::default() };
            choice.backends[..places.len()].copy_from_slice(places);
            let part = part as u32;
            (Self { destination, destination_port, protocol, family, part }, choice)
        };
        Some(places.chunks(CHOICE_PLACES).enumerate().map(part).collect())
    }
}

impl Template {
    /// The template of a connection with these entries, whose responder's packets enter by the interface
    /// `responder`. It holds while the generations of the entries do and `services` is that of services.
    pub fn new([forward, reverse]: [FlowEntry; 2], responder: u32, services: u32) -> Self {
        let entry = |entry: FlowEntry, role| {
            let (mut guards, mut generations) = (entry.guards, entry.generations);
            (guards[GUARDS - 1], generations[GUARDS - 1]) = (GUARD_SERVICES, services);
            FlowEntry { guards, generations, role, by_template: 1, ..entry }
        };
        let (mut forward, mut reverse) =
            (entry(forward, role::INITIATOR), entry(reverse, role::ASKED));
        // Those that the initiator chooses, and what follows from them.
        (forward.source_port, reverse.destination_port) = ([0; 2], [0; 2]);
        (forward.tunnel.source_port, reverse.tunnel.source_port) = ([0; 2], [0; 2]);
        Self { forward, reverse, responder, port: 0 }
    }

    /// The same of an initiator's port.
    #[must_use]
    pub fn of_port(self, port: PortId) -> Self {
        Self { port: port.0.into(), ..self }
    }
}

impl<'a> Report<'a> {
    /// Reads a report of one of `enum report`; `None` if it is shorter than that.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        const OPENED: u32 = 0;
        const RESET: u32 = 2;
        let word = |place: usize| Some(u32::from_ne_bytes(*bytes.get(place..)?.first_chunk()?));
        let pair = |place: usize| {
            let at = |place: usize| Some(u64::from_ne_bytes(*bytes.get(place..)?.first_chunk()?));
            Some([at(place)?, at(place + 8)?])
        };
        if word(0)? == OPENED {
            let responder = u128::from_be_bytes(*bytes.get(56..)?.first_chunk()?);
            let port = u16::from_be_bytes(*bytes.get(72..)?.first_chunk()?);
            return Some(Self::Opened(Opened {
                key: FlowKey::read(bytes.get(8..)?.first_chunk()?),
                backend: word(52)?,
                responder: (Address::from_bits(responder), port),
                frame: bytes.get(80..)?.get(..word(4)? as usize)?,
            }));
        }
        if word(0)? == RESET {
            return Some(Self::Reset(FlowKey::read(bytes.get(4..)?.first_chunk()?)));
        }
        Some(Self::Ended(Ended {
            by_template: word(4)? != 0,
            ports: [word(8)?, word(12)?],
            key: FlowKey::read(bytes.get(16..)?.first_chunk()?),
            packets: pair(64)?,
            bytes: pair(80)?,
            used_ns: pair(96)?,
        }))
    }
}
