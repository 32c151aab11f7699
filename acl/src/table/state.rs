//! What an editor knows of a table: where every rule went.

use std::sync::Arc;

use super::pairs::PairsEditor;
use super::rows::{Limits, RowsEditor};
use super::service::{Service, TooMany};
use super::side::{Context, SideEditor};
use crate::prefix::Prefix;
use crate::{AddressMap, End, Rule};

/// The parts of a table in their editable form.
///
/// ```text
/// rule looks at     goes to
/// no end            rows.any
/// one end           rows, by network or identity of that end
/// both ends         pairs; each end notes the tuple
/// ```
///
/// Where rows would grow too large, or rules over both ends prevail, all go to the pairs.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rows: RowsEditor,
    pub(super) uses_rows: bool,
    pub(super) pairs: PairsEditor,
    /// Source and destination.
    pub(super) sides: [SideEditor; 2],
    /// Rules without ends, in order, each with its service.
    any: Vec<(u32, u32)>,
    addresses: Arc<AddressMap>,
}

impl State {
    /// For rules in order, each with its number.
    pub(super) fn new(
        rules: &[(u32, &Rule)],
        order: &dyn Fn(u32) -> u64,
        addresses: &Arc<AddressMap>,
    ) -> Self {
        let one_sided = rules.iter().filter(|(_, rule)| is_one_sided(rule)).count();
        let prefer_rows = 2 * one_sided >= rules.len();
        let first = prefer_rows.then(|| Self::build(rules, order, addresses, true).ok()).flatten();
        first.unwrap_or_else(|| {
            // Without rows there is nothing that could be too many: tuples are fitted.
            Self::build(rules, order, addresses, false)
                .unwrap_or_else(|TooMany| Self::empty(addresses))
        })
    }

    fn empty(addresses: &Arc<AddressMap>) -> Self {
        let rows = RowsEditor::empty();
        Self {
            rows,
            uses_rows: false,
            pairs: PairsEditor::new(std::iter::empty()),
            sides: [SideEditor::new(), SideEditor::new()],
            any: Vec::new(),
            addresses: Arc::clone(addresses),
        }
    }

    fn build(
        rules: &[(u32, &Rule)],
        order: &dyn Fn(u32) -> u64,
        addresses: &Arc<AddressMap>,
        uses_rows: bool,
    ) -> Result<Self, TooMany> {
        let rules: Vec<(u32, &Rule)> =
            rules.iter().filter(|(_, rule)| can_match(rule)).copied().collect();
        let in_rows = |rule: &Rule| uses_rows && is_one_sided(rule);
        let services = rules.iter().filter(|(_, rule)| in_rows(rule));
        let pairs = rules.iter().map(|(_, rule)| *rule).filter(|rule| !in_rows(rule));
        let limits = Limits::of(rules.len());
        let mut state = Self {
            rows: RowsEditor::new(services.map(|(_, rule)| Service::of(rule)), limits)?,
            uses_rows,
            pairs: PairsEditor::new(pairs),
            ..Self::empty(addresses)
        };
        // Backwards, so that each rule goes to the front of its chain.
        for (number, rule) in rules.iter().rev() {
            state.note(*number, rule, order)?;
        }
        state.rows.set_any(state.any.iter().copied());
        let Self { rows, sides, .. } = &mut state;
        for side in sides {
            side.write_all(&mut Context { rows, addresses, order })?;
        }
        Ok(state)
    }

    /// Whether a rule goes to the rows.
    fn in_rows(&self, rule: &Rule) -> bool {
        self.uses_rows && is_one_sided(rule)
    }

    /// Puts a rule where it belongs; which ends must be written afterwards.
    fn note(
        &mut self,
        number: u32,
        rule: &Rule,
        order: &dyn Fn(u32) -> u64,
    ) -> Result<[bool; 2], TooMany> {
        let in_rows = self.in_rows(rule);
        let ends = [rule.source, rule.destination];
        if in_rows {
            let service = self.rows.service(Service::of(rule))?;
            let Some(end) = ends.iter().position(|end| *end != End::Any) else {
                let at = self.any.partition_point(|(known, _)| order(*known) < order(number));
                self.any.insert(at, (number, service));
                return Ok([false; 2]);
            };
            let Self { rows, sides, addresses, .. } = self;
            let context = Context { rows, addresses, order };
            sides[end].add_rule(&ends[end], (number, service), &context);
            return Ok([end == 0, end == 1]);
        }
        let tuple = self.pairs.insert(number, rule, order).ok_or(TooMany)?;
        let Self { rows, sides, addresses, .. } = self;
        let context = Context { rows, addresses, order };
        let [source, destination] = sides;
        Ok([
            source.add_tuple(&ends[0], tuple, &context),
            destination.add_tuple(&ends[1], tuple, &context),
        ])
    }

    /// Adds a rule. After an error the state must be built anew.
    pub(super) fn insert(
        &mut self,
        number: u32,
        rule: &Rule,
        order: &dyn Fn(u32) -> u64,
    ) -> Result<(), TooMany> {
        if !can_match(rule) {
            return Ok(());
        }
        let write = self.note(number, rule, order)?;
        self.write(rule, write, order)
    }

    /// Takes a rule out. After an error the state must be built anew.
    pub(super) fn remove(
        &mut self,
        number: u32,
        rule: &Rule,
        order: &dyn Fn(u32) -> u64,
    ) -> Result<(), TooMany> {
        if !can_match(rule) {
            return Ok(());
        }
        let in_rows = self.in_rows(rule);
        let ends = [rule.source, rule.destination];
        let mut write = [false; 2];
        let tuple = if in_rows { None } else { self.pairs.remove(number, rule) };
        self.any.retain(|(known, _)| *known != number);
        let Self { rows, sides, addresses, .. } = self;
        let context = Context { rows, addresses, order };
        for at in 0..2 {
            if in_rows && ends[at] != End::Any {
                sides[at].remove_rule(&ends[at], number, &context);
                write[at] = true;
            }
            if let Some(tuple) = tuple {
                write[at] = sides[at].remove_tuple(&ends[at], tuple, &context);
            }
        }
        self.write(rule, write, order)
    }

    fn write(
        &mut self,
        rule: &Rule,
        write: [bool; 2],
        order: &dyn Fn(u32) -> u64,
    ) -> Result<(), TooMany> {
        if self.in_rows(rule) && write == [false; 2] {
            self.rows.set_any(self.any.iter().copied());
        }
        let Self { rows, sides, addresses, .. } = self;
        let mut context = Context { rows, addresses, order };
        let ends = [rule.source, rule.destination];
        for at in (0..2).filter(|at| write[*at]) {
            sides[at].write(&ends[at], &mut context)?;
        }
        Ok(())
    }

    /// Takes over a later version of the same address map.
    pub(super) fn set_addresses(
        &mut self,
        addresses: &Arc<AddressMap>,
        order: &dyn Fn(u32) -> u64,
    ) -> Result<(), TooMany> {
        self.addresses = Arc::clone(addresses);
        let Self { rows, sides, .. } = self;
        for side in sides {
            side.extend(addresses, &mut Context { rows, addresses, order })?;
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> &Arc<AddressMap> {
        &self.addresses
    }

    /// Rules without ends.
    pub(super) fn any(&self) -> usize {
        self.any.len()
    }
}

fn is_one_sided(rule: &Rule) -> bool {
    rule.source == End::Any || rule.destination == End::Any
}

/// Whether any packet at all could match.
fn can_match(rule: &Rule) -> bool {
    let end = |end: &End| match end {
        End::Net(net) => Prefix::new(net).is_some(),
        End::Any | End::Set(_) => true,
    };
    end(&rule.source)
        && end(&rule.destination)
        && rule.source_ports.first <= rule.source_ports.last
        && rule.destination_ports.first <= rule.destination_ports.last
        && rule.tcp_flags.value & !rule.tcp_flags.mask == 0
}
