//! Both fields' equivalence classes crossed into one table (recursive flow classification: Gupta
//! and McKeown, SIGCOMM 1999).
//!
//! Elements that the same rules fit are of one class. A pair of classes has one list, with every
//! rule that fits both ends, those over one end or none included. So a key costs one array access
//! for each end, one for the pair, and its transport class.

use std::collections::HashMap;

use ahash::RandomState;

use super::bits::ones;
use super::ends::{Ends, Kind};
use super::lists::{ListId, MakeLists};
use super::plan::Distinct;
use super::transport::TooMany;
use super::tuples::Numbered;
use crate::lpm::Lpm;

/// Lists by pair of classes.
#[derive(Debug)]
pub(super) struct Crossed {
    pub(super) fields: [CrossedField; 2],
    /// By pair: a number in `lists`.
    cells: Box<[u16]>,
    lists: Box<[ListId]>,
}

/// One field's classes.
#[derive(Debug)]
pub(super) struct CrossedField {
    pub(super) nets: Option<Lpm>,
    /// Whether elements are identities.
    pub(super) by_identity: bool,
    /// By element: its class, times the number of the other field's classes for the first field.
    of: Box<[u32]>,
    /// Classes there are.
    pub(super) classes: usize,
}

/// Most rules and most pairs of classes.
const MOST_RULES: usize = 2048;
const MOST_PAIRS: usize = 1 << 18;

impl Crossed {
    /// `None` if the classes of these rules, which ascend, are too many, or rules name one field
    /// both by networks and by peer sets.
    pub(super) fn new(
        rules: &[Numbered],
        ends: &[Ends; 2],
        lists: &mut impl MakeLists,
        distinct: &mut Distinct,
    ) -> Option<Self> {
        let kinds = [0, 1].map(|at: usize| match (ends[at].nets.is_empty(), ends[at].has_sets()) {
            (true, true) => Some(Kind::Set),
            (_, false) => Some(Kind::Net),
            (false, true) => None,
        });
        let ([Some(source), Some(destination)], ..=MOST_RULES) = (kinds, rules.len()) else {
            return None;
        };
        let fits =
            [Fits::new(rules, 0, &ends[0], source)?, Fits::new(rules, 1, &ends[1], destination)?];
        let [sources, destinations] = fits.each_ref().map(|fits| fits.classes.len());
        if sources * destinations > MOST_PAIRS {
            return None;
        }
        let (cells, lists) = cross(rules, &fits, lists, distinct).ok()?;
        let mut scale = destinations as u32;
        let mut at = 0;
        let fields = fits.map(|fits| {
            let field = CrossedField {
                nets: ends[at].lpm(),
                by_identity: ends[at].has_sets(),
                of: fits.of.iter().map(|class| class * scale).collect(),
                classes: fits.classes.len(),
            };
            (scale, at) = (1, 1);
            field
        });
        Some(Self { fields, cells: cells.into(), lists: lists.into() })
    }

    /// The list of a pair of elements.
    #[inline(always)]
    pub(super) fn list(&self, source: u32, destination: u32) -> ListId {
        let [sources, destinations] = &self.fields;
        let pair = sources.of[source as usize] + destinations.of[destination as usize];
        self.lists[usize::from(self.cells[pair as usize])]
    }

    pub(super) fn bytes(&self) -> usize {
        let field = |field: &CrossedField| {
            field.nets.as_ref().map_or(0, Lpm::bytes) + size_of_val(&*field.of)
        };
        self.fields.iter().map(field).sum::<usize>()
            + size_of_val(&*self.cells)
            + size_of_val(&*self.lists)
    }
}

impl CrossedField {
    /// The element of an identity.
    #[inline(always)]
    pub(super) fn of_identity(&self, identity: u32) -> u32 {
        // Identity 0 is in no set.
        if (identity as usize) < self.of.len() { identity } else { 0 }
    }
}

/// The rules that fit a class, as bits.
type Bits = Box<[u64]>;

/// Which rules fit the elements of one field.
struct Fits {
    /// By element.
    of: Vec<u32>,
    classes: Vec<Bits>,
}

impl Fits {
    fn new(rules: &[Numbered], at: usize, ends: &Ends, kind: Kind) -> Option<Self> {
        let words = rules.len().div_ceil(64);
        let none = vec![0_u64; words];
        let mut any = none.clone();
        let mut own = vec![None; ends.numbers(kind)];
        for (rule, of) in rules.iter().enumerate() {
            let end = of.ends[at];
            let bits = match end.kind {
                Kind::Any => &mut any,
                _ => own[end.number as usize].get_or_insert_with(|| none.clone()),
            };
            bits[rule / 64] |= 1 << (rule % 64);
        }
        let mut known: HashMap<Bits, u32, RandomState> = HashMap::default();
        let mut classes: Vec<Bits> = Vec::new();
        let mut of: Vec<u32> = Vec::with_capacity(ends.elements(kind));
        for element in 0..ends.elements(kind) as u32 {
            // A network adds its rules to those around, an identity those of the sets it is in.
            let (outer, covering): (&[u64], &[u32]) = match (kind, element) {
                (Kind::Net, 1..) => {
                    (&classes[of[ends.around(element) as usize] as usize], &[element])
                }
                (Kind::Set, _) => (&any, ends.members(element)),
                _ => (&any, &[]),
            };
            let mut bits = outer.to_vec();
            for own in covering.iter().filter_map(|end| own[*end as usize].as_ref()) {
                bits.iter_mut().zip(own).for_each(|(bits, own)| *bits |= own);
            }
            let class = *known.entry(bits.into()).or_insert_with_key(|bits| {
                classes.push(bits.clone());
                classes.len() as u32 - 1
            });
            of.push(class);
            if classes.len() > MOST_PAIRS / 2 {
                return None;
            }
        }
        Some(Self { of, classes })
    }
}

/// The list of every pair of classes.
fn cross(
    rules: &[Numbered],
    fits: &[Fits; 2],
    lists: &mut impl MakeLists,
    distinct: &mut Distinct,
) -> Result<(Vec<u16>, Vec<ListId>), TooMany> {
    let mut known: HashMap<Bits, u16, RandomState> = HashMap::default();
    let (mut cells, mut all) = (Vec::new(), Vec::new());
    let mut both = vec![0; rules.len().div_ceil(64)];
    for source in &fits[0].classes {
        for destination in &fits[1].classes {
            for (both, (source, destination)) in both.iter_mut().zip(source.iter().zip(destination))
            {
                *both = source & destination;
            }
            if let Some(list) = known.get(&*both) {
                cells.push(*list);
                continue;
            }
            let fitting = ones(&both).map(|rule| (rules[rule].rule, rules[rule].demand));
            let number = u16::try_from(all.len()).map_err(|_| TooMany)?;
            all.push(lists.list(distinct.of(fitting))?);
            known.insert(both.clone().into(), number);
            cells.push(number);
        }
    }
    Ok((cells, all))
}
