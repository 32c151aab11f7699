//! The reference implementation: a linear search.

use crate::{Connection, Rule};

/// The most specific rule that matches; of equally specific ones the first.
pub fn lookup<'r>(rules: &'r [Rule], connection: &Connection) -> Option<&'r Rule> {
    let mut best: Option<&Rule> = None;
    for rule in rules.iter().filter(|rule| rule.matches(connection)) {
        if best.is_none_or(|best| rule.specificity() > best.specificity()) {
            best = Some(rule);
        }
    }
    best
}
