//! Equivalence classes of one field: elements that the same rules fit.

use std::collections::HashMap;
use std::rc::Rc;

use ahash::RandomState;

use crate::table::ends::{Ends, Kind};
use crate::table::tuples::Numbered;

/// The classes of one field's elements.
pub(super) struct Classes {
    /// By element.
    pub(super) of: Vec<u32>,
    /// By class: the rules that fit, ascending.
    pub(super) rules: Vec<Rc<[u32]>>,
}

impl Classes {
    /// `None` if the lists of rules are longer than `room` together.
    pub(super) fn new(
        rules: &[Numbered],
        at: usize,
        ends: &Ends,
        kind: Kind,
        room: usize,
    ) -> Option<Self> {
        let mut own = vec![Vec::new(); ends.numbers(kind)];
        for (number, rule) in (0_u32..).zip(rules) {
            own[rule.ends[at].number as usize].push(number);
        }
        let nothing: Rc<[u32]> = Rc::default();
        let mut known: HashMap<Rc<[u32]>, u32, RandomState> = HashMap::default();
        known.insert(Rc::clone(&nothing), 0);
        let mut classes =
            Self { of: Vec::with_capacity(ends.elements(kind)), rules: vec![nothing] };
        let mut total = 0;
        for element in 0..ends.elements(kind) as u32 {
            // A network adds its rules to those around, an identity those of the sets it is in.
            let mut fit: Vec<u32> = Vec::new();
            if kind == Kind::Net {
                let around =
                    if element == 0 { 0 } else { classes.of[ends.around(element) as usize] };
                if own[element as usize].is_empty() {
                    classes.of.push(around);
                    continue;
                }
                fit.extend(classes.rules[around as usize].iter());
                fit.extend(&own[element as usize]);
            } else {
                fit.extend(ends.members(element).iter().flat_map(|set| &own[*set as usize]));
            }
            // Made of runs that ascend, which the sort takes as they are.
            fit.sort();
            total += fit.len();
            if total > room {
                return None;
            }
            let class = *known.entry(fit.into()).or_insert_with_key(|fit| {
                classes.rules.push(Rc::clone(fit));
                classes.rules.len() as u32 - 1
            });
            classes.of.push(class);
        }
        Some(classes)
    }

    /// By rule: the classes that it covers.
    pub(super) fn classes_of(&self, rules: usize) -> Vec<Vec<u32>> {
        let mut classes_of = vec![Vec::new(); rules];
        for (class, rules) in (0..).zip(&self.rules) {
            rules.iter().for_each(|rule| classes_of[*rule as usize].push(class));
        }
        classes_of
    }
}
