//! Events of the kernel's interfaces.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use dataplane::wire::Mac;

/// Events of interfaces, neighbours and routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterfaceEvent {
    /// The interface with this number is gone.
    Gone(u32),
    /// The XDP program of the interface with this number was removed or replaced.
    ProgramLost(u32),
    /// A neighbour changed: its interface's number, its address, and its MAC address unless that is
    /// unknown.
    Neighbour(u32, IpAddr, Option<Mac>),
    /// A route was added or removed: next hops may have changed.
    Routes,
    /// Events were lost: all interfaces and next hops may have changed.
    Missed,
}

/// The receiver of events, shared by the threads that listen to the kernel.
pub(super) type EventSink = Arc<Mutex<Box<dyn Fn(InterfaceEvent) + Send>>>;
