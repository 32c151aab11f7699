//! What the compiler found in a rule set, and what it chose.

use std::fmt;

use super::lists::ListId;
use super::plan::{ByEnds, Decide, Parts, Pruned};
use crate::Rule;

/// What the compiler found in a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Rules in the set.
    pub rules: usize,
    /// The structure chosen for the ends of rules.
    pub structure: Structure,
    /// Transport classes, if lists are decided by them; else lists are cut by ports.
    pub transport_classes: Option<usize>,
    /// Memory accesses of a lookup that depend on each other or on the key, at most.
    pub loads: usize,
    /// Memory of the compiled form.
    pub bytes: usize,
}

/// The structure that maps the ends of a key to rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// The classes of both fields are crossed.
    Crossed {
        /// Equivalence classes of sources and destinations.
        classes: [usize; 2],
    },
    /// Lists for each end; tuples for rules over both.
    Pruned {
        /// Rules over one end or none.
        in_lists: usize,
        /// Tuples of the others.
        tuples: usize,
        /// Pairs of equivalence classes over all tuples.
        pairs: usize,
        /// Rules in the largest tuple.
        largest: usize,
        /// Rules that no structure took; they are tried one by one.
        left: usize,
    },
}

impl Report {
    /// Of a table of `rules`, with `bytes` beside its parts.
    pub(super) fn new(parts: &Parts, rules: &[Rule], bytes: usize) -> Self {
        // A match goes down a trie of four levels; a list takes a row's cell and a rule.
        const MATCH: usize = 4;
        let (transport_classes, list, of_lists) = match &parts.lists {
            Decide::Rows(classes, rows) => {
                (Some(rows.classes()), 2, classes.bytes() + rows.bytes())
            }
            Decide::Scans(scans) => (None, scans.longest(), scans.bytes()),
        };
        let (structure, loads, of_ends) = match &parts.ends {
            ByEnds::Crossed(crossed) => {
                let matches = crossed.fields.iter().filter(|field| field.nets.is_some()).count();
                let classes = crossed.fields.each_ref().map(|field| field.classes);
                (Structure::Crossed { classes }, MATCH * matches + 4 + list, crossed.bytes())
            }
            ByEnds::Pruned(pruned) => {
                let Pruned { any, fields, tuples, in_lists } = &**pruned;
                let field = |field: &super::field::Field| {
                    let lists = field.has_lists.iter().filter(|has| **has).count();
                    let records = field.has_tuples.iter().zip(field.has_lists);
                    let records = records.filter(|(tuples, lists)| **tuples || *lists).count();
                    let matches = usize::from(field.nets.is_some());
                    MATCH * matches + records + list * lists
                };
                let any = if *any == ListId::EMPTY { 0 } else { list };
                // A probe takes both classes, a displacement and a cell.
                let probes = tuples.count() * (4 + list);
                let structure = Structure::Pruned {
                    in_lists: *in_lists,
                    tuples: tuples.count(),
                    pairs: tuples.pairs,
                    largest: tuples.largest,
                    left: tuples.rest.len(),
                };
                let loads = fields.iter().map(field).sum::<usize>() + any + probes;
                let of_fields = fields.iter().map(|field| field.bytes()).sum::<usize>();
                (structure, loads + tuples.rest.len(), of_fields + tuples.bytes())
            }
        };
        let transport = if transport_classes.is_some() { 3 } else { 0 };
        Self {
            rules: rules.len(),
            structure,
            transport_classes,
            loads: loads + transport,
            bytes: bytes + of_lists + of_ends,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules, found: ", self.rules)?;
        match self.transport_classes {
            Some(classes) => write!(f, "{classes} transport classes")?,
            None => f.write_str("too many transport classes, lists cut by ports")?,
        }
        match self.structure {
            Structure::Crossed { classes: [sources, destinations] } => {
                write!(f, ", {sources} x {destinations} classes of ends crossed")?;
            }
            Structure::Pruned { in_lists, tuples, pairs, left, .. } => {
                write!(f, ", {in_lists} rules in lists of one end")?;
                if tuples > 0 {
                    write!(
                        f,
                        ", {} in {tuples} tuples ({pairs} pairs of classes)",
                        self.rules - in_lists
                    )?;
                }
                if left > 0 {
                    write!(f, ", {left} tried one by one")?;
                }
            }
        }
        write!(f, "; at most {} loads a lookup, {} bytes", self.loads, self.bytes)
    }
}
