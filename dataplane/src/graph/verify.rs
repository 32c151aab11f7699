//! Decides about some new connections again, by the definition of the rules.

use std::fmt;

use super::Context;
use crate::packet::Packet;
use crate::policy::definition;
use crate::wire::Flow;
use crate::{Counters, Outcome, Verdict};

/// A connection about which the tables and the definition of their rules disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Its original tuple.
    pub flow: Flow,
    /// The decision of the tables, which is in force.
    pub by_tables: Outcome,
    /// The decision of the definition.
    pub by_rules: Outcome,
    /// The snapshot.
    pub generation: u64,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flow, by_tables, by_rules, generation } = self;
        let Flow { source, destination, source_port, destination_port, protocol } = flow;
        write!(
            f,
            "{} port {source_port} to {} port {destination_port}, protocol {protocol}: {} by the tables, {} by \
             their rules (generation {generation})",
            source.to_ip(),
            destination.to_ip(),
            by_tables.name(),
            by_rules.name()
        )
    }
}

/// One worker's count of what it has verified.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    /// Decisions since the last one that was verified.
    since: u32,
    verified: u64,
    contradictions: Vec<Contradiction>,
}

impl Verifier {
    /// Counts what was verified since the last call.
    pub(super) fn report(&mut self, counters: &Counters) {
        counters.verified.add(std::mem::take(&mut self.verified));
        counters.contradicted.add(self.contradictions.len() as u64);
        if let Some(last) = self.contradictions.drain(..).next_back() {
            counters.set_contradiction(last);
        }
    }
}

/// Verifies one of so many decisions of [`classify`](super::policy::classify).
#[cold]
pub(super) fn sample(context: &mut Context<'_>, packets: &[Packet], items: &[u8]) {
    let snapshot = context.snapshot;
    for packet in items.iter().map(|index| &packets[usize::from(*index)]) {
        let Some(outcome @ (Outcome::PolicyAllowed | Outcome::PolicyDenied)) = packet.outcome
        else {
            continue;
        };
        context.verifier.since += 1;
        if context.verifier.since < snapshot.verify_every() {
            continue;
        }
        context.verifier.since = 0;
        let flow = match context.translation(packet) {
            None => packet.headers.flow,
            Some(_) => context.tuples(packet).policy_flow(),
        };
        let by_rules = definition::outcome(snapshot, &flow);
        let verifier = &mut *context.verifier;
        verifier.verified += 1;
        let permits = |outcome: Outcome| outcome.verdict() == Verdict::Forward;
        if permits(by_rules) != permits(outcome) {
            let generation = snapshot.generation;
            let found = Contradiction { flow, by_tables: outcome, by_rules, generation };
            verifier.contradictions.push(found);
        }
    }
}
