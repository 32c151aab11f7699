//! Sets of small numbers as words of bits.

/// The places of the bits that are set, ascending.
pub(super) fn ones(bits: &[u64]) -> impl Iterator<Item = usize> + '_ {
    bits.iter().enumerate().flat_map(|(at, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| at * 64 + left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            bit
        })
    })
}
