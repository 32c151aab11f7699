//! Findings of the compiler about a rule set, and its choice of structure.

use std::fmt;

use super::crossed::Layer;
use super::field::Field;
use super::lists::ListId;
use super::plan::{BothEnds, ByEnds, Decide, Parts};
use super::ranges::Ranges;
use crate::Rule;

/// Findings of the compiler about a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Rules in the set.
    pub rules: usize,
    /// Rules that no key finds, as nothing matches them or earlier rules match all that they match.
    pub hidden: usize,
    /// Rules over one end or none, which are in lists of their end.
    pub in_lists: usize,
    /// The structure chosen for rules over both ends.
    pub structure: Structure,
    /// Transport classes, if lists are decided by them; else lists are cut by ports.
    pub transport_classes: Option<usize>,
    /// Memory accesses of a lookup that depend on each other or on the key, at most.
    pub loads: usize,
    /// Memory of the compiled form.
    pub bytes: usize,
}

/// The structure that holds rules over both ends; rules over one end are in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// No rule looks at both ends.
    OneEnd,
    /// The classes of both fields are crossed.
    Crossed {
        /// Layers of pairs; each rule is in one.
        layers: usize,
        /// Equivalence classes of sources and destinations, in the layer that has most rules.
        classes: [usize; 2],
        /// Distinct lists of pairs, over all layers.
        lists: usize,
    },
    /// Pairs of classes in tuples.
    Tuples {
        /// How many tuples.
        tuples: usize,
        /// Pairs of equivalence classes over all tuples.
        pairs: usize,
        /// Rules in the largest tuple.
        largest: usize,
        /// Rules over peer sets that no tuple took; they are tried set by set.
        by_set: usize,
        /// Other rules that no tuple took; they are tried network by network.
        by_net: usize,
    },
}

impl Report {
    /// Of a table of `rules`, with `bytes` beside its parts.
    pub(super) fn new(parts: &Parts, rules: &[Rule], bytes: usize) -> Self {
        // A list takes a row's cell and a rule, or a rule; or what its cuts and leaves take.
        let (transport_classes, list, of_lists) = match &parts.lists {
            Decide::Rows(classes, rows) => {
                let loads = if rows.plain { 1 } else { 2 };
                (Some(rows.classes()), loads, classes.bytes() + rows.bytes())
            }
            Decide::Scans(scans) => (None, scans.loads(), scans.bytes()),
        };
        let ByEnds { any, fields, both, in_lists } = &parts.ends;
        let field = |field: &Field| {
            let lists = field.has_lists.iter().filter(|has| **has).count();
            let records = field.has_classes.iter().zip(field.has_lists);
            let records = records.filter(|(classes, lists)| **classes || *lists).count();
            field.nets.as_ref().map_or(0, Ranges::loads) + records + list * lists
        };
        let (structure, of_both, bytes_of_both) = match both {
            BothEnds::Nothing => (Structure::OneEnd, 0, 0),
            BothEnds::Crossed(crossed) => {
                let layers = crossed.layers.len();
                let classes = crossed.layers.first().map_or([0; 2], |layer| layer.classes);
                let lists = crossed.layers.iter().map(Layer::lists).sum();
                // In a layer both classes, a block, a cell and the list.
                let structure = Structure::Crossed { layers, classes, lists };
                (structure, layers * (5 + list), crossed.bytes())
            }
            BothEnds::Tuples(tuples) => {
                let structure = Structure::Tuples {
                    tuples: tuples.count(),
                    pairs: tuples.pairs,
                    largest: tuples.largest,
                    by_set: tuples.by_set.rules,
                    by_net: tuples.by_net.rules,
                };
                // A probe takes both classes, a displacement and a cell.
                let loads = tuples.count() * (4 + list)
                    + tuples.by_set.loads(list)
                    + tuples.by_net.loads(list);
                (structure, loads, tuples.bytes())
            }
        };
        let any = if *any == ListId::EMPTY { 0 } else { list };
        let transport = if transport_classes.is_some() { 3 } else { 0 };
        let of_fields = fields.iter().map(|field| field.bytes()).sum::<usize>();
        Self {
            rules: rules.len(),
            hidden: rules.len() - parts.rules,
            in_lists: *in_lists,
            structure,
            transport_classes,
            loads: fields.iter().map(field).sum::<usize>() + any + of_both + transport,
            bytes: bytes + of_lists + of_fields + bytes_of_both,
        }
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
        let of_both = self.rules - self.hidden - self.in_lists;
        match self.structure {
            Structure::OneEnd => {}
            Structure::Crossed { layers, classes: [sources, destinations], lists } => {
                write!(f, ", {of_both} over both: {sources} x {destinations} classes crossed")?;
                if layers > 1 {
                    write!(f, " and {} layers of wider rules", layers - 1)?;
                }
                write!(f, " ({lists} lists)")?;
            }
            Structure::Tuples { tuples, pairs, by_set, by_net, .. } => {
                write!(f, ", {of_both} over both in {tuples} tuples ({pairs} pairs of classes)")?;
                if by_set > 0 {
                    write!(f, ", {by_set} tried set by set")?;
                }
                if by_net > 0 {
                    write!(f, ", {by_net} tried network by network")?;
                }
            }
        }
        write!(f, "; at most {} loads a lookup, {} bytes", self.loads, self.bytes)
    }
}
