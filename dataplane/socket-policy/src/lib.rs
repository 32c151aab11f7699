//! Session rules at the sockets of pods: programs at a pod's cgroup deny `connect()` and `sendmsg()`.
//!
//! A denied call fails at once, with a reason in [`SocketPolicy::denied`], where a packet that the switch
//! drops ends in a time-out. It is a second wall: the switch decides about each packet all the same.

pub mod cgroups;
mod events;
mod kernel;
mod layout;
mod link;
mod render;

/// Folder of pins in a file system of type bpf.
pub const PINS: &str = "podgate-sockets";

pub use kernel::{Counters, Denied, Options, SocketPolicy, remove_pins};

pub use dataplane::bpf::Error;
