//! Items by group, in flat arrays.

/// Items, one group behind the other.
pub(super) struct Groups<T> {
    /// By group: where its items begin. And two more numbers.
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy + Default> Groups<T> {
    /// So many groups, from their items, which are visited twice. Items of a group stay in their order.
    pub(super) fn new<I: Iterator<Item = (u32, T)>>(groups: usize, items: impl Fn() -> I) -> Self {
        let mut starts = vec![0_u32; groups + 2];
        items().for_each(|(group, _)| starts[group as usize + 2] += 1);
        (1..starts.len()).for_each(|group| starts[group] += starts[group - 1]);
        let mut sorted = vec![T::default(); starts[groups + 1] as usize];
        items().for_each(|(group, item)| {
            let next = &mut starts[group as usize + 1];
            sorted[*next as usize] = item;
            *next += 1;
        });
        Self { starts, items: sorted }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn of(&self, group: u32) -> &[T] {
        let [start, end] = [group, group + 1].map(|group| self.starts[group as usize] as usize);
        &self.items[start..end]
    }
}
