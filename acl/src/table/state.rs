//! Where every rule goes.

use std::sync::Arc;

use super::pairs::PairsEditor;
use super::rows::{Limits, RowsEditor};
use super::service::{Service, TooMany};
use super::side::{Context, SideEditor};
use crate::prefix::Prefix;
use crate::{AddressMap, End, Rule};

/// The parts of a table while it is compiled.
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
}

impl State {
    /// For rules in order.
    pub(super) fn new(rules: &[Rule], addresses: &Arc<AddressMap>) -> Self {
        let one_sided = rules.iter().filter(|rule| is_one_sided(rule)).count();
        let prefer_rows = 2 * one_sided >= rules.len();
        let first = prefer_rows.then(|| Self::build(rules, addresses, true).ok()).flatten();
        first.unwrap_or_else(|| {
            // Without rows there is nothing that could be too many: tuples are fitted.
            Self::build(rules, addresses, false).unwrap_or_else(|TooMany| Self::empty())
        })
    }

    fn empty() -> Self {
        let rows = RowsEditor::empty();
        Self {
            rows,
            uses_rows: false,
            pairs: PairsEditor::new(std::iter::empty()),
            sides: [SideEditor::new(), SideEditor::new()],
            any: Vec::new(),
        }
    }

    fn build(
        rules: &[Rule],
        addresses: &Arc<AddressMap>,
        uses_rows: bool,
    ) -> Result<Self, TooMany> {
        let rules: Vec<(u32, &Rule)> =
            (0..).zip(rules).filter(|(_, rule)| can_match(rule)).collect();
        let in_rows = |rule: &Rule| uses_rows && is_one_sided(rule);
        let services = rules.iter().filter(|(_, rule)| in_rows(rule));
        let pairs = rules.iter().map(|(_, rule)| *rule).filter(|rule| !in_rows(rule));
        let limits = Limits::of(rules.len());
        let mut state = Self {
            rows: RowsEditor::new(services.map(|(_, rule)| Service::of(rule)), limits)?,
            uses_rows,
            pairs: PairsEditor::new(pairs),
            ..Self::empty()
        };
        // Backwards, so that each rule goes to the front of its chain.
        for (number, rule) in rules.iter().rev() {
            state.note(*number, rule)?;
        }
        state.any.reverse();
        state.rows.set_any(state.any.iter().copied());
        let Self { rows, sides, .. } = &mut state;
        for side in sides {
            side.write_all(&mut Context { rows, addresses })?;
        }
        Ok(state)
    }

    /// Whether a rule goes to the rows.
    fn in_rows(&self, rule: &Rule) -> bool {
        self.uses_rows && is_one_sided(rule)
    }

    /// Puts a rule where it belongs.
    fn note(&mut self, number: u32, rule: &Rule) -> Result<(), TooMany> {
        let in_rows = self.in_rows(rule);
        let ends = [rule.source, rule.destination];
        if in_rows {
            let service = self.rows.service(Service::of(rule))?;
            let Some(end) = ends.iter().position(|end| *end != End::Any) else {
                self.any.push((number, service));
                return Ok(());
            };
            self.sides[end].add_rule(&ends[end], (number, service));
            return Ok(());
        }
        let tuple = self.pairs.insert(number, rule).ok_or(TooMany)?;
        for (side, end) in self.sides.iter_mut().zip(&ends) {
            side.add_tuple(end, tuple);
        }
        Ok(())
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
