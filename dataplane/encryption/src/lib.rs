//! Encryption between nodes: what pods of different nodes say to each other takes a WireGuard device.
//!
//! ```text
//!   the switch, its programs, the kernel ─▶ uplink ─▶ seal ─┬─ of pods ─▶ WireGuard device ─▶ uplink
//!                                                           └─ else ────▶ wire
//!   wire ─▶ the kernel's UDP ─▶ WireGuard device ─▶ unseal ─┬─ entry of flow offload ─▶ pod
//!                                                           └─ else ─▶ uplink's ingress, with a mark
//! ```
//!
//! The dataplane knows nothing of it. Its packets to other nodes leave by the uplink as ever; `seal` hands them to
//! the device, and drops what has no peer there. The device takes from a peer what has one of its addresses as
//! source; `unseal` hands that to flow offload, which forwards it by an entry into the pod, or puts it at the
//! uplink's ingress. There the program of flow offload drops what other nodes
//! should have encrypted ([`require_encryption`]).
//!
//! Programs stay attached when the process ends, and the next one's take their place.
//!
//! [`require_encryption`]: ../flow_offload/struct.Kernel.html#method.require_encryption

mod key;
mod programs;

pub use dataplane::bpf::Error;
pub use key::PrivateKey;
pub use programs::{Counters, Node, Programs, Uplink, overhead, values};
