//! Classes of ports, by protocol group.

#![allow(unsafe_code)]

use std::collections::HashMap;

use ahash::RandomState;

/// Classes of ports, by protocol group.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    /// By group and upper half of the port: a page. And one more number.
    pub(super) pages_of: Vec<u16>,
    /// By page and lower half: a class. And one more number.
    pub(super) classes: Vec<u16>,
}

impl Ports {
    /// From the classes of each group: first port and class, ascending from port 0.
    pub(super) fn new(groups: &[Vec<(u16, u16)>]) -> Self {
        let mut ports = Self::default();
        let mut known: HashMap<[u16; 256], u16, RandomState> = HashMap::default();
        let mut pages = 0;
        // Class and number of the last page that is of one class throughout, as most are.
        let mut plain = None;
        for ranges in groups {
            let mut ranges = ranges.iter().peekable();
            let mut class = 0;
            for upper in 0..=255_u16 {
                let is_plain = ranges.peek().is_none_or(|(first, _)| first >> 8 > upper);
                if let (true, Some((of, number))) = (is_plain, plain)
                    && of == class
                {
                    ports.pages_of.push(number);
                    continue;
                }
                let page: [u16; 256] = std::array::from_fn(|lower| {
                    while let Some((_, next)) =
                        ranges.next_if(|(first, _)| *first <= upper << 8 | lower as u16)
                    {
                        class = *next;
                    }
                    class
                });
                let number = *known.entry(page).or_insert_with(|| {
                    ports.classes.extend(page);
                    pages += 1;
                    pages - 1
                });
                ports.pages_of.push(number);
                if is_plain {
                    plain = Some((class, number));
                }
            }
        }
        ports.pages_of.push(0);
        ports.classes.push(0);
        ports
    }

    /// The class of a port; `group` is times 256.
    #[inline(always)]
    pub(super) fn class(&self, group: u32, port: u16) -> u32 {
        let at = (group | u32::from(port >> 8)) as usize;
        debug_assert!(at < self.pages_of.len());
        // SAFETY: each group has a number for each of 256 upper halves, each of which is a page's.
        unsafe {
            let page = usize::from(*self.pages_of.get_unchecked(at));
            let class = page << 8 | usize::from(port & 255);
            debug_assert!(class < self.classes.len());
            u32::from(*self.classes.get_unchecked(class))
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.pages_of.len() + self.classes.len()) * 2
    }
}
