//! Denials of the programs, counted.

use std::net::SocketAddr;
use std::sync::Arc;

use session_rules::Transport;

use crate::layout::{self, Event};

/// A call that was denied, or a packet that a socket was not to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The pod in whose cgroup the socket was opened.
    pub pod: Arc<str>,
    /// The deciding policies; empty if their names are not known any more.
    pub by: Arc<str>,
    /// Its protocol.
    pub transport: Transport,
    /// The call that was denied.
    pub what: What,
}

/// The two directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call.
    Call {
        /// The calling process, and its name.
        process: (u32, String),
        /// User of the process.
        user: u32,
        /// The destination of the call.
        target: SocketAddr,
    },
    /// A packet that opens a connection. Not each of them is reported.
    Arrival {
        /// Its sender; port 0 if that is not known.
        sender: SocketAddr,
        /// The port of the pod's socket.
        port: u16,
    },
}

/// Counters of the programs, since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that programs were asked about.
    pub asked: u64,
    /// Calls denied by a rule.
    pub denied: u64,
    /// Calls denied because the rules of the pod were not known.
    pub closed: u64,
    /// Denied calls that found no room for a report.
    pub lost: u64,
    /// Packets that sockets of pods on the host network were not to get.
    pub kept_out: u64,
    /// Raw sockets that were refused, and packets that were sent past the rules.
    pub raw: u64,
}

impl Denied {
    pub(crate) fn of(event: &Event, pod: Arc<str>, by: Arc<str>) -> Self {
        let command = event.command.split(|it| *it == 0).next().unwrap_or_default();
        Self {
            pod,
            by,
            transport: match event.transport == layout::number(Transport::Udp) {
                true => Transport::Udp,
                false => Transport::Tcp,
            },
            what: match event.own_port {
                0 => What::Call {
                    process: (event.process, String::from_utf8_lossy(command).into_owned()),
                    user: event.user,
                    target: event.other(),
                },
                port => What::Arrival { sender: event.other(), port },
            },
        }
    }
}
