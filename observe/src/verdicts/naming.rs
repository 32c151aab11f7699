//! Makes events of raw verdicts: the names and labels of both ends, the verdict in the words of the stream.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use acl::Origin;
use dataplane::Outcome;
use local_api::Verdict;

use super::directory::Directory;
use super::inspector::Seen;
use super::staged::StagedVerdict;
use super::{Event, Process, Protocol, TcpFlags};

/// A call that was denied before there was a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The pod, `ns/pod`.
    pub pod: Arc<str>,
    /// The pod's address of that family.
    pub address: Option<IpAddr>,
    /// The deciding rule.
    pub by: Origin,
    /// The IP protocol.
    pub protocol: u8,
    /// The operation that was refused.
    pub what: RefusedWhat,
}

/// A call, or a connection that arrived at a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedWhat {
    /// A call of the pod's.
    Call {
        /// The calling process.
        process: Process,
        /// The destination of the call.
        to: SocketAddr,
    },
    /// A connection to the pod.
    Arrival {
        /// The initiator; port 0 if that is not known.
        from: SocketAddr,
        /// The port of the pod's socket.
        port: u16,
    },
}

impl Refused {
    /// Names the ends by `directory`.
    pub(super) fn named(self, node: &Arc<str>, directory: &Directory) -> Event {
        let Self { pod, address, by, protocol, what } = self;
        let own = |port| (Some(Arc::clone(&pod)), address, port);
        let other = |at: SocketAddr| (None, Some(at.ip()), Some(at.port()).filter(|it| *it != 0));
        let (ends, process) = match what {
            RefusedWhat::Call { process, to } => ([own(None), other(to)], Some(process)),
            RefusedWhat::Arrival { from, port } => ([other(from), own(Some(port))], None),
        };
        let is_call = process.is_some();
        let [from, to] = directory.ends(ends);
        let outcome = Outcome::PolicyDenied;
        Event {
            time: SystemTime::now(),
            node: Arc::clone(node),
            verdict: shown(outcome),
            reason: outcome.into(),
            by: vec![by],
            from,
            to,
            protocol: Some(Protocol(protocol)),
            icmp_type: None,
            tcp_flags: None,
            in_port: is_call.then(|| Arc::clone(&pod)),
            out_port: (!is_call).then_some(pod),
            process,
            staged: None,
            denied: None,
        }
    }
}

impl Seen {
    /// Names the ends by `directory`.
    pub(super) fn named(self, node: &Arc<str>, directory: &Directory) -> Event {
        let packet = self.packet;
        let ports = packet.and_then(|packet| packet.ports).unzip();
        // The sender is the pod of the port, whatever the source address.
        let sender = self.in_port.clone().filter(|_| self.in_pod);
        let receiver = self.out_port.clone().filter(|_| self.out_pod);
        let [from, to] = directory.ends([
            (sender, packet.map(|it| it.source), ports.0),
            (receiver, packet.map(|it| it.destination), ports.1),
        ]);
        let staged =
            |it: dataplane::StagedDecision| StagedVerdict { verdict: shown(it.outcome), by: it.by };
        Event {
            time: self.time,
            node: Arc::clone(node),
            verdict: shown(self.outcome),
            reason: self.outcome.into(),
            by: self.by,
            from,
            to,
            protocol: packet.map(|packet| Protocol(packet.protocol)),
            icmp_type: packet.and_then(|packet| packet.icmp_type),
            tcp_flags: packet.and_then(|packet| packet.tcp_flags).map(TcpFlags),
            in_port: self.in_port,
            out_port: self.out_port,
            process: None,
            staged: self.staged.map(staged),
            denied: self.denied,
        }
    }
}

fn shown(outcome: Outcome) -> Verdict {
    match outcome.verdict() {
        dataplane::Verdict::Drop => Verdict::Dropped,
        _ => Verdict::Forwarded,
    }
}
