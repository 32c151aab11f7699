//! One-sided rules: everything about the peer known beforehand.
//!
//! Where a rule looks at one end only, all that can match an address (or identity) is known
//! before any packet comes: a short list of rules, in order. Which of them is the first to
//! match depends on the key's service class alone, and is read from a row of cells. Lists that
//! ask for the same services in the same order share one row.
//!
//! ```text
//! identity ->  row   cells:  class ->  place in the list (0: none)
//!              slots         list:     place -> rule
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::service::{Service, ServiceIndex, Services, TooMany};
use crate::paged::{Paged, Pages};

/// No rule.
pub(super) const NONE: u32 = u32::MAX;

/// All rows and lists of a table.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    cells: Paged<u16, 2048>,
    slots: Paged<u32, 1024>,
    /// By class: the first rule that looks at no end at all.
    any: Arc<[u32]>,
}

/// Where the row and the list of one address or identity begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    cells: u32,
    slots: u32,
}

impl Rows {
    /// For lookups, one or many.
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_> {
        View { cells: self.cells.pages(), slots: self.slots.pages(), any: &self.any }
    }

    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes() + self.slots.bytes() + self.any.len() * 4
    }
}

/// What lookups see of [`Rows`].
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    cells: Pages<'a, u16, 2048>,
    slots: Pages<'a, u32, 1024>,
    any: &'a [u32],
}

impl View<'_> {
    /// The first rule of the list that matches keys of `class`.
    #[inline(always)]
    pub(super) fn lookup(self, row: Row, class: usize) -> u32 {
        let place = *self.cells.get(row.cells as usize + class);
        *self.slots.get(row.slots as usize + usize::from(place))
    }

    /// The first rule without ends that matches keys of `class`.
    #[inline(always)]
    pub(super) fn any(self, class: usize) -> u32 {
        self.any.get(class).copied().unwrap_or(NONE)
    }
}

/// Makes [`Rows`] and of the services they are indexed by.
#[derive(Clone, Debug)]
pub(super) struct RowsEditor {
    pub(super) rows: Arc<Rows>,
    pub(super) services: Arc<Services>,
    index: ServiceIndex,
    /// By service: the classes that match it.
    classes_of: Vec<Vec<u16>>,
    /// Cells in a row; room for more classes than there are.
    stride: usize,
    /// Rows by what their lists ask for.
    shapes: HashMap<Arc<[u32]>, u32, RandomState>,
    next_row: u32,
    next_slot: u32,
    pub(super) entries: usize,
    limits: Limits,
}

/// What rows may grow to before rules are left to the pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Entries of all lists.
    entries: usize,
    /// Cells of all rows.
    cells: usize,
}

impl Limits {
    /// In proportion to the number of rules.
    pub(super) const fn of(rules: usize) -> Self {
        Self { entries: 16 * rules + (1 << 16), cells: 32 * rules + (1 << 18) }
    }
}

impl RowsEditor {
    /// For these services.
    pub(super) fn new(
        services: impl Iterator<Item = Service>,
        limits: Limits,
    ) -> Result<Self, TooMany> {
        let mut index = ServiceIndex::new();
        let mut count = 0;
        for service in services {
            count += usize::from(index.add(service)?.1);
        }
        let services = Arc::new(index.services()?);
        Ok(Self::with(index, services, count, limits))
    }

    fn with(index: ServiceIndex, services: Arc<Services>, count: usize, limits: Limits) -> Self {
        let classes = index.classes();
        let stride = (classes + classes / 4 + 7).next_multiple_of(8);
        let matching = |service: u32| -> Vec<u16> {
            let classes = (0..classes).filter(|class| index.matches(*class, service));
            classes.map(|class| class as u16).collect()
        };
        let classes_of = (0..count as u32).map(matching).collect();
        let rows = Rows {
            cells: Paged::filled(stride, &0),
            slots: Paged::filled(1, &NONE),
            any: vec![NONE; stride].into(),
        };
        Self {
            rows: Arc::new(rows),
            services,
            index,
            classes_of,
            stride,
            shapes: HashMap::default(),
            next_row: 1,
            next_slot: 1,
            entries: 0,
            limits,
        }
    }

    /// For no service at all.
    pub(super) fn empty() -> Self {
        let index = ServiceIndex::new();
        let services = Arc::new(index.nothing());
        Self::with(index, services, 0, Limits::of(0))
    }

    /// The number of a service that was there when the editor was made.
    pub(super) fn service(&mut self, service: Service) -> Result<u32, TooMany> {
        self.index.add(service).map(|(number, _)| number)
    }

    /// Which classes match a service.
    fn classes_of(&self, service: u32) -> &[u16] {
        &self.classes_of[service as usize]
    }

    /// Sets the rules that look at no end, in order, each with its service.
    pub(super) fn set_any(&mut self, rules: impl Iterator<Item = (u32, u32)>) {
        let mut any = vec![NONE; self.stride];
        for (rule, service) in rules {
            for class in self.classes_of(service) {
                let first = &mut any[usize::from(*class)];
                *first = if *first == NONE { rule } else { *first };
            }
        }
        Arc::make_mut(&mut self.rows).any = any.into();
    }

    /// A list of rules in order, each with its service, no service twice.
    pub(super) fn place(&mut self, rules: &[(u32, u32)]) -> Result<Row, TooMany> {
        if rules.is_empty() {
            return Ok(Row::default());
        }
        self.entries += rules.len();
        if self.entries > self.limits.entries {
            return Err(TooMany);
        }
        let shape: Arc<[u32]> = rules.iter().map(|(_, service)| *service).collect();
        let cells = match self.shapes.get_mut(&shape) {
            Some(row) => *row as usize * self.stride,
            None => self.new_row(shape)?,
        };
        let slots = self.next_slot;
        self.next_slot += rules.len() as u32 + 1;
        let first = slots as usize;
        let array = &mut Arc::make_mut(&mut self.rows).slots;
        array.grow(first + 1 + rules.len(), &NONE);
        *array.get_mut(first) = NONE;
        for (place, (rule, _)) in rules.iter().enumerate() {
            *array.get_mut(first + 1 + place) = *rule;
        }
        Ok(Row { cells: cells as u32, slots })
    }

    fn new_row(&mut self, shape: Arc<[u32]>) -> Result<usize, TooMany> {
        if self.next_row as usize * self.stride > self.limits.cells {
            return Err(TooMany);
        }
        let row = self.next_row;
        self.next_row += 1;
        let base = row as usize * self.stride;
        let mut cells = vec![0_u16; self.stride];
        for (place, service) in shape.iter().enumerate() {
            for class in self.classes_of(*service) {
                let cell = &mut cells[usize::from(*class)];
                *cell = if *cell == 0 { place as u16 + 1 } else { *cell };
            }
        }
        let array = &mut Arc::make_mut(&mut self.rows).cells;
        array.grow(base + self.stride, &0);
        for (class, place) in cells.into_iter().enumerate() {
            if *array.get(base + class) != place {
                *array.get_mut(base + class) = place;
            }
        }
        self.shapes.insert(shape, row);
        Ok(base)
    }
}
