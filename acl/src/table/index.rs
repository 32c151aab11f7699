//! Numbers of things that stand elsewhere, by their hash.

/// Finds numbers by the hash of what they stand for.
#[derive(Debug)]
pub(super) struct Index {
    seed: u64,
    /// The upper half of a hash and a number, or [`FREE`]; a power of two of them.
    slots: Vec<(u32, u32)>,
    count: usize,
}

const FREE: u32 = u32::MAX;

/// Bits without a pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for Index {
    fn default() -> Self {
        Self { seed: crate::seed(), slots: vec![(0, FREE); 16], count: 0 }
    }
}

impl Index {
    /// The hash of these words.
    #[inline]
    pub(super) fn hash(&self, words: impl Iterator<Item = u64>) -> u64 {
        words.fold(self.seed, |hash, word| {
            let product = u128::from(hash ^ word) * u128::from(FACTOR);
            (product as u64 ^ (product >> 64) as u64).wrapping_add(FACTOR)
        })
    }

    /// The hash of these numbers, two in a word.
    #[inline]
    pub(super) fn hash_of(&self, numbers: &[u32]) -> u64 {
        let (pairs, rest) = numbers.as_chunks::<2>();
        let pairs = pairs.iter().map(|[a, b]| u64::from(*a) << 32 | u64::from(*b));
        let rest = rest.iter().map(|last| u64::from(*last));
        self.hash(pairs.chain(rest).chain([numbers.len() as u64]))
    }

    /// The number with this hash of which `is` holds; if there is none, it is `fresh` from now on.
    #[inline]
    pub(super) fn number(&mut self, hash: u64, fresh: u32, is: impl Fn(u32) -> bool) -> u32 {
        let tag = (hash >> 32) as u32;
        let mask = self.slots.len() - 1;
        let mut at = first(tag, self.slots.len());
        loop {
            match self.slots[at & mask] {
                (_, FREE) => break,
                (other, number) if other == tag && is(number) => return number,
                _ => at += 1,
            }
        }
        self.slots[at & mask] = (tag, fresh);
        self.count += 1;
        if self.count * 4 > self.slots.len() * 3 {
            self.grow();
        }
        fresh
    }

    #[cold]
    fn grow(&mut self) {
        let count = 4 * self.slots.len();
        let before = std::mem::replace(&mut self.slots, vec![(0, FREE); count]);
        for slot in before.into_iter().filter(|(_, number)| *number != FREE) {
            let mut at = first(slot.0, count);
            while self.slots[at & (count - 1)].1 != FREE {
                at += 1;
            }
            self.slots[at & (count - 1)] = slot;
        }
    }
}

/// Where the search for a tag begins among so many slots, a power of two.
fn first(tag: u32, slots: usize) -> usize {
    ((u64::from(tag) * slots as u64) >> 32) as usize
}

/// Numbers slices that differ.
#[derive(Debug)]
pub(super) struct Slices {
    /// One behind the other.
    pub(super) items: Vec<u32>,
    /// By number: where a slice begins. And where the next one would.
    starts: Vec<u32>,
    known: Index,
}

impl Default for Slices {
    fn default() -> Self {
        Self { items: Vec::new(), starts: vec![0], known: Index::default() }
    }
}

impl Slices {
    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Where a slice begins.
    pub(super) fn start(&self, number: u32) -> u32 {
        self.starts[number as usize]
    }

    pub(super) fn of(&self, number: u32) -> &[u32] {
        slice(&self.items, &self.starts, number)
    }

    /// The number of a slice, the next one if it is new.
    pub(super) fn number(&mut self, of: &[u32]) -> u32 {
        let Self { items, starts, known } = self;
        let fresh = starts.len() as u32 - 1;
        let number =
            known.number(known.hash_of(of), fresh, |number| slice(items, starts, number) == of);
        if number == fresh {
            self.push(of);
        }
        number
    }

    /// The number of a slice that is not sought again.
    pub(super) fn push(&mut self, of: &[u32]) -> u32 {
        self.items.extend(of);
        self.starts.push(self.items.len() as u32);
        self.starts.len() as u32 - 2
    }
}

fn slice<'a>(items: &'a [u32], starts: &[u32], number: u32) -> &'a [u32] {
    &items[starts[number as usize] as usize..starts[number as usize + 1] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_numbered_once() {
        let slices: Vec<Vec<u32>> =
            (0..3000).map(|number| vec![number; number as usize % 5]).collect();
        let mut known = Slices::default();
        let numbers: Vec<u32> = slices.iter().map(|slice| known.number(slice)).collect();
        // Those that are empty are one.
        assert_eq!(known.count(), 3000 - 600 + 1);
        for (slice, number) in slices.iter().zip(numbers) {
            assert_eq!(known.of(number), slice);
            assert_eq!(known.number(slice), number);
        }
    }
}
