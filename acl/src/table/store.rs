//! Rules by number, for tables that share them.

use std::sync::{Arc, OnceLock};

use crate::{Action, Rule};

/// The rules that a table was first compiled from, and those added since.
#[derive(Clone, Debug)]
pub(super) struct Store {
    base: Arc<[Rule]>,
    /// A bit for each rule of the base that permits: a rule itself takes two cache lines.
    permits: Arc<[u64]>,
    added: Arc<Added>,
}

/// Rules that are only ever added: later versions see more of them, earlier ones do not know
/// their numbers. Chunk `n` holds `64 << n` rules.
#[derive(Debug, Default)]
struct Added {
    chunks: [OnceLock<Box<[OnceLock<Rule>]>>; 26],
}

const FIRST_CHUNK: usize = 64;

impl Store {
    pub(super) fn new(base: Arc<[Rule]>) -> Self {
        let permits = |rules: &[Rule]| {
            let bits = rules.iter().map(|rule| u64::from(rule.action == Action::Permit));
            bits.rev().fold(0, |word, bit| word << 1 | bit)
        };
        let permits = base.chunks(64).map(permits).collect();
        Self { base, permits, added: Arc::default() }
    }

    pub(super) fn base(&self) -> &[Rule] {
        &self.base
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Rule> {
        let number = number as usize;
        self.base.get(number).or_else(|| {
            let (chunk, at) = place(number - self.base.len());
            self.added.chunks.get(chunk)?.get()?[at].get()
        })
    }

    /// Whether there is a rule of this number, and it permits.
    #[inline]
    pub(super) fn permits(&self, number: u32) -> bool {
        match self.permits.get(number as usize / 64) {
            Some(word) if (number as usize) < self.base.len() => word >> (number % 64) & 1 == 1,
            _ => self.get(number).is_some_and(|rule| rule.action == Action::Permit),
        }
    }

    /// Sets the rule of a number that has none yet; whether there was room.
    pub(super) fn add(&self, number: u32, rule: Rule) -> bool {
        let Some(number) = (number as usize).checked_sub(self.base.len()) else { return false };
        let (chunk, at) = place(number);
        self.added.chunks.get(chunk).is_some_and(|cells| {
            let fresh = || (0..FIRST_CHUNK << chunk).map(|_| OnceLock::new()).collect();
            cells.get_or_init(fresh)[at].set(rule).is_ok()
        })
    }
}

/// The chunk of an added rule and its place there.
fn place(added: usize) -> (usize, usize) {
    let chunk = (added / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, added - FIRST_CHUNK * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_place() {
        let permits = |number: u32| number.is_multiple_of(3);
        let action = |number| if permits(number) { Action::Permit } else { Action::Deny };
        let rule = |number: u32| Rule::new(action(number), number.to_string());
        let store = Store::new((0..130).map(rule).collect());
        for number in 130..1000 {
            assert!(store.get(number).is_none());
            assert!(store.add(number, rule(number)));
            assert!(!store.add(number, rule(number)), "taken");
        }
        for number in 0..1000 {
            assert_eq!(*store.get(number).unwrap().origin, *number.to_string());
            assert_eq!(store.permits(number), permits(number), "{number}");
        }
        assert!(!store.permits(1002));
    }
}
