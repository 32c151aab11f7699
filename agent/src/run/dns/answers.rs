//! Reads copies of DNS packets, and releases answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use dataplane::dns::DnsPacket;
use dataplane::wire::{Flow, tcp_flags};
use domain_names::{Follower, Seen, Segment};

use super::{release as release_one, send};
use crate::run::Event;
use crate::run::names::{FollowedPod, PendingAnswer, boot_time};
use crate::run::shared_status::SharedStatus;

/// Interval of forgetting old questions.
const TICK: Duration = Duration::from_millis(250);

/// The thread that reads the copies.
pub(super) struct Reader {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    follower: Follower,
    /// Flows with an answer that may not be in force yet: its number, and when that is over. What
    /// follows on such a flow must not overtake the answer.
    waiting: HashMap<Flow, (u64, Instant)>,
}

impl Reader {
    pub(super) fn new(shared: Arc<SharedStatus>, events: Sender<Event>) -> Self {
        Self { shared, events, follower: Follower::default(), waiting: HashMap::new() }
    }

    pub(super) fn run(mut self, copies: &Receiver<DnsPacket>) {
        let mut due = Instant::now() + TICK;
        while !self.shared.names.stop.load(Ordering::Acquire) {
            match copies.recv_timeout(TICK) {
                Ok(packet) => self.read(packet),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= due {
                due = Instant::now() + TICK;
                self.follower.expire(boot_time());
                self.waiting.retain(|_, (_, until)| *until > Instant::now());
            }
        }
    }

    fn read(&mut self, packet: DnsPacket) {
        let seen = Instant::now();
        let pods = Arc::clone(&self.shared.names.pods.lock());
        let pod = pods.get(&packet.pod);
        // The port's number may be another pod's by now.
        let pod = pod.filter(|pod| pod.addresses.contains(&packet.flow.source.to_ip()));
        let waits_for = pod.and_then(|pod| self.answer(pod, &packet, seen));
        if waits_for.is_none() {
            release_one(&self.shared.switch, packet.held);
            if packet.held.is_some() {
                self.shared.durations.answers(false, seen.elapsed());
            }
        }
    }

    /// Takes the answers in a packet; returns the change that its release waits for.
    fn answer(&mut self, pod: &FollowedPod, packet: &DnsPacket, seen: Instant) -> Option<u64> {
        let names = &self.shared.names;
        let flow = &packet.flow;
        let segment = packet.segment.map(|(sequence, flags)| Segment {
            sequence,
            syn: flags & tcp_flags::SYN != 0,
            rst: flags & tcp_flags::RST != 0,
        });
        let message = Seen {
            pod: SocketAddr::new(flow.source.to_ip(), flow.source_port),
            resolver: SocketAddr::new(flow.destination.to_ip(), flow.destination_port),
            from_pod: packet.from_pod,
            segment,
            payload: &packet.payload,
        };
        let now = boot_time();
        let wants = |name: &str| pod.names.iter().any(|pattern| pattern.matches(name));
        let answers = self.follower.take(&message, wants, now);
        let mut table = names.table.lock();
        let (mut changes, mut waits_for) = (Vec::new(), None);
        for answer in answers.iter().filter(|it| !it.addresses.is_empty()) {
            names.counters.answers.fetch_add(1, Ordering::Relaxed);
            let answered = table.answer(&pod.key, &answer.name, &answer.addresses, now);
            changes.extend(answered.changes);
            waits_for = waits_for.max(answered.waits_for);
        }
        if !answers.is_empty() {
            names.is_dirty.store(true, Ordering::Release);
        }
        if let Some(sequence) = waits_for {
            self.waiting.insert(*flow, (sequence, seen + names.tap.max_hold));
        } else if let Some((sequence, until)) = self.waiting.get(flow)
            && packet.held.is_some()
            && *until > seen
            && table.is_pending(&pod.key, *sequence)
        {
            waits_for = Some(*sequence);
        }
        let pending = |sequence| {
            let (pod, ticket) = (pod.key.clone(), packet.held);
            PendingAnswer { pod, sequence, ticket, seen }
        };
        let answer = waits_for.map(pending);
        send(&self.events, changes, answer);
        waits_for
    }
}

/// Releases answers whose generation is in force. Ends when nothing can be published any more.
pub(super) fn release(shared: &SharedStatus, published: &Receiver<(u64, PendingAnswer)>) {
    for (generation, answer) in published {
        let names = &shared.names;
        if names.stop.load(Ordering::Acquire) {
            return;
        }
        // Workers release answers by themselves then.
        if shared.switch.wait_in_force(generation, names.tap.max_hold) {
            names.table.lock().in_force(&answer.pod, answer.sequence);
            release_one(&shared.switch, answer.ticket);
            shared.durations.answers(true, answer.seen.elapsed());
        }
    }
}
