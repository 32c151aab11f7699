//! One end of the rules: what an address or an identity can match there.
//!
//! Every network that a rule names at this end, and every identity that is in a peer set that
//! one names, is known with two things: the [`Row`] of one-sided rules, and the tuples that
//! hold two-sided ones. Both include what the networks around it, or the sets it is in, bring
//! along, so that one longest-prefix match or one array access tells all.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::pairs::Tuples;
use super::rows::{Row, RowsEditor};
use super::service::TooMany;
use crate::lpm::{self, Lpm};
use crate::nested::Nested;
use crate::paged::{Paged, Pages};
use crate::prefix::Prefix;
use crate::{AddressMap, End, Identity, PeerSetId};

/// What is known of one end.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// Networks, numbered from 1 in [`Lpm::lookup`]'s terms; `None` if no rule names one.
    pub(super) nets: Option<Lpm>,
    /// By network; at 0, what is known of an address in none.
    pub(super) of_nets: Known,
    /// By identity; empty if no rule names a set.
    pub(super) of_identities: Known,
    /// Identities covered; larger ones are in no set that counts.
    pub(super) identities: u32,
}

/// Rows and tuples by number.
#[derive(Clone, Debug)]
pub(super) struct Known {
    rows: Paged<Row, 1024>,
    tuples: Paged<Tuples, 1024>,
    /// Whether any row, or any tuple, is there at all; if not, nothing may be asked for.
    pub(super) has_rows: bool,
    pub(super) has_tuples: bool,
    /// One more than the largest number.
    count: usize,
}

impl Known {
    fn new() -> Self {
        Self {
            rows: Paged::filled(0, &Row::default()),
            tuples: Paged::filled(0, &0),
            has_rows: false,
            has_tuples: false,
            count: 1,
        }
    }

    #[inline(always)]
    pub(super) fn rows(&self) -> Pages<'_, Row, 1024> {
        self.rows.pages()
    }

    #[inline(always)]
    pub(super) fn tuples(&self) -> Pages<'_, Tuples, 1024> {
        self.tuples.pages()
    }

    fn set(&mut self, number: u32, row: Row, tuples: Tuples) {
        let at = number as usize;
        self.count = self.count.max(at + 1);
        self.has_rows |= row != Row::default();
        self.has_tuples |= tuples != 0;
        if self.has_rows {
            self.rows.grow(self.count, &Row::default());
            if *self.rows.get(at) != row {
                *self.rows.get_mut(at) = row;
            }
        }
        if self.has_tuples {
            self.tuples.grow(self.count, &0);
            if *self.tuples.get(at) != tuples {
                *self.tuples.get_mut(at) = tuples;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.rows.bytes() + self.tuples.bytes()
    }
}

impl Side {
    pub(super) fn bytes(&self) -> usize {
        self.nets.as_ref().map_or(0, Lpm::bytes) + self.of_nets.bytes() + self.of_identities.bytes()
    }
}

/// The rules that name one network or one set.
#[derive(Clone, Debug, Default)]
struct Named {
    /// One-sided rules in order, each with its service.
    rules: Vec<(u32, u32)>,
    /// Two-sided rules in each tuple.
    tuples: Vec<(u8, u32)>,
}

impl Named {
    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.tuples.is_empty()
    }

    fn bits(&self) -> Tuples {
        self.tuples.iter().fold(0, |bits, (tuple, _)| bits | 1 << tuple)
    }
}

#[derive(Clone, Debug, Default)]
struct Net {
    named: Named,
    /// Its number in [`Known`]; 0 before it has one.
    number: u32,
    /// What was last written there.
    row: Row,
    tuples: Tuples,
}

#[derive(Clone, Debug, Default)]
struct Set {
    named: Named,
    identities: Vec<u32>,
}

/// What the networks around one bring along.
#[derive(Clone, Default)]
struct Outer {
    rules: std::rc::Rc<Vec<(u32, u32)>>,
    tuples: Tuples,
}

/// Makes versions of a [`Side`].
#[derive(Debug)]
pub(super) struct SideEditor {
    pub(super) side: Arc<Side>,
    nets: Nested<Net>,
    lpm: lpm::Editor,
    lpm_changed: bool,
    free: Vec<u32>,
    next: u32,
    sets: HashMap<PeerSetId, Set, RandomState>,
    /// By identity: what was last written.
    rows: Vec<Row>,
}

/// What a side needs of the rest of the table to write its rows.
pub(super) struct Context<'a> {
    pub(super) rows: &'a mut RowsEditor,
    pub(super) addresses: &'a AddressMap,
    /// A rule's place in the order.
    pub(super) order: &'a dyn Fn(u32) -> u64,
}

impl SideEditor {
    pub(super) fn new() -> Self {
        let side =
            Side { nets: None, of_nets: Known::new(), of_identities: Known::new(), identities: 0 };
        Self {
            side: Arc::new(side),
            nets: Nested::default(),
            lpm: lpm::Editor::default(),
            lpm_changed: false,
            free: Vec::new(),
            next: 1,
            sets: HashMap::default(),
            rows: Vec::new(),
        }
    }

    fn named(&mut self, end: &End, addresses: &AddressMap) -> Option<&mut Named> {
        match end {
            End::Any => None,
            End::Net(net) => Some(&mut self.nets.entry(Prefix::new(net)?, Net::default).named),
            End::Set(set) => {
                let covered = self.side.identities;
                let known = self.sets.entry(*set).or_insert_with(|| Set {
                    named: Named::default(),
                    identities: (0..covered)
                        .filter(|identity| addresses.is_member(Identity(*identity), *set))
                        .collect(),
                });
                Some(&mut known.named)
            }
        }
    }

    /// Notes a one-sided rule; [`write`](Self::write) follows.
    pub(super) fn add_rule(&mut self, end: &End, rule: (u32, u32), context: &Context<'_>) {
        if let Some(named) = self.named(end, context.addresses) {
            let order = (context.order)(rule.0);
            let at = named.rules.partition_point(|(known, _)| (context.order)(*known) < order);
            named.rules.insert(at, rule);
        }
    }

    /// Forgets a one-sided rule; [`write`](Self::write) follows.
    pub(super) fn remove_rule(&mut self, end: &End, rule: u32, context: &Context<'_>) {
        if let Some(named) = self.named(end, context.addresses) {
            named.rules.retain(|(known, _)| *known != rule);
        }
    }

    /// Notes a rule of a tuple; whether anything is to be [written](Self::write).
    pub(super) fn add_tuple(&mut self, end: &End, tuple: u8, context: &Context<'_>) -> bool {
        let Some(named) = self.named(end, context.addresses) else { return false };
        match named.tuples.iter_mut().find(|(known, _)| *known == tuple) {
            Some((_, count)) => {
                *count += 1;
                false
            }
            None => {
                named.tuples.push((tuple, 1));
                true
            }
        }
    }

    /// Forgets a rule of a tuple; whether anything is to be [written](Self::write).
    pub(super) fn remove_tuple(&mut self, end: &End, tuple: u8, context: &Context<'_>) -> bool {
        let Some(named) = self.named(end, context.addresses) else { return false };
        named.tuples.iter_mut().filter(|(known, _)| *known == tuple).for_each(|(_, n)| *n -= 1);
        let before = named.tuples.len();
        named.tuples.retain(|(_, count)| *count > 0);
        named.tuples.len() < before
    }

    /// Writes what has changed for the addresses that `end` names.
    pub(super) fn write(&mut self, end: &End, context: &mut Context<'_>) -> Result<(), TooMany> {
        match end {
            End::Any => Ok(()),
            End::Net(net) => match Prefix::new(net) {
                Some(prefix) => self.write_net(prefix, context),
                None => Ok(()),
            },
            End::Set(set) => {
                let identities =
                    self.sets.get(set).map_or_else(Vec::new, |set| set.identities.clone());
                let done = self.write_identities(&identities, context);
                if self.sets.get(set).is_some_and(|set| set.named.is_empty()) {
                    self.sets.remove(set);
                }
                done
            }
        }
    }

    /// Writes everything, for a first version.
    pub(super) fn write_all(&mut self, context: &mut Context<'_>) -> Result<(), TooMany> {
        let mut result = Ok(());
        let Self { side, nets, lpm, next, .. } = self;
        let known = &mut Arc::make_mut(side).of_nets;
        nets.walk_all(Outer::default(), |prefix, net, outer| {
            if net.number == 0 {
                (net.number, *next) = (*next, *next + 1);
                lpm.set(prefix, Some(net.number - 1));
            }
            let (inner, done) = net.write(outer, known, context);
            result = result.and(done);
            inner
        });
        self.lpm_changed = true;
        self.extend(context.addresses, context)?;
        result
    }

    fn write_net(&mut self, prefix: Prefix, context: &mut Context<'_>) -> Result<(), TooMany> {
        let mut outer = Outer::default();
        for around in self.nets.around(prefix) {
            outer = around.named.within(&outer, context);
        }
        let Self { side, nets, lpm, lpm_changed, free, next, .. } = self;
        let Some(net) = nets.get_mut(prefix) else { return Ok(()) };
        let gone = net.named.is_empty();
        if net.number == 0 {
            net.number = free.pop().unwrap_or_else(|| {
                *next += 1;
                *next - 1
            });
            lpm.set(prefix, Some(net.number - 1));
            *lpm_changed = true;
        }
        let mut result = Ok(());
        // Tuples that were known around here before were known further in as well.
        let settled = net.named.rules.is_empty()
            && net.row == Row::default()
            && outer.rules.is_empty()
            && (outer.tuples | net.named.bits()) == net.tuples;
        if settled && !gone {
            return Ok(());
        }
        let known = &mut Arc::make_mut(side).of_nets;
        if !settled {
            nets.walk(prefix, outer, |_, net, outer| {
                let (inner, done) = net.write(outer, known, context);
                result = result.and(done);
                inner
            });
        }
        if gone && let Some(mut net) = nets.remove(prefix) {
            net.row = context.rows.place(net.row, &[])?;
            known.set(net.number, Row::default(), 0);
            lpm.set(prefix, None);
            *lpm_changed = true;
            free.push(net.number);
        }
        result
    }

    fn write_identities(
        &mut self,
        identities: &[u32],
        context: &mut Context<'_>,
    ) -> Result<(), TooMany> {
        if identities.is_empty() {
            return Ok(());
        }
        let known = &mut Arc::make_mut(&mut self.side).of_identities;
        for identity in identities {
            let mut outer = Outer::default();
            for set in context.addresses.members(Identity(*identity)) {
                if let Some(set) = self.sets.get(set) {
                    outer = set.named.within(&outer, context);
                }
            }
            let row = &mut self.rows[*identity as usize];
            *row = context.rows.place(*row, &outer.rules)?;
            known.set(*identity, *row, outer.tuples);
        }
        Ok(())
    }

    /// Covers the identities of `addresses` that are new since it was last asked.
    pub(super) fn extend(
        &mut self,
        addresses: &AddressMap,
        context: &mut Context<'_>,
    ) -> Result<(), TooMany> {
        let mut concerned = Vec::new();
        for identity in addresses.identities().skip(self.side.identities as usize) {
            let mut named = false;
            for set in addresses.members(identity) {
                if let Some(set) = self.sets.get_mut(set) {
                    set.identities.push(identity.0);
                    named = true;
                }
            }
            if named {
                concerned.push(identity.0);
            }
        }
        let count = addresses.identities().count();
        if count > self.rows.len() {
            self.rows.resize(count, Row::default());
            let side = Arc::make_mut(&mut self.side);
            side.identities = count as u32;
            side.of_identities.set(count as u32 - 1, Row::default(), 0);
        }
        self.write_identities(&concerned, context)
    }

    /// The side as it is now.
    pub(super) fn version(&mut self) -> Arc<Side> {
        if std::mem::take(&mut self.lpm_changed) {
            let nets = (self.next > 1).then(|| self.lpm.version());
            Arc::make_mut(&mut self.side).nets = nets;
        }
        Arc::clone(&self.side)
    }
}

impl Net {
    fn write(
        &mut self,
        outer: &Outer,
        known: &mut Known,
        context: &mut Context<'_>,
    ) -> (Outer, Result<(), TooMany>) {
        let inner = self.named.within(outer, context);
        let placed = context.rows.place(self.row, &inner.rules);
        self.row = placed.unwrap_or_default();
        self.tuples = inner.tuples;
        known.set(self.number, self.row, inner.tuples);
        (inner, placed.map(|_| ()))
    }
}

impl Named {
    /// What holds here, given what holds around: rules merged in order, and of two rules with
    /// the same service only the first.
    fn within(&self, outer: &Outer, context: &Context<'_>) -> Outer {
        let tuples = outer.tuples | self.bits();
        if self.rules.is_empty() {
            return Outer { rules: std::rc::Rc::clone(&outer.rules), tuples };
        }
        let mut rules: Vec<(u32, u32)> = Vec::with_capacity(outer.rules.len() + self.rules.len());
        let (mut a, mut b) = (outer.rules.iter().peekable(), self.rules.iter().peekable());
        loop {
            let first = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if (context.order)(x.0) <= (context.order)(y.0) => a.next(),
                (Some(_), None) => a.next(),
                _ => b.next(),
            };
            let Some(rule) = first else { break };
            if !rules.iter().any(|(_, service)| *service == rule.1) {
                rules.push(*rule);
            }
        }
        Outer { rules: std::rc::Rc::new(rules), tuples }
    }
}
