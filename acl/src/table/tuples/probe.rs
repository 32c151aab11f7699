//! Probes of tuples for a vector of keys.

use super::Tuples;
use crate::Key;
use crate::simd::VECTOR;
use crate::table::ends::Kind;
use crate::table::field::Field;
use crate::table::lists::Lists;

impl Field {
    /// The tuples that have a rule for one of these records, by kind.
    #[inline(always)]
    pub(in crate::table) fn tuples(&self, records: [u32; 3]) -> u32 {
        let of = |kind: Kind| match self.has_classes[kind as usize] {
            true => self.mask(records[kind as usize]),
            false => 0,
        };
        of(Kind::Net) | of(Kind::Set) | of(Kind::Any)
    }
}

impl Tuples {
    /// Probes tuples, step by step for all keys, so that cache misses overlap and no step waits
    /// for a guess about another.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the state of a vector's lookup")]
    pub(in crate::table) fn probe_each(
        &self,
        fields: &[Field; 2],
        keys: &[Key],
        classes: &[u32],
        masks: &mut [u32; VECTOR],
        record: impl Fn(usize, usize, Kind) -> u32,
        best: &mut [u32],
        lists: impl Lists,
    ) {
        let mut pairs = [0; VECTOR];
        let mut cells = [0; VECTOR];
        let mut left = Places::new();
        for at in 0..keys.len() {
            left.push_if(self.may_beat(masks[at], best[at]), at);
        }
        while left.count > 0 {
            for at in left.iter() {
                let record = |field: usize, kind: Kind| record(at, field, kind);
                (pairs[at], cells[at]) = self.probe(masks[at], fields, record);
                self.prefetch(cells[at]);
            }
            for at in left.take().iter() {
                let list = self.list(pairs[at], cells[at]);
                best[at] = best[at].min(lists.first(list, classes[at], &keys[at], best[at]));
                masks[at] &= masks[at].wrapping_sub(1);
                left.push_if(self.may_beat(masks[at], best[at]), at);
            }
        }
    }
}

/// Places of keys in a vector. Written always and kept if counted, so that nothing depends on
/// guessing a branch right.
#[derive(Clone, Copy)]
struct Places {
    list: [u8; VECTOR],
    count: usize,
}

impl Places {
    fn new() -> Self {
        Self { list: [0; VECTOR], count: 0 }
    }

    #[inline(always)]
    fn push_if(&mut self, kept: bool, place: usize) {
        self.list[self.count % VECTOR] = place as u8;
        self.count += usize::from(kept);
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.list[..self.count].iter().map(|place| usize::from(*place))
    }

    /// The places so far, as those to come are gathered anew.
    #[inline(always)]
    fn take(&mut self) -> Self {
        Self { count: std::mem::take(&mut self.count), ..*self }
    }
}
