//! The graph: stages that each handle a whole vector.
//!
//! ```text
//! parse ─┬─▶ security ─┬─▶ session ─┬─▶ service ─▶ policy ─▶ open ─▶ rewrite ─┬─▶ (out)
//!        │      │      │            ├────────────────▲                ▲   └─▶ encapsulate ─▶ (out)
//!        │      │      └─▶ fragment ┴─────────────────────────────────┘          ▲
//!        │      └─▶ decapsulate ─▶ (session, fragment)                answer ────┴─▶ (out)
//!        └─▶ neighbour ─▶ (out)
//! ```
//!
//! A fragment without its first goes on to `wait`, which holds it outside of the graph; from there
//! it enters `fragment` again.
//!
//! Every node but `neighbour` and `encapsulate` may send packets to `answer`, which tells their
//! senders why they go no further.
//!
//! A node takes packets one after the other from its list and says for each where it goes: to
//! another node or to its end, an [`Outcome`]. Nodes only send packets forward, so one pass in
//! the order of [`Node::ALL`] is enough.

mod answer;
mod decapsulate;
mod encapsulate;
mod fragment;
mod neighbour;
mod open;
mod policy;
mod rewrite;
mod security;
mod service;
mod session;
pub mod trace;

use std::fmt::Write;
use std::sync::Arc;

use answer::Notices;
pub use fragment::Fragments;
use trace::{Tracer, Tracing};

use crate::Now;
use crate::counters::Counters;
use crate::cpu::clocks;
use crate::packet::{Packet, VECTOR};
use crate::policy::Cases;
use crate::session::{Sessions, Views};
use crate::wire::{self, Flow, Headers, Kind, Mac};
use crate::{Hop, Memory, Outcome, PortId, Snapshot};

/// The switch's own MAC address on every port: locally administered, "podgt".
pub const SWITCH_MAC: Mac = [0x02, b'p', b'o', b'd', b'g', b't'];

macro_rules! nodes {
    ($($(#[doc = $doc:literal])* $node:ident $name:literal to [$($next:ident),*],)*) => {
        /// How many nodes there are.
        pub const NODES: usize = [$($name,)*].len();

        /// A stage of the graph.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Node {
            $($(#[doc = $doc])* $node,)*
        }

        impl Node {
            /// All nodes, each before those it sends packets to.
            pub const ALL: [Self; NODES] = [$(Self::$node,)*];

            /// The name used in every output.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$node => $name,)* }
            }

            /// Where it may send packets.
            pub const fn next(self) -> &'static [Self] {
                match self { $(Self::$node => &[$(Self::$next,)*],)* }
            }
        }
    };
}

nodes! {
    /// Checks the headers.
    Parse "parse" to [Neighbour, Security],
    /// Answers ARP and neighbour solicitations.
    Neighbour "neighbour" to [],
    /// Holds ports to their own addresses.
    Security "security" to [Decapsulate, Session, Fragment, Answer],
    /// Takes packets out of tunnels, and holds tunnels to the addresses behind them.
    Decapsulate "decapsulate" to [Session, Fragment, Answer],
    /// Finds the connection a packet belongs to.
    Session "session" to [Service, Policy, Rewrite],
    /// Gives connections to services a backend.
    Service "service" to [Policy, Answer],
    /// Routes and judges packets that open a connection.
    Policy "policy" to [Open, Rewrite],
    /// Makes sessions of connections that may be opened.
    Open "open" to [Rewrite],
    /// Finds the connection of later fragments through their first.
    Fragment "fragment" to [Rewrite, Wait],
    /// Holds later fragments until their first is known.
    Wait "wait" to [],
    /// Prepares a packet for its way out.
    Rewrite "rewrite" to [Answer, Encapsulate],
    /// Tells senders why their packets go no further.
    Answer "answer" to [Encapsulate],
    /// Puts packets into tunnels.
    Encapsulate "encapsulate" to [],
}

/// The graph in Graphviz' language.
pub fn draw() -> String {
    let mut text = String::from("digraph podgate {\n  rankdir=LR;\n");
    for node in Node::ALL {
        for next in node.next() {
            writeln!(text, "  {} -> {};", node.name(), next.name()).expect("a string grows");
        }
    }
    text + "}\n"
}

/// Where a node sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Node(Node),
    End(Outcome),
}

/// What nodes work with, beside the packet.
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) memory: &'a Memory,
    pub(crate) sessions: &'a Sessions,
    pub(crate) fragments: &'a mut Fragments,
    pub(crate) notices: &'a mut Notices,
    translations: &'a mut Vec<Translation>,
    cases: &'a mut Cases<'static>,
    pub(crate) now: Now,
}

/// What is to be rewritten of one packet of the vector.
#[derive(Clone, Copy, Debug)]
struct Translation {
    /// Both sights of its connection.
    views: Views,
    /// The packet's own ends, as they are to be.
    to: Flow,
    /// The same for the packet that it quotes.
    quoted: Option<Flow>,
    /// Whether it goes back to where the connection was opened from.
    returns: bool,
}

/// Indices of the packets that wait for a node.
struct List {
    length: usize,
    items: [u8; VECTOR],
}

impl List {
    const EMPTY: Self = Self { length: 0, items: [0; VECTOR] };

    #[inline]
    fn push(&mut self, index: u8) {
        debug_assert!(self.length < VECTOR);
        self.items[self.length % VECTOR] = index;
        self.length += 1;
    }

    fn ends_with(&self, index: u8) -> bool {
        self.items[..self.length].last() == Some(&index)
    }
}

/// One worker's graph.
pub struct Graph {
    lists: [List; NODES],
    fragments: Fragments,
    notices: Notices,
    translations: Vec<Translation>,
    cases: Cases<'static>,
    tracer: Option<Box<Tracer>>,
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            lists: [List::EMPTY; NODES],
            fragments: Fragments::default(),
            notices: Notices::default(),
            translations: Vec::with_capacity(VECTOR),
            cases: Cases::default(),
            tracer: None,
        }
    }
}

impl Graph {
    /// Follows packets from the next vector on, or no longer; `worker` is the name it goes by.
    pub fn follow(&mut self, worker: u16, tracing: Option<Arc<Tracing>>) {
        self.tracer = tracing.map(|tracing| Box::new(Tracer::new(worker, tracing)));
    }

    /// Sends up to [`VECTOR`] packets through the graph; each has an outcome afterwards, but for
    /// those that wait and are to be given to [`hold`](Self::hold).
    pub fn run(
        &mut self,
        packets: &mut [Packet],
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) {
        self.run_from(Node::Parse, packets, snapshot, memory, sessions, counters, now);
    }

    /// Sends packets through the graph that have waited and may go on; `packets` is filled with
    /// them. `false` if there are none.
    pub fn resume(
        &mut self,
        packets: &mut Vec<Packet>,
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) -> bool {
        packets.extend(std::iter::from_fn(|| self.fragments.take_ready()).take(VECTOR));
        let resumes = !packets.is_empty();
        if resumes {
            self.run_from(Node::Fragment, packets, snapshot, memory, sessions, counters, now);
        }
        resumes
    }

    /// Has a packet wait that the graph gave no outcome.
    pub fn hold(&mut self, packet: Packet, now: Now) {
        self.fragments.hold(packet, now);
    }

    /// The next packet that waits no longer and has its outcome now.
    #[inline]
    pub fn take_ended(&mut self) -> Option<Packet> {
        self.fragments.take_ended()
    }

    /// Ends what has waited too long; `false` if nothing has.
    #[inline]
    pub fn expire(&mut self, now: Now) -> bool {
        let is_due = self.fragments.is_due(now);
        if is_due {
            self.fragments.expire(now);
        }
        is_due
    }

    /// Lets only so many packets wait that most of `frames` are left for others.
    pub fn fit(&mut self, frames: usize) {
        self.fragments.fit(frames);
    }

    /// Forgets what is known about a port that is gone; what waited ends.
    pub fn forget_port(&mut self, port: PortId) {
        self.fragments.forget(port);
    }

    /// Gives back every packet that waits.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        self.fragments.take_all()
    }

    #[allow(clippy::too_many_arguments, reason = "what a vector is handled with")]
    #[inline]
    fn run_from(
        &mut self,
        first: Node,
        packets: &mut [Packet],
        snapshot: &Snapshot,
        memory: &Memory,
        sessions: &Sessions,
        counters: &Counters,
        now: Now,
    ) {
        assert!(packets.len() <= VECTOR, "a vector has at most {VECTOR} packets");
        let Self { lists, fragments, notices, translations, cases, tracer } = self;
        translations.clear();
        let mut context =
            Context { snapshot, memory, sessions, fragments, notices, translations, cases, now };
        let mut follower = tracer.as_deref_mut();
        if let Some(tracer) = &mut follower {
            tracer.begin(&context, packets);
        }
        (0..packets.len()).for_each(|index| lists[first as usize].push(index as u8));
        for node in Node::ALL {
            let input = std::mem::replace(&mut lists[node as usize].length, 0);
            if input == 0 {
                continue;
            }
            let started = clocks();
            let mut at = 0;
            while at < input {
                let mut until = input;
                // Who follows packets sees them one at a time.
                if let Some(tracer) = &mut follower {
                    let index = lists[node as usize].items[at];
                    tracer.before(node, &context, index, &packets[usize::from(index)]);
                    until = at + 1;
                }
                let work = Work { node, from: at, until, counters };
                match node {
                    Node::Parse => work.each::<true>(lists, packets, &mut context, parse),
                    Node::Neighbour => {
                        work.each::<false>(lists, packets, &mut context, neighbour::step)
                    }
                    Node::Security => {
                        work.each::<false>(lists, packets, &mut context, security::step)
                    }
                    Node::Decapsulate => {
                        work.each::<false>(lists, packets, &mut context, decapsulate::step);
                    }
                    Node::Session => {
                        work.each::<false>(lists, packets, &mut context, session::step)
                    }
                    Node::Service => {
                        work.each::<false>(lists, packets, &mut context, service::step)
                    }
                    Node::Policy => {
                        let items = &lists[node as usize].items[at..until];
                        policy::judge(&mut context, packets, items);
                        work.each::<false>(lists, packets, &mut context, policy::step);
                    }
                    Node::Open => work.each::<false>(lists, packets, &mut context, open::step),
                    Node::Fragment => {
                        work.each::<false>(lists, packets, &mut context, fragment::step)
                    }
                    // Whoever runs the graph has them wait.
                    Node::Wait => {}
                    Node::Rewrite => work.each::<true>(lists, packets, &mut context, rewrite::step),
                    Node::Answer => work.each::<false>(lists, packets, &mut context, answer::step),
                    Node::Encapsulate => {
                        work.each::<false>(lists, packets, &mut context, encapsulate::step);
                    }
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
        context.fragments.refuse(packets, now);
        if let Some(follower) = follower {
            follower.finish(&context, packets);
            if follower.is_over() {
                *tracer = None;
            }
        }
    }
}

/// The part of a node's list that it works on.
struct Work<'a> {
    node: Node,
    from: usize,
    until: usize,
    counters: &'a Counters,
}

/// Packets ahead of the one worked on whose bytes are asked for. (Frames of a power of two in size
/// compete for few places in the cache, so that a vector of them does not stay there.)
const AHEAD: usize = 6;

impl Work<'_> {
    /// Takes the packets one after the other through `step`: a loop of its own for each node.
    #[inline(always)]
    fn each<'c, const READS_FRAMES: bool>(
        &self,
        lists: &mut [List; NODES],
        packets: &mut [Packet],
        context: &mut Context<'c>,
        step: impl Fn(&mut Context<'c>, &mut Packet) -> Next,
    ) {
        let items = lists[self.node as usize].items;
        let items = &items[self.from..self.until];
        for (n, &index) in items.iter().enumerate() {
            if READS_FRAMES && let Some(ahead) = items.get(n + AHEAD) {
                context.memory.prefetch(&packets[usize::from(*ahead)].frame);
            }
            let packet = &mut packets[usize::from(index)];
            match step(context, packet) {
                Next::Node(next) => {
                    debug_assert!(self.node.next().contains(&next));
                    lists[next as usize].push(index);
                }
                Next::End(outcome) => {
                    packet.outcome = Some(outcome);
                    self.counters.count(outcome);
                }
            }
        }
    }
}

#[inline]
fn parse(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let (frame, length) = (context.memory.bytes(&packet.frame), packet.frame.len());
    match wire::parse_into(frame, length, &mut packet.headers) {
        Err(outcome) => {
            // Nobody may take half-read headers for what the packet is.
            packet.headers = Headers::default();
            Next::End(outcome)
        }
        Ok(()) => match packet.headers.kind {
            Kind::Ipv4 | Kind::Ipv6 => {
                session::expect(context, packet);
                Next::Node(Node::Security)
            }
            Kind::Arp | Kind::NeighbourDiscovery => Next::Node(Node::Neighbour),
        },
    }
}

impl Context<'_> {
    /// Where a packet for `destination` goes and the port it leaves by, if it may leave there at
    /// all.
    #[inline]
    fn route(&self, packet: &Packet, destination: acl::Address) -> Result<(Hop, PortId), Outcome> {
        let Some(hop) = self.snapshot.route(destination) else { return Err(Outcome::NoRoute) };
        let Some((port, _)) = self.snapshot.way(hop) else { return Err(Outcome::PortGone) };
        let goes_back = port == packet.in_port && !self.translates(packet);
        if goes_back { Err(Outcome::NotLocal) } else { Ok((hop, port)) }
    }

    #[inline]
    fn translates(&self, packet: &Packet) -> bool {
        packet.translation != Packet::AS_IT_IS
    }

    /// Has the packet rewritten on its way out.
    fn translate(&mut self, packet: &mut Packet, translation: Translation) {
        packet.translation = self.translations.len() as u16;
        self.translations.push(translation);
    }

    fn translation(&self, packet: &Packet) -> Option<&Translation> {
        self.translations.get(usize::from(packet.translation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_send_packets_forward_only() {
        for node in Node::ALL {
            assert!(node.next().iter().all(|next| *next as u8 > node as u8), "{}", node.name());
        }
    }

    #[test]
    fn the_graph_can_be_drawn() {
        assert!(draw().contains("session -> rewrite;"));
    }
}
