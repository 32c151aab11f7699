//! Sends vectors through the graph.

use std::sync::Arc;

use super::context::{LastTunnel, Translation};
use super::icmp_error::RateLimiter;
use super::reevaluate::Stale;
use super::reject::Extras;
use super::staged::Difference;
use super::steps::{IN_ORDER, List, Step, Work};
use super::trace::{Tracer, Tracing};
use super::verify::Verifier;
use super::waiting::{self, Waiting};
use super::{
    Context, NODES, Next, Node, anti_spoofing, decapsulate, dns, encapsulate, icmp_error,
    neighbour, open, parse, policy, reassembly, reevaluate, rewrite, service, session,
};
use crate::counters::Counters;
use crate::cpu::clocks;
use crate::packet::{Packet, VECTOR};
use crate::policy::PolicyBatch;
use crate::session::Sessions;
use crate::{FreeList, Memory, Now, Snapshot};

/// One worker's graph.
pub struct Graph {
    lists: [List; NODES],
    pub(crate) waiting: Waiting,
    rate_limiter: RateLimiter,
    extras: Extras,
    translations: Vec<Translation>,
    policy_batch: PolicyBatch<'static>,
    stale: Vec<Stale>,
    staged: Vec<Difference>,
    verifier: Verifier,
    tracer: Option<Box<Tracer>>,
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            lists: [List::EMPTY; NODES],
            waiting: Waiting::default(),
            rate_limiter: RateLimiter::default(),
            extras: Extras::default(),
            translations: Vec::with_capacity(VECTOR),
            policy_batch: PolicyBatch::default(),
            stale: Vec::with_capacity(VECTOR),
            staged: Vec::new(),
            verifier: Verifier::default(),
            tracer: None,
        }
    }
}

impl Graph {
    /// Starts or stops tracing packets from the next vector on, as worker number `worker`.
    pub fn follow(&mut self, worker: u16, tracing: Option<Arc<Tracing>>) {
        self.tracer = tracing.map(|tracing| Box::new(Tracer::new(worker, tracing)));
    }

    /// Sends up to [`VECTOR`] packets through the graph; each has an outcome afterwards, except
    /// those that are to be held.
    pub fn run(
        &mut self,
        packets: &mut [Packet],
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) {
        assert!(packets.len() <= VECTOR, "a vector has at most {VECTOR} packets");
        self.lists[Node::Parse as usize] = List { length: packets.len(), items: IN_ORDER };
        self.run_lists(packets, snapshot, memory, sessions, counters, now);
    }

    /// Sends up to a vector of packets that wait no longer on, and fills `packets` with them. Returns `false` if
    /// there are none.
    pub fn resume(
        &mut self,
        packets: &mut Vec<Packet>,
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) -> bool {
        self.waiting.take_released(packets);
        if packets.is_empty() {
            return false;
        }
        for (index, packet) in packets.iter().enumerate() {
            match packet.outcome {
                Some(outcome) => counters.count(outcome),
                None => self.lists[waiting::node_of(packet) as usize].push(index as u8),
            }
        }
        self.run_lists(packets, snapshot, memory, sessions, counters, now);
        true
    }

    /// The packets of the last vector that open connections which staged ACLs decide otherwise about.
    #[inline]
    pub(crate) fn differences(&self) -> &[Difference] {
        &self.staged
    }

    /// Takes frames for resets and fragments beside a packet's own frame.
    pub fn stock_extras(&mut self, free: &mut FreeList) {
        self.extras.stock(free);
    }

    /// Number of such frames that are not in use.
    pub(crate) fn spare_frames(&self) -> usize {
        self.extras.spare_frames()
    }

    /// The next such packet, which only has to be sent.
    #[inline]
    pub fn take_extra(&mut self) -> Option<Packet> {
        self.extras.take_ready()
    }

    /// Takes every packet that waits, and the spare frames.
    pub fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.waiting.take_all().chain(self.extras.take_all())
    }

    /// Runs the nodes over their lists of packets.
    #[inline]
    fn run_lists(
        &mut self,
        packets: &mut [Packet],
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) {
        let Self {
            lists,
            waiting,
            rate_limiter,
            extras,
            translations,
            policy_batch,
            stale,
            staged,
            verifier,
            tracer,
        } = self;
        translations.clear();
        staged.clear();
        let mut context = Context {
            snapshot,
            memory,
            sessions,
            waiting,
            rate_limiter,
            extras,
            translations,
            policy_batch,
            stale,
            staged,
            verifier,
            tunnel: LastTunnel::default(),
            tunnel_port: snapshot
                .underlay()
                .overlay()
                .map_or(u32::MAX, |it| it.port.to_be().into()),
            counts: sessions.counts_packets(),
            traces: tracer.is_some(),
            now,
        };
        let mut follower = tracer.as_deref_mut();
        if let Some(tracer) = &mut follower {
            tracer.begin(&context, packets);
        }
        for node in Node::ALL {
            let input = std::mem::replace(&mut lists[node as usize].length, 0);
            if input == 0 {
                continue;
            }
            let started = clocks();
            let mut at = 0;
            while at < input {
                let mut until = input;
                // A tracer handles one packet at a time.
                if let Some(tracer) = &mut follower {
                    let index = lists[node as usize].items[at];
                    tracer.before(node, &context, index, &packets[usize::from(index)]);
                    until = at + 1;
                }
                let work = Work { node, from: at, until, counters };
                macro_rules! each {
                    ($work:ident, $module:ident :: $step:ident $($option:ident)*, usually to $usual:ident) => {{
                        struct Of;
                        impl Step for Of {
                            const USUAL: Node = Node::$usual;
                            $(const $option: bool = true;)*

                            #[inline(always)]
                            fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
                                $module::$step(context, packet)
                            }
                        }
                        $work.each::<Of>(lists, packets, &mut context)
                    }};
                    ($module:ident $($option:ident)*, usually to $usual:ident) => {
                        each!(work, $module::step $($option)*, usually to $usual)
                    };
                }
                match node {
                    Node::Parse => each!(parse READS_FRAMES, usually to AntiSpoofing),
                    Node::Neighbour => each!(neighbour, usually to Hold),
                    Node::AntiSpoofing => each!(anti_spoofing, usually to Session),
                    Node::Decapsulate => each!(decapsulate, usually to Session),
                    Node::Session => {
                        each!(session, usually to Rewrite);
                        // Packets that the node sent to itself.
                        let until = std::mem::replace(&mut lists[node as usize].length, 0);
                        if until > 0 {
                            let items = &lists[node as usize].items[..until];
                            reevaluate::batch(&mut context, packets, items);
                            let again = Work { node, from: 0, until, counters };
                            each!(again, session::step_again, usually to Rewrite);
                        }
                    }
                    Node::Service => each!(service, usually to Policy),
                    Node::Policy => {
                        let items = &lists[node as usize].items[at..until];
                        policy::classify(&mut context, packets, items);
                        each!(policy, usually to Open);
                    }
                    Node::Open => each!(open, usually to Rewrite),
                    Node::Reassembly => each!(reassembly, usually to Rewrite),
                    // The caller holds them.
                    Node::Hold => {}
                    Node::Rewrite => each!(rewrite READS_FRAMES, usually to Encapsulate),
                    Node::IcmpError => each!(icmp_error, usually to Encapsulate),
                    Node::Dns => each!(dns READS_FRAMES, usually to Encapsulate),
                    Node::Encapsulate => each!(encapsulate, usually to Hold),
                }
                if let Some(tracer) = &mut follower {
                    let index = lists[node as usize].items[at];
                    let next = node.next().iter().copied();
                    let next = next.rev().find(|next| lists[*next as usize].ends_with(index));
                    tracer.after(node, &context, index, &packets[usize::from(index)], next);
                }
                at = until;
            }
            counters.count_node(node, input, clocks().wrapping_sub(started));
        }
        context.refuse_fragments(packets);
        if snapshot.verify_every() > 0 {
            context.verifier.report(counters);
        }
        if let Some(follower) = follower {
            follower.finish(&context, packets);
            if follower.is_over() {
                *tracer = None;
            }
        }
    }
}
