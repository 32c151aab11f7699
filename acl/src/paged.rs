//! Arrays whose versions share what did not change.
//!
//! An array is cut into pages behind reference counts. A clone copies nothing; the first write
//! after it copies the directory and the one page it touches, if another version still holds
//! them. So a writer can publish a version after every change while readers stay on theirs.
//!
//! ```text
//! Paged     directory -> page          fastest to read
//! Grouped   directory -> group -> page cheap to clone at millions of entries
//! ```

use std::collections::HashSet;
use std::iter::repeat_n;
use std::mem::size_of;
use std::sync::Arc;

/// An array in pages of `N` entries, `N` a power of two.
#[derive(Clone, Debug)]
pub(crate) struct Paged<T, const N: usize> {
    pages: Arc<[Arc<[T; N]>]>,
}

impl<T: Clone, const N: usize> Paged<T, N> {
    /// At least `length` entries that all read `value`, in one page that they share.
    pub(crate) fn filled(length: usize, value: &T) -> Self {
        let mut array = Self { pages: Arc::default() };
        array.grow(length, value);
        array
    }

    /// Makes room for `length` entries; new ones read `value`.
    pub(crate) fn grow(&mut self, length: usize, value: &T) {
        self.pages = match more(&self.pages, length.div_ceil(N)) {
            Some(more) => {
                let page = Arc::new(std::array::from_fn(|_| value.clone()));
                self.pages.iter().cloned().chain(repeat_n(page, more)).collect()
            }
            None => return,
        };
    }

    /// Entry `index`, which there must be room for.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &T {
        self.pages().get(index)
    }

    /// All entries for reading; for loops, which then look for the pages once.
    #[inline(always)]
    pub(crate) fn pages(&self) -> Pages<'_, T, N> {
        Pages(&self.pages)
    }

    /// Entry `index` for writing; copies its page if another version shares it.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut T {
        &mut Arc::make_mut(&mut Arc::make_mut(&mut self.pages)[index / N])[index % N]
    }

    /// Memory, pages shared within this array counted once.
    pub(crate) fn bytes(&self) -> usize {
        let pages: HashSet<_> = self.pages.iter().map(Arc::as_ptr).collect();
        pages.len() * size_of::<[T; N]>() + size_of_val(&*self.pages)
    }
}

/// The entries of a [`Paged`] array.
#[derive(Debug)]
pub(crate) struct Pages<'a, T, const N: usize>(&'a [Arc<[T; N]>]);

impl<T, const N: usize> Clone for Pages<'_, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const N: usize> Copy for Pages<'_, T, N> {}

impl<'a, T, const N: usize> Pages<'a, T, N> {
    /// Entry `index`, which there must be room for.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> &'a T {
        &self.0[index / N][index % N]
    }
}

/// Pages in a group.
const GROUP: usize = 32;

/// One group's pages.
type Group<T, const N: usize> = [Arc<[T; N]>; GROUP];

/// An array in groups of pages of `N` entries, `N` a power of two.
#[derive(Clone, Debug)]
pub(crate) struct Grouped<T, const N: usize> {
    groups: Arc<[Arc<Group<T, N>>]>,
}

impl<T: Clone, const N: usize> Grouped<T, N> {
    /// At least `length` entries that all read `value`, in one page that they share.
    pub(crate) fn filled(length: usize, value: &T) -> Self {
        let mut array = Self { groups: Arc::default() };
        array.grow(length, value);
        array
    }

    /// Makes room for `length` entries; new ones read `value`.
    pub(crate) fn grow(&mut self, length: usize, value: &T) {
        self.groups = match more(&self.groups, length.div_ceil(N * GROUP)) {
            Some(more) => {
                let page: Arc<[T; N]> = Arc::new(std::array::from_fn(|_| value.clone()));
                let group = Arc::new(std::array::from_fn(|_| Arc::clone(&page)));
                self.groups.iter().cloned().chain(repeat_n(group, more)).collect()
            }
            None => return,
        };
    }

    /// Entry `index`, which there must be room for.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &T {
        self.groups().get(index)
    }

    /// All entries for reading; for loops, which then look for the groups once.
    #[inline(always)]
    pub(crate) fn groups(&self) -> Groups<'_, T, N> {
        Groups(&self.groups)
    }

    /// Entry `index` for writing; copies page and group if another version shares them.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut T {
        let group = Arc::make_mut(&mut Arc::make_mut(&mut self.groups)[index / (N * GROUP)]);
        &mut Arc::make_mut(&mut group[index / N % GROUP])[index % N]
    }

    /// Memory, pages shared within this array counted once.
    pub(crate) fn bytes(&self) -> usize {
        let groups: HashSet<_> = self.groups.iter().map(Arc::as_ptr).collect();
        let pages: HashSet<_> =
            self.groups.iter().flat_map(|group| group.iter().map(Arc::as_ptr)).collect();
        pages.len() * size_of::<[T; N]>()
            + groups.len() * size_of::<Group<T, N>>()
            + size_of_val(&*self.groups)
    }
}

/// The entries of a [`Grouped`] array.
#[derive(Debug)]
pub(crate) struct Groups<'a, T, const N: usize>(&'a [Arc<Group<T, N>>]);

impl<T, const N: usize> Clone for Groups<'_, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const N: usize> Copy for Groups<'_, T, N> {}

impl<'a, T, const N: usize> Groups<'a, T, N> {
    /// Entry `index`, which there must be room for.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> &'a T {
        &self.0[index / (N * GROUP)][index / N % GROUP][index % N]
    }
}

/// How many parts a directory grows by to have `wanted`, or `None` if it has. A quarter more
/// than asked for, so that growing entry by entry stays cheap.
fn more<T>(parts: &[T], wanted: usize) -> Option<usize> {
    (wanted > parts.len()).then(|| (wanted - parts.len()).max(parts.len() / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_do_not_disturb_each_other() {
        let mut paged = Paged::<u32, 4>::filled(10, &7);
        let mut grouped = Grouped::<u32, 4>::filled(1000, &7);
        let (old_paged, old_grouped) = (paged.clone(), grouped.clone());
        *paged.get_mut(9) = 1;
        *grouped.get_mut(999) = 1;
        assert_eq!((*paged.get(9), *old_paged.get(9), *paged.get(8)), (1, 7, 7));
        assert_eq!((*grouped.get(999), *old_grouped.get(999), *grouped.get(998)), (1, 7, 7));
    }

    #[test]
    fn equal_pages_are_held_once() {
        let mut paged = Paged::<u32, 4>::filled(4000, &7);
        let before = paged.bytes();
        *paged.get_mut(9) = 1;
        assert_eq!(paged.bytes(), before + 16);
    }

    #[test]
    fn growing_keeps_what_was_there() {
        let mut grouped = Grouped::<u32, 4>::filled(4, &7);
        *grouped.get_mut(3) = 1;
        grouped.grow(4 * GROUP + 1, &8);
        assert_eq!((*grouped.get(3), *grouped.get(4 * GROUP)), (1, 8));
        let mut paged = Paged::<u32, 4>::filled(4, &7);
        *paged.get_mut(3) = 1;
        paged.grow(9, &8);
        assert_eq!((*paged.get(3), *paged.get(8)), (1, 8));
    }
}
