//! Findings of the compiler about a rule set.

use std::fmt;

use super::plan::{Decide, Parts};

/// Findings of the compiler about a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Rules in the set.
    pub rules: usize,
    /// Rules that no key finds, as nothing matches them or an earlier rule matches all that they match.
    pub hidden: usize,
    /// Rules over one end or none that are in lists of their end.
    pub in_lists: usize,
    /// Tuples of other rules.
    pub tuples: usize,
    /// Pairs of equivalence classes over all tuples.
    pub pairs: usize,
    /// Rules that no tuple took; they are tried set by set.
    pub by_set: usize,
    /// Transport classes, if lists are decided by them; else lists are cut by ports.
    pub transport_classes: Option<usize>,
    /// Memory accesses of a lookup that depend on each other or on the key, at most.
    pub loads: usize,
    /// Memory of the compiled form.
    pub bytes: usize,
}

impl Report {
    /// The report of a table of `rules` rules, with `bytes` beside its parts.
    pub(super) fn new(parts: &Parts, rules: usize, bytes: usize) -> Self {
        // A list takes a row's cell and a rule, or a rule; or what its cut and its entries take.
        let (transport_classes, list, of_lists) = match &parts.lists {
            Decide::Rows(classes, rows) => {
                let loads = if rows.plain { 1 } else { 2 };
                (Some(rows.classes()), loads, classes.bytes() + rows.bytes())
            }
            Decide::Scans(scans) => (None, scans.loads(), scans.bytes()),
        };
        let with_lists = parts.fields.iter().filter(|field| field.has_lists).count();
        let mut report = Self {
            rules,
            hidden: rules - parts.rules,
            in_lists: parts.rules,
            tuples: 0,
            pairs: 0,
            by_set: 0,
            transport_classes,
            loads: with_lists * (1 + list) + if transport_classes.is_some() { 3 } else { 0 },
            bytes: bytes + of_lists + parts.fields.iter().map(|field| field.bytes()).sum::<usize>(),
        };
        if let Some(tuples) = &parts.tuples {
            report.in_lists -= tuples.rules;
            report.tuples = tuples.count;
            report.pairs = tuples.pairs;
            report.by_set = tuples.rest.rules;
            // The masks of both ends; a probe takes both classes, a displacement and a cell.
            report.loads += 2 + tuples.count * (4 + list) + tuples.rest.loads(list);
            report.bytes += tuples.bytes();
        }
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules, found: ", self.rules)?;
        if self.hidden > 0 {
            write!(f, "{} behind rules for all that they match, ", self.hidden)?;
        }
        match self.transport_classes {
            Some(classes) => write!(f, "{classes} transport classes")?,
            None => f.write_str("too many transport classes, lists cut by ports")?,
        }
        write!(f, ", {} rules in lists of one end", self.in_lists)?;
        let others = self.rules - self.hidden - self.in_lists;
        if others > 0 {
            let Self { tuples, pairs, .. } = self;
            write!(f, ", {others} in {tuples} tuples ({pairs} pairs of classes)")?;
        }
        if self.by_set > 0 {
            write!(f, ", {} of these tried set by set", self.by_set)?;
        }
        write!(f, "; at most {} loads a lookup, {} bytes", self.loads, self.bytes)
    }
}
