//! A connection with the names of its ports, by which captures and traces choose it.

use dataplane::PortId;
use dataplane::session::Tuples;
use dataplane::wire::Flow;

use crate::published::Published;

/// A connection that may be followed.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Names of the initiator's port and the responder's.
    pub ports: [&'a str; 2],
    /// Tuples of its packets at either end.
    pub tuples: &'a Tuples,
}

impl<'a> Connection<'a> {
    pub(crate) fn of(published: &'a Published, ports: [PortId; 2], tuples: &'a Tuples) -> Self {
        let name = |id| published.snapshot.port(id).map_or("", |port| &*port.name);
        Self { ports: ports.map(name), tuples }
    }

    /// Both directions: the ports that packets enter and leave by, and what they show there.
    pub fn directions(&self) -> [([&'a str; 2], [Flow; 2]); 2] {
        let [initiator, responder] = self.ports;
        let Tuples { initiator: original, responder: translated, .. } = *self.tuples;
        [
            ([initiator, responder], [original, translated]),
            ([responder, initiator], [translated.reversed(), original.reversed()]),
        ]
    }
}

/// Chooses the connections that a capture or a trace follows.
pub(crate) type ConnectionFilter = Box<dyn Fn(&Connection<'_>) -> bool + Send + Sync>;
