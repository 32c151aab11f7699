//! Lists while they are made: paths in a tree of rules.

use crate::table::index::Index;
use crate::table::transport::Matching;
use crate::table::tuples::Numbered;

/// Lists of rules as paths in a tree.
pub(super) struct Paths<'a> {
    matching: Option<&'a Matching>,
    /// Those of all paths.
    of: &'a [Numbered],
    /// By path: the path before its last rule, and that rule.
    steps: Vec<(u32, u32)>,
    /// By path: the transport classes that its rules match.
    pub(super) seen: Vec<u64>,
    words: usize,
    /// By rule: the path of it alone, or the empty one if there is none yet.
    alone: Vec<u32>,
    /// Longer paths.
    known: Index,
    /// Rules of the path that is looked at, and their demands.
    rules: Vec<(u32, u32)>,
}

impl<'a> Paths<'a> {
    pub(super) const EMPTY: u32 = 0;

    /// Paths of these rules.
    pub(super) fn new(matching: Option<&'a Matching>, of: &'a [Numbered]) -> Self {
        let words = matching.map_or(0, Matching::words);
        Self {
            matching,
            of,
            steps: vec![(0, 0)],
            seen: vec![0; words],
            words,
            alone: vec![Self::EMPTY; of.len()],
            known: Index::default(),
            rules: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.steps.len()
    }

    /// The path with one more rule, by its place; the same one if earlier rules match all that it matches.
    #[inline]
    pub(super) fn extend(&mut self, path: u32, rule: u32) -> u32 {
        let fresh = self.steps.len() as u32;
        let child = if path == Self::EMPTY {
            let alone = &mut self.alone[rule as usize];
            if *alone == Self::EMPTY {
                *alone = fresh;
            }
            *alone
        } else if self.holds(path, rule) {
            path
        } else {
            let hash = self.known.hash([u64::from(path) << 32 | u64::from(rule)].into_iter());
            let steps = &self.steps;
            self.known.number(hash, fresh, |child| steps[child as usize] == (path, rule))
        };
        if child == fresh {
            self.add(path, rule);
        }
        child
    }

    fn add(&mut self, path: u32, rule: u32) {
        self.steps.push((path, rule));
        let Some(matching) = self.matching else { return };
        let first = path as usize * self.words;
        let at = self.seen.len();
        self.seen.extend_from_within(first..first + self.words);
        matching.add(&mut self.seen[at..], self.of[rule as usize].demand);
    }

    /// Whether the rules of a path match all that another one matches.
    fn holds(&self, path: u32, rule: u32) -> bool {
        self.matching.is_some_and(|matching| {
            let seen = &self.seen[path as usize * self.words..][..self.words];
            !matching.adds(seen, self.of[rule as usize].demand)
        })
    }

    /// The rules of a path, in order, with their demands.
    pub(super) fn rules(&mut self, mut path: u32) -> &[(u32, u32)] {
        self.rules.clear();
        while path != Self::EMPTY {
            let (before, at) = self.steps[path as usize];
            let Numbered { rule, demand, .. } = self.of[at as usize];
            self.rules.push((rule, demand));
            path = before;
        }
        self.rules.reverse();
        &self.rules
    }
}
