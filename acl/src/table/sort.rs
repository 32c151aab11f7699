//! Sorting by numbers, some bits at a time: as many steps whatever their order.

/// A number to sort by, and what it belongs to.
pub(super) type Keyed = (u64, u32);

/// Bits that a pass sorts by, at most.
const DIGIT: u32 = 11;
/// So few are sorted by comparing.
const FEW: usize = 128;

/// Sorts by number; equal ones stay in their order.
pub(super) fn sort(items: &mut Vec<Keyed>) {
    if items.len() <= FEW {
        items.sort_by_key(|(key, _)| *key);
        return;
    }
    let bits = items.len().ilog2().min(DIGIT);
    let first = items[0].0;
    let mut differing = items.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    let mut sorted = vec![(0, 0); items.len()];
    while differing != 0 {
        let shift = differing.trailing_zeros();
        let digit = |key: u64| (key >> shift) as usize & ((1 << bits) - 1);
        let mut places = [0_u32; 1 << DIGIT];
        items.iter().for_each(|(key, _)| places[digit(*key)] += 1);
        let mut next = 0;
        for place in &mut places[..1 << bits] {
            next += std::mem::replace(place, next);
        }
        for item in items.iter() {
            let place = &mut places[digit(item.0)];
            sorted[*place as usize] = *item;
            *place += 1;
        }
        std::mem::swap(items, &mut sorted);
        differing &= u64::MAX.checked_shl(shift + bits).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_and_keeps_equal_ones_in_order() {
        let mut random = fastrand::Rng::with_seed(7);
        for count in [0, 1, 100, 129, 1000, 5000] {
            for mask in [0, 3, 0xff00, 0x1_0000_ffff, u64::MAX, 1 << 63 | 1] {
                let mut items: Vec<Keyed> =
                    (0..count).map(|at| (random.u64(..) & mask, at)).collect();
                let mut expected = items.clone();
                expected.sort();
                sort(&mut items);
                assert_eq!(items, expected, "{count} {mask:x}");
            }
        }
    }
}
