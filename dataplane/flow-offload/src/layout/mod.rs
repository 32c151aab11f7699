//! The structures that programs and switch share (`bpf/flow.h`). Both sides assert their
//! sizes; numbers are in host byte order, ports and addresses in that of the wire.

mod templates;

use acl::Address;
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{Flow, Mac};

use dataplane::bpf::Plain;

pub use templates::{Choice, ChoiceKey, Template, TemplateKey};
pub(crate) use templates::{Ended, Opened, Report};

/// Ports of the switch, by number: `PORTS`.
pub const PORTS: u16 = 32_768;
/// Queues of the punt link: `QUEUES`.
pub(crate) const QUEUES: usize = 256;
/// Guards of an entry.
pub(crate) const GUARDS: usize = 3;
/// A generation that never changes: no guard.
pub(crate) const GUARD_NONE: u32 = 0;
/// The generation of services.
pub(crate) const GUARD_SERVICES: u32 = 1;
/// Guard of the first port; the others follow.
pub(crate) const GUARD_PORTS: u32 = 2;

/// Bit of an interface's number in a key: the packet arrived by it in a tunnel (`TUNNELLED`).
const TUNNELLED: u32 = 1 << 31;
/// In place of an interface's number in a key: the node's own kernel sends the packet
/// (`HOST`).
const HOST: u32 = 1 << 30;

/// One direction of a connection, as it enters (`struct flow_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct FlowKey {
    /// Number of the interface that it enters by, and whether in a tunnel.
    ingress: u32,
    source: [u8; 16],
    destination: [u8; 16],
    source_port: [u8; 2],
    destination_port: [u8; 2],
    protocol: u8,
    family: u8,
    zero: [u8; 2],
}

/// A VXLAN tunnel to another node (`struct tunnel`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Tunnel {
    own: [u8; 16],
    peer: [u8; 16],
    source_port: [u8; 2],
    port: [u8; 2],
    header: [u8; 8],
    family: u8,
    hop_limit: u8,
    zeros: [u8; 2],
}

/// Treatment of its packets (`struct flow_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FlowEntry {
    /// Places of generations; the entry counts while they are as in `generations`.
    pub guards: [u32; GUARDS],
    /// The guards' generations when the switch allowed the connection.
    pub generations: [u32; GUARDS],
    /// Number of the interface that the packets leave by: the host side of a pod's, or another one.
    pub egress: u32,
    /// Bytes of the largest IP packet that may leave there; 0 if any may.
    pub mtu: u16,
    /// Whether addresses and ports are rewritten to those below; a port of 0 stays what it is.
    pub translates: u8,
    /// Whether they leave by the interface, in place of going past it into the pod behind it.
    pub on_wire: u8,
    /// The only source that packets may enter with from a pod or the node's kernel.
    pub ingress_mac: Mac,
    /// MAC address of the pod or the next hop that the packets are for.
    pub destination_mac: Mac,
    /// MAC address that they leave from.
    pub source_mac: Mac,
    /// Whether its FINs are forwarded too; every SYN of the initiator passes the punt link then.
    pub takes_fin: u8,
    /// Written by the programs: whether one was.
    pub had_fin: u8,
    /// Port that they leave from.
    pub source_port: [u8; 2],
    /// Port that they leave for.
    pub destination_port: [u8; 2],
    /// Address that they leave from, IPv4 in its IPv4-mapped form.
    pub source: [u8; 16],
    /// Address that they leave for.
    pub destination: [u8; 16],
    /// The tunnel that packets of pods leave in, and others arrive in.
    pub tunnel: Tunnel,
    /// Packets that took it; segments of a packet that the kernel has yet to cut count each.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Monotonic time of the last one, in nanoseconds.
    pub used_ns: u64,
    /// The end that the packets come from: one of [`role`].
    pub role: u32,
    /// Whether a template opened the connection, so that its handshake is forwarded too.
    pub by_template: u16,
    /// Written by the programs: whether a reset was forwarded.
    pub had_reset: u16,
}

/// Ends of a TCP connection of a pod, but for those with the node itself (`enum role`).
pub mod role {
    /// Another connection's.
    pub const NONE: u32 = 0;
    /// The end that opened it.
    pub const INITIATOR: u32 = 1;
    /// The other end, which has accepted it.
    pub const RESPONDER: u32 = 2;
    /// The other end, which has not accepted it yet.
    pub const ASKED: u32 = 3;
}

/// A port whose frames take the punt link (`struct port`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PuntedPort {
    /// Number of the pod's host-side interface; 0 for no port.
    pub ifindex: u32,
    /// The port's tag on the punt link.
    pub tag: [u8; 6],
    /// The pod's MAC address.
    pub mac: Mac,
    /// The queue of the punt link that its frames take.
    pub queue: u32,
}

/// A port's share of the punt link (`struct share`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct PortShare {
    pub(crate) round: u32,
    pub(crate) frames: u32,
    pub(crate) taken: u32,
    pub(crate) opened: u32,
    pub(crate) dropped: u64,
}

/// `struct settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct Settings {
    pub(crate) good_until_ns: u64,
    pub(crate) fins_until_ns: u64,
    pub(crate) opens_until_ns: u64,
    pub(crate) punt: u32,
    pub(crate) uplink: u32,
    pub(crate) uplink_link: u32,
    pub(crate) zero: u32,
}

// SAFETY: the fields fill the structure.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for FlowKey {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for FlowEntry {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for PuntedPort {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for PortShare {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "bytes that the kernel reads")]
unsafe impl Plain for Settings {}

const _: () = {
    assert!(size_of::<FlowKey>() == 44);
    assert!(size_of::<FlowEntry>() == 168);
    assert!(size_of::<Tunnel>() == 48);
    assert!(size_of::<PuntedPort>() == 20);
    assert!(size_of::<PortShare>() == 24);
    assert!(size_of::<Settings>() == 40);
};

/// Why a packet was not forwarded by an entry (`enum reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(usize);

impl Reason {
    /// Names in every output, and what they mean; in the order of `enum reason`.
    const NAMES: [(&'static str, &'static str); 14] = [
        ("not-ip", "Neither IPv4 nor IPv6, or tagged with a priority."),
        ("other-protocol", "Neither TCP nor UDP."),
        ("options", "IPv4 options or IPv6 extension headers."),
        ("fragment", "Part of a fragmented datagram."),
        ("ttl", "The time to live runs out here."),
        (
            "malformed",
            "Headers that contradict themselves, or a wrong IPv4 checksum. Dropped at once: an unfinished \
             checksum that would be written over headers.",
        ),
        ("opens-or-ends", "TCP with a SYN, reset or FIN that no entry takes."),
        ("no-entry", "No entry for the connection (yet)."),
        ("old-generation", "A new snapshot concerns the connection."),
        ("no-heartbeat", "The switch has not shown that it lives."),
        ("too-long", "Longer than the way out takes."),
        ("wrong-mac", "Not from the pod's MAC address."),
        ("tunnel", "Not from the tunnel's other end, or its headers find no room."),
        ("vlan", "Of a VLAN. Dropped at once."),
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::NAMES.len()).map(Self)
    }

    /// The name used in every output and as a metric label.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.0].0
    }

    /// Its meaning, in one sentence.
    pub fn meaning(self) -> &'static str {
        Self::NAMES[self.0].1
    }

    pub(crate) fn counter(self) -> usize {
        self.0
    }
}

/// Places of the other counters (`enum counter`), and how many there are.
pub(crate) const FORWARDED: usize = Reason::NAMES.len();
pub(crate) const FORWARDED_BYTES: usize = FORWARDED + 1;
pub(crate) const NO_PORT: usize = FORWARDED + 2;
pub(crate) const OVER_SHARE: usize = FORWARDED + 3;
pub(crate) const OPENED: usize = FORWARDED + 4;
pub(crate) const CLEAR_TEXT: usize = FORWARDED + 5;
pub(crate) const COUNTERS: usize = FORWARDED + 6;

impl FlowKey {
    /// The key of packets that enter by the interface `ingress` and show `flow`.
    pub fn new(ingress: u32, flow: &Flow) -> Self {
        Self {
            ingress,
            source: flow.source.bits().to_be_bytes(),
            destination: flow.destination.bits().to_be_bytes(),
            source_port: flow.source_port.to_be_bytes(),
            destination_port: flow.destination_port.to_be_bytes(),
            protocol: flow.protocol,
            family: family(flow.source),
            zero: [0; 2],
        }
    }

    /// The same for packets that arrive in a tunnel.
    #[must_use]
    pub fn in_tunnel(self) -> Self {
        Self { ingress: self.ingress | TUNNELLED, ..self }
    }

    /// The key of packets that the node's own kernel sends.
    pub fn of_host(flow: &Flow) -> Self {
        Self::new(HOST, flow)
    }
}

impl FlowKey {
    fn read(bytes: &[u8; size_of::<Self>()]) -> Self {
        let at = |place: usize| &bytes[place..];
        let address = |place| *at(place).first_chunk().expect("inside the array");
        let port = |place| *at(place).first_chunk().expect("inside the array");
        Self {
            ingress: u32::from_ne_bytes(*bytes.first_chunk().expect("inside the array")),
            source: address(4),
            destination: address(20),
            source_port: port(36),
            destination_port: port(38),
            protocol: bytes[40],
            family: bytes[41],
            zero: [0; 2],
        }
    }

    pub(crate) fn ingress(&self) -> u32 {
        self.ingress
    }

    /// The packets' tuple as they enter.
    pub(crate) fn flow(&self) -> Flow {
        let address = |bytes| Address::from_bits(u128::from_be_bytes(bytes));
        Flow {
            source: address(self.source),
            destination: address(self.destination),
            source_port: u16::from_be_bytes(self.source_port),
            destination_port: u16::from_be_bytes(self.destination_port),
            protocol: self.protocol,
        }
    }
}

impl Tunnel {
    /// The tunnel from `own` to `peer`, of the same family. Packets leave with this source port and
    /// `group`; those with a smaller hop limit are not taken from it.
    pub fn new(
        overlay: &Vxlan,
        (own, peer): (Address, Address),
        (source_port, group): (u16, u16),
        hop_limit: u8,
    ) -> Self {
        Self {
            own: own.bits().to_be_bytes(),
            peer: peer.bits().to_be_bytes(),
            source_port: source_port.to_be_bytes(),
            port: overlay.port.to_be_bytes(),
            header: overlay.header(group),
            family: family(own),
            hop_limit,
            zeros: [0; 2],
        }
    }
}

fn family(address: Address) -> u8 {
    if address.is_v4() { 4 } else { 6 }
}

impl FlowEntry {
    /// The key of packets in the other direction of the connection whose packets enter by `key`.
    pub fn reverse_key(&self, key: &FlowKey) -> FlowKey {
        // What leaves in a tunnel is answered in it.
        let is_in_tunnel = self.on_wire != 0 && self.tunnel.family != 0;
        let mut reverse = FlowKey {
            ingress: self.egress | if is_in_tunnel { TUNNELLED } else { 0 },
            source: key.destination,
            destination: key.source,
            source_port: key.destination_port,
            destination_port: key.source_port,
            ..*key
        };
        if self.translates != 0 {
            (reverse.source, reverse.destination) = (self.destination, self.source);
            let stays = |port: [u8; 2], own| if port == [0; 2] { own } else { port };
            reverse.source_port = stays(self.destination_port, key.destination_port);
            reverse.destination_port = stays(self.source_port, key.source_port);
        }
        reverse
    }

    /// Rewrites packets that enter as `from` to `to`.
    #[must_use]
    pub fn rewriting(self, from: &Flow, to: &Flow) -> Self {
        Self {
            translates: u8::from(from != to),
            source: to.source.bits().to_be_bytes(),
            destination: to.destination.bits().to_be_bytes(),
            source_port: to.source_port.to_be_bytes(),
            destination_port: to.destination_port.to_be_bytes(),
            ..self
        }
    }
}
