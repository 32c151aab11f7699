//! Networks nested in each other, with something attached to each.

use std::collections::BTreeMap;

use crate::prefix::{Prefix, mask};

/// Networks in an order that puts each before those inside it.
#[derive(Clone, Debug)]
pub(crate) struct Nested<T> {
    nodes: BTreeMap<Order, (Prefix, T)>,
    /// Networks by family (IPv4 second) and length.
    lengths: [[u32; 129]; 2],
}

type Order = (bool, u128, u8);

impl<T> Default for Nested<T> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), lengths: [[0; 129]; 2] }
    }
}

impl<T> Nested<T> {
    /// Takes networks in ascending [order](Prefix::order), each once.
    pub(crate) fn from_sorted(nodes: impl Iterator<Item = (Prefix, T)>) -> Self {
        let nodes = nodes.map(|(prefix, node)| (prefix.order(), (prefix, node))).collect();
        let mut nested = Self { nodes, ..Self::default() };
        for (prefix, _) in nested.nodes.values() {
            *count(&mut nested.lengths, *prefix) += 1;
        }
        nested
    }

    pub(crate) fn get(&self, prefix: Prefix) -> Option<&T> {
        self.nodes.get(&prefix.order()).map(|(_, node)| node)
    }

    pub(crate) fn get_mut(&mut self, prefix: Prefix) -> Option<&mut T> {
        self.nodes.get_mut(&prefix.order()).map(|(_, node)| node)
    }

    /// Returns the value attached to `prefix`, made by `fresh` if there is none yet.
    pub(crate) fn entry(&mut self, prefix: Prefix, fresh: impl FnOnce() -> T) -> &mut T {
        let lengths = &mut self.lengths;
        let (_, node) = self.nodes.entry(prefix.order()).or_insert_with(|| {
            *count(lengths, prefix) += 1;
            (prefix, fresh())
        });
        node
    }

    pub(crate) fn remove(&mut self, prefix: Prefix) -> Option<T> {
        let (_, node) = self.nodes.remove(&prefix.order())?;
        *count(&mut self.lengths, prefix) -= 1;
        Some(node)
    }

    /// Returns the values attached to the networks around `net`, outermost first.
    pub(crate) fn around(&self, net: Prefix) -> impl Iterator<Item = &T> {
        let lengths = &self.lengths[usize::from(net.is_v4())];
        (0..net.length())
            .filter(|length| lengths[usize::from(*length)] != 0)
            .map(move |length| Prefix::of(net.first(), length))
            .filter(move |outer| outer.is_v4() == net.is_v4())
            .filter_map(|outer| self.get(outer))
    }

    /// Visits `net` and the networks inside it from the outside in. `visit` receives what it
    /// made of the network next around, or `outer`.
    pub(crate) fn walk<A>(
        &mut self,
        net: Prefix,
        outer: A,
        visit: impl FnMut(Prefix, &mut T, &A) -> A,
    ) {
        let last = net.first().bits() | !mask(net.length());
        walk(self.nodes.range_mut(net.order()..=(net.is_v4(), last, 128)), outer, visit);
    }

    /// Visits all networks likewise.
    pub(crate) fn walk_all<A>(&mut self, outer: A, visit: impl FnMut(Prefix, &mut T, &A) -> A) {
        walk(self.nodes.iter_mut(), outer, visit);
    }
}

fn count(lengths: &mut [[u32; 129]; 2], prefix: Prefix) -> &mut u32 {
    &mut lengths[usize::from(prefix.is_v4())][usize::from(prefix.length())]
}

fn walk<'a, T: 'a, A>(
    nodes: impl Iterator<Item = (&'a Order, &'a mut (Prefix, T))>,
    outer: A,
    mut visit: impl FnMut(Prefix, &mut T, &A) -> A,
) {
    // The networks around the current one, outermost first.
    let mut around: Vec<(Prefix, A)> = Vec::new();
    for (_, (prefix, node)) in nodes {
        while around.last().is_some_and(|(outer, _)| !outer.covers(*prefix)) {
            around.pop();
        }
        let made = visit(*prefix, node, around.last().map_or(&outer, |(_, made)| made));
        around.push((*prefix, made));
    }
}
