//! Lists while they are made: paths in a tree of rules.

use std::collections::HashMap;

use ahash::RandomState;

use crate::table::lists::add;
use crate::table::transport::Matching;

/// Lists of rules as paths in a tree.
pub(super) struct Paths<'a> {
    matching: Option<&'a Matching>,
    /// By path: the path before its last rule, and that rule.
    steps: Vec<(u32, u32)>,
    /// By path: the transport classes that its rules match.
    pub(super) seen: Vec<u64>,
    words: usize,
    children: HashMap<(u32, u32), u32, RandomState>,
}

impl<'a> Paths<'a> {
    pub(super) const EMPTY: u32 = 0;

    pub(super) fn new(matching: Option<&'a Matching>) -> Self {
        let words = matching.map_or(0, Matching::words);
        Self {
            matching,
            steps: vec![(0, 0)],
            seen: vec![0; words],
            words,
            children: HashMap::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.steps.len()
    }

    /// The path with one more rule; the same one if earlier rules match all that it matches.
    pub(super) fn extend(&mut self, path: u32, rule: u32, demand: u32) -> u32 {
        if let Some(child) = self.children.get(&(path, rule)) {
            return *child;
        }
        let child = self.steps.len() as u32;
        let first = path as usize * self.words;
        self.seen.extend_from_within(first..first + self.words);
        let at = self.seen.len() - self.words;
        let adds = self
            .matching
            .is_none_or(|matching| add(&mut self.seen[at..], matching.bits(demand as usize)));
        let child = if adds {
            self.steps.push((path, rule));
            child
        } else {
            self.seen.truncate(at);
            path
        };
        self.children.insert((path, rule), child);
        child
    }

    /// The rules of a path, in order.
    pub(super) fn rules(&self, mut path: u32) -> Vec<u32> {
        let mut rules = Vec::new();
        while path != Self::EMPTY {
            let (before, rule) = self.steps[path as usize];
            rules.push(rule);
            path = before;
        }
        rules.reverse();
        rules
    }
}
