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
use crate::{AddressMap, End, PeerSetId};

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
    /// Tuples of two-sided rules.
    tuples: Tuples,
}

#[derive(Clone, Debug, Default)]
struct Net {
    named: Named,
    /// Its number in [`Known`]; 0 before it has one.
    number: u32,
}

/// What the networks around one bring along.
#[derive(Clone, Default)]
struct Outer {
    rules: std::rc::Rc<Vec<(u32, u32)>>,
    tuples: Tuples,
}

/// Makes a [`Side`].
#[derive(Debug)]
pub(super) struct SideEditor {
    pub(super) side: Arc<Side>,
    nets: Nested<Net>,
    lpm: lpm::Editor,
    next: u32,
    sets: HashMap<PeerSetId, Named, RandomState>,
}

/// What a side needs of the rest of the table to write its rows.
pub(super) struct Context<'a> {
    pub(super) rows: &'a mut RowsEditor,
    pub(super) addresses: &'a AddressMap,
}

impl SideEditor {
    pub(super) fn new() -> Self {
        let side =
            Side { nets: None, of_nets: Known::new(), of_identities: Known::new(), identities: 0 };
        Self {
            side: Arc::new(side),
            nets: Nested::default(),
            lpm: lpm::Editor::default(),
            next: 1,
            sets: HashMap::default(),
        }
    }

    fn named(&mut self, end: &End) -> Option<&mut Named> {
        match end {
            End::Any => None,
            End::Net(net) => Some(&mut self.nets.entry(Prefix::new(net)?, Net::default).named),
            End::Set(set) => Some(self.sets.entry(*set).or_default()),
        }
    }

    /// Notes a one-sided rule, later rules first.
    pub(super) fn add_rule(&mut self, end: &End, rule: (u32, u32)) {
        if let Some(named) = self.named(end) {
            named.rules.push(rule);
        }
    }

    /// Notes a rule of a tuple.
    pub(super) fn add_tuple(&mut self, end: &End, tuple: u8) {
        if let Some(named) = self.named(end) {
            named.tuples |= 1 << tuple;
        }
    }

    /// Writes everything.
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
        self.write_identities(context.addresses, context)?;
        result
    }

    fn write_identities(
        &mut self,
        addresses: &AddressMap,
        context: &mut Context<'_>,
    ) -> Result<(), TooMany> {
        if self.sets.is_empty() {
            return Ok(());
        }
        let side = Arc::make_mut(&mut self.side);
        let known = &mut side.of_identities;
        for identity in addresses.identities() {
            let mut outer = Outer::default();
            for set in addresses.members(identity) {
                if let Some(named) = self.sets.get(set) {
                    outer = named.within(&outer);
                }
            }
            let row = context.rows.place(&outer.rules)?;
            known.set(identity.0, row, outer.tuples);
            side.identities = identity.0 + 1;
        }
        Ok(())
    }

    /// The side with all that was written.
    pub(super) fn version(&mut self) -> Arc<Side> {
        let nets = (self.next > 1).then(|| self.lpm.version());
        Arc::make_mut(&mut self.side).nets = nets;
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
        let inner = self.named.within(outer);
        let placed = context.rows.place(&inner.rules);
        known.set(self.number, placed.unwrap_or_default(), inner.tuples);
        (inner, placed.map(|_| ()))
    }
}

impl Named {
    /// What holds here, given what holds around: rules merged in order, and of two rules with
    /// the same service only the first.
    fn within(&self, outer: &Outer) -> Outer {
        let tuples = outer.tuples | self.tuples;
        if self.rules.is_empty() {
            return Outer { rules: std::rc::Rc::clone(&outer.rules), tuples };
        }
        let mut rules: Vec<(u32, u32)> = Vec::with_capacity(outer.rules.len() + self.rules.len());
        let (mut a, mut b) = (outer.rules.iter().peekable(), self.rules.iter().rev().peekable());
        loop {
            let first = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 <= y.0 => a.next(),
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
