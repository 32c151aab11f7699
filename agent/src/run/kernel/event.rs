//! Events of the kernel's interfaces.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::wire::Mac;
use linux_net::{Error, Event, Events, PathEvent, PathEvents};
use parking_lot::Mutex;

use super::error::KernelError;
use crate::run::thread::Thread;

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

/// Reports neighbours and routes.
pub(super) fn paths(sink: &EventSink) -> Result<(), KernelError> {
    let paths = PathEvents::open()?;
    listen("neighbours", paths, sink, |event| {
        Some(match event {
            PathEvent::Neighbour { link, address, mac } => {
                InterfaceEvent::Neighbour(link, address, mac.map(|mac| mac.0))
            }
            PathEvent::Routes => InterfaceEvent::Routes,
            PathEvent::Missed => InterfaceEvent::Missed,
        })
    })
}

/// Forwards events on a thread of its own.
pub(super) fn listen<E: Event + Send + 'static>(
    what: &'static str,
    events: Events<E>,
    sink: &EventSink,
    translate: impl Fn(E) -> Option<InterfaceEvent> + Send + 'static,
) -> Result<(), KernelError> {
    let sink = EventSink::clone(sink);
    let pass_on = move |event: Result<E, Error>| -> Result<(), Error> {
        if let Some(event) = translate(event?) {
            sink.lock()(event);
        }
        Ok(())
    };
    let listen = move || {
        if let Err(error) = events.into_iter().try_for_each(pass_on) {
            // Workers still notice deleted interfaces, only later.
            tracing::error!("{what} are no longer watched: {error}");
        }
    };
    Ok(Thread::start(what, listen).map(Thread::detach)?)
}
