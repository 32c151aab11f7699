//! How lists are decided for sixteen keys at once, with AVX-512.

use super::lists::{ListId, Lists, Rows};
use super::scan::Scans;
use super::transport::TransportClasses;
use crate::Key;
use crate::simd::lanes::{LANES, Lanes, load, multiples, plus, splat, store};

/// What decides the lists of a vector's keys. By cuts, a key's *class* is its place in the vector.
#[derive(Clone, Copy)]
pub(super) enum Decider<'a> {
    /// By transport class.
    Rows(&'a TransportClasses, &'a Rows),
    /// By cuts and comparing, of these keys.
    Scans(&'a Scans, &'a [Key]),
}

impl Decider<'_> {
    /// Whether rows are [plain](Rows::plain).
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Self::Rows(_, rows) if rows.plain)
    }

    /// The classes of some steps of keys, which begin at a place in the vector.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn classes_lanes<const N: usize>(self, keys: &[Key], place: usize) -> [Lanes; N] {
        match self {
            Self::Rows(of, _) => of.classes_lanes(keys),
            Self::Scans(..) => {
                std::array::from_fn(|step| plus(multiples(1), splat((place + step * LANES) as u32)))
            }
        }
    }

    /// Takes the first rules of lists, each its rules and its cells, that keys of these classes match into
    /// `best`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn first_lanes<const N: usize>(
        self,
        lists: [[Lanes; 2]; N],
        classes: &[Lanes; N],
        best: &mut [Lanes; N],
    ) {
        let (scans, keys) = match self {
            Self::Rows(_, rows) => return rows.first_lanes(lists, classes, best),
            Self::Scans(scans, keys) => (scans, keys),
        };
        for ((best, lists), classes) in best.iter_mut().zip(lists).zip(classes) {
            let [mut rules, mut cells, mut places, mut found] = [[0; LANES]; 4];
            store(&mut rules, lists[0]);
            store(&mut cells, lists[1]);
            store(&mut places, *classes);
            store(&mut found, *best);
            for ((found, place), (rules, cells)) in
                found.iter_mut().zip(places).zip(rules.into_iter().zip(cells))
            {
                // Lanes beyond the last key have none.
                let Some(key) = keys.get(place as usize) else { break };
                *found = (*found).min(scans.first(ListId { rules, cells }, 0, key, *found));
            }
            *best = load(&found);
        }
    }
}
