//! The kernel's network configuration. All changes of interfaces, addresses, routes, offloads and
//! sysctls by the switch and the CNI plugin go through this crate.
//!
//! A [`Netlink`] socket belongs to the network namespace of the thread that opened it, on any
//! thread that uses it later. So a pod's namespace is configured with a socket opened inside of it:
//!
//! ```text
//!   Namespace::open("/run/netns/pod").run(Netlink::open) ─▶ Netlink (the pod's)
//!                                                            │ link, add_address,
//!   Netlink::open() ─▶ Netlink (the caller's)                ▼ add_route …
//! ```
//!
//! Everything is synchronous: a call returns when the kernel has acknowledged
//! it. Only `sys.rs` contains unsafe code.

mod address;
mod bridge;
mod conntrack;
mod departed;
mod error;
mod events;
pub mod filter;
pub mod fnv;
mod forward_policy;
pub mod host_port;
mod ingress;
mod link;
mod mac;
pub mod masquerade;
mod namespace;
mod neighbour;
mod netlink;
mod next_hop;
mod nflog;
pub mod nft;
mod offload;
mod own;
mod packet_socket;
pub mod punt;
mod queue;
mod raw_netlink;
pub mod redirect;
mod route;
mod ruleset;
mod sock_diag;
mod sys;
pub mod sysctl;
mod veth;
mod wireguard;

pub use address::LinkAddress;
pub use bridge::can_pass_bridged_to_filters;
pub use conntrack::track_open_connections;
pub use departed::delete_connections;
pub use error::Error;
pub use events::{Event, Events, LinkEvent, LinkEvents, PathEvent, PathEvents};
pub use forward_policy::ForwardPolicy;
pub use ingress::{Direction, ProgramFilter};
pub use link::{Link, queues, valid_name};
pub use mac::{MacAddress, ParseMacError};
pub use namespace::{Namespace, in_namespace};
pub use neighbour::Neighbour;
pub use netlink::Netlink;
pub use next_hop::NextHop;
pub use nflog::{LoggedPacket, LoggedPackets};
pub use nft::{delete_table, own_tables};
pub use offload::{
    SINGLE_FRAME_MTU, keep_vlan_tags, switch_off_offloads, switch_off_segmentation,
    switch_off_towards_switch, switch_on_offloads,
};
pub use own::{Footprint, OWN_LINKS};
pub use packet_socket::{PacketSocket, UnfinishedChecksum};
pub use route::Route;
pub use sock_diag::{OpenSocket, end_socket, open_sockets};
pub use veth::{VethEnd, VethPair};
pub use wireguard::{
    SECOND_WIREGUARD_DEVICE, WIREGUARD_DEVICE, WireGuardConfig, WireGuardDevice, WireGuardKey,
    WireGuardPeer, WireGuardPeerState,
};

/// Largest packet that passes the switch, in bytes: the maximum of IPv4's length field, less the
/// headers of a tunnel. (The kernel would send 18 frames of 3840 bytes as one packet.)
pub const MAX_MTU: u32 = 65_000;
