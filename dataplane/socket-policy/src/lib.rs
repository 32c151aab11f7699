//! Session rules at the sockets of pods: programs at a pod's cgroup deny `connect()` and `sendmsg()`, and what arrives at
//! sockets of pods on the host network.
//!
//! A denied call fails at once, with a reason in [`SocketPolicy::denied`], where a packet that the switch
//! drops ends in a time-out. It is a second wall: the switch decides about each packet all the same, but about none
//! of a pod on the host network.

pub mod cgroups;
mod events;
mod exchanges;
mod flags;
mod generation;
mod kernel;
mod layout;
mod limits;
mod link;
mod open;
mod render;
mod report;
mod state;

/// Folder of pins in a file system of type bpf.
pub const PINS: &str = "podgate-sockets";

pub use kernel::{Options, SocketPolicy};
pub use limits::Limits;
pub use link::remove_pins;
pub use open::Ended;
pub use render::Overflow;
pub use report::{Counters, Denied, What};

pub use dataplane::bpf::Error;
