//! Arrays whose versions share what did not change.
//!
//! An array is cut into pages behind reference counts. A clone copies nothing; the first write
//! after it copies the directory and the one page it touches, if another version still holds
//! them. So a writer can publish a version after every change while readers stay on theirs.

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
    pub(crate) fn get(&self, index: usize) -> &T {
        &self.pages[index / N][index % N]
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

/// Number of parts that a directory grows by to have `wanted`, or `None` if it has. A quarter more than
/// requested, so that growing entry by entry stays cheap.
fn more<T>(parts: &[T], wanted: usize) -> Option<usize> {
    (wanted > parts.len()).then(|| (wanted - parts.len()).max(parts.len() / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_do_not_disturb_each_other() {
        let mut paged = Paged::<u32, 4>::filled(10, &7);
        let old = paged.clone();
        *paged.get_mut(9) = 1;
        assert_eq!((*paged.get(9), *old.get(9), *paged.get(8)), (1, 7, 7));
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
        let mut paged = Paged::<u32, 4>::filled(4, &7);
        *paged.get_mut(3) = 1;
        paged.grow(9, &8);
        assert_eq!((*paged.get(3), *paged.get(8)), (1, 8));
    }
}
