//! Versions of an address map, one change after the other.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use ipnet::IpNet;

use super::identities::Identities;
use super::{AddressMap, Block, PeerSetId};
use crate::Identity;
use crate::lpm;
use crate::nested::Nested;
use crate::prefix::Prefix;

/// Holds peer sets and makes an [`AddressMap`] of them at any time.
///
/// The changes between two versions cost in proportion to the networks whose membership may change,
/// each once: one for a single address, all networks inside for a larger one. Making a version
/// costs a few microseconds beside, whatever the size; readers of earlier versions are not
/// disturbed.
///
/// ```
/// use acl::{Address, AddressMapEditor, Block, PeerSetId};
///
/// let mut editor = AddressMapEditor::default();
/// let pod = Block { net: "10.1.0.7/32".parse().unwrap(), except: vec![] };
/// editor.add(PeerSetId(1), &pod);
/// let with = editor.version();
/// editor.remove(PeerSetId(1), &pod);
/// let without = editor.version();
///
/// let address = Address::from_v4_bits(0x0a01_0007);
/// assert!(with.is_member(with.lookup(address), PeerSetId(1)));
/// assert!(!without.is_member(without.lookup(address), PeerSetId(1)));
/// ```
#[derive(Debug, Default)]
pub struct AddressMapEditor {
    nodes: Nested<Node>,
    /// Blocks with exceptions, to know what may be removed.
    excepting: HashMap<(PeerSetId, Prefix, Vec<Prefix>), u32, RandomState>,
    identities: Identities,
    nets: lpm::Editor,
    /// Networks inside which membership changed since the last version.
    stale: Vec<Prefix>,
}

/// A network at which blocks or exceptions begin.
#[derive(Debug, Default)]
struct Node {
    steps: Vec<Step>,
    /// `None` until membership is computed.
    identity: Option<Identity>,
}

/// The blocks of one set that begin at a network.
#[derive(Clone, Copy, Debug)]
struct Step {
    set: PeerSetId,
    /// Blocks without exceptions.
    plain: u32,
    /// Blocks with exceptions.
    excepting: u32,
    /// Exceptions of blocks further out.
    excepted: u32,
}

/// Number of blocks of each set that cover a network, sorted by set.
type Counts = Vec<(PeerSetId, i64)>;

impl AddressMapEditor {
    /// An editor that holds these blocks.
    pub(super) fn from_blocks<'a>(blocks: impl Iterator<Item = (PeerSetId, &'a Block)>) -> Self {
        let mut editor = Self::default();
        let mut changes = Vec::new();
        for (set, block) in blocks {
            let Some(parts) = Parts::of(block) else { continue };
            changes.extend(parts.changes(set));
            editor.note(set, parts);
        }
        changes.sort_by_key(|(prefix, _)| prefix.order());
        editor.nodes = Nested::from_sorted(changes.chunk_by(|a, b| a.0 == b.0).map(|same| {
            let mut node = Node::default();
            same.iter().for_each(|(_, step)| node.add(*step));
            (same[0].0, node)
        }));
        editor.update_all();
        editor
    }

    /// Adds a block to a peer set. Blocks may overlap and be added more than once.
    pub fn add(&mut self, set: PeerSetId, block: &Block) {
        let Some(parts) = Parts::of(block) else { return };
        for (prefix, step) in parts.changes(set) {
            self.nodes.entry(prefix, Node::default).add(step);
        }
        self.stale.push(parts.net);
        self.note(set, parts);
    }

    /// Removes a block from a peer set; returns whether it was there. Exceptions must be those
    /// that the block was added with.
    pub fn remove(&mut self, set: PeerSetId, block: &Block) -> bool {
        let Some(parts) = Parts::of(block) else { return false };
        let held = if parts.except.is_empty() {
            let node = self.nodes.get(parts.net);
            node.and_then(|node| node.step(set)).is_some_and(|step| step.plain > 0)
        } else {
            self.forget(set, &parts)
        };
        if !held {
            return false;
        }
        for (prefix, step) in parts.changes(set) {
            let Some(node) = self.nodes.get_mut(prefix) else { continue };
            node.subtract(step);
            if node.steps.is_empty() {
                let identity = node.identity;
                self.nodes.remove(prefix);
                identity.into_iter().for_each(|identity| self.identities.release(identity));
                self.nets.set(prefix, None);
            }
        }
        self.stale.push(parts.net);
        true
    }

    /// Moves a single address from some peer sets to others, as one change: no combination in
    /// between gets an identity. Sets in `from` that do not hold
    /// the address as such are passed over.
    pub fn move_host(&mut self, address: IpAddr, from: &[PeerSetId], to: &[PeerSetId]) {
        let block = Block { net: IpNet::from(address), except: Vec::new() };
        let Some(Parts { net, .. }) = Parts::of(&block) else { return };
        let step = |set: PeerSetId| Step { set, plain: 1, excepting: 0, excepted: 0 };
        if let Some(node) = self.nodes.get_mut(net) {
            from.iter().for_each(|set| node.subtract(step(*set)));
        }
        if !to.is_empty() {
            let node = self.nodes.entry(net, Node::default);
            to.iter().for_each(|set| node.add(step(*set)));
        }
        match self.nodes.get(net) {
            Some(node) if node.steps.is_empty() => {
                let identity = node.identity;
                self.nodes.remove(net);
                identity.into_iter().for_each(|identity| self.identities.release(identity));
                self.nets.set(net, None);
            }
            Some(_) => self.stale.push(net),
            None => {}
        }
    }

    /// The map as it is now.
    pub fn version(&mut self) -> AddressMap {
        let mut stale = std::mem::take(&mut self.stale);
        stale.sort_unstable_by_key(|net| net.order());
        // Sorted, an outer network comes right before all that it covers.
        stale.dedup_by(|inner, outer| outer.covers(*inner));
        stale.into_iter().for_each(|net| self.update(net));
        if self.identities.is_worn() {
            self.identities = Identities::default();
            self.nodes.walk_all((), |_, node, ()| node.identity = None);
            self.update_all();
        }
        AddressMap {
            nets: self.nets.version(),
            members: Arc::clone(&self.identities.members),
            identities: self.identities.count(),
            by_set: Arc::default(),
            lineage: self.identities.lineage,
        }
    }

    fn note(&mut self, set: PeerSetId, parts: Parts) {
        if !parts.except.is_empty() {
            *self.excepting.entry((set, parts.net, parts.except)).or_default() += 1;
        }
    }

    fn forget(&mut self, set: PeerSetId, parts: &Parts) -> bool {
        let key = (set, parts.net, parts.except.clone());
        let Some(count) = self.excepting.get_mut(&key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.excepting.remove(&key);
        }
        true
    }

    /// Recomputes the membership of `net` and of all networks inside.
    fn update(&mut self, net: Prefix) {
        let mut counts = Counts::new();
        self.nodes.around(net).for_each(|node| node.apply(&mut counts));
        let (identities, nets) = (&mut self.identities, &mut self.nets);
        self.nodes
            .walk(net, counts, |prefix, node, outer| node.update(prefix, outer, identities, nets));
    }

    fn update_all(&mut self) {
        let (identities, nets) = (&mut self.identities, &mut self.nets);
        self.nodes.walk_all(Counts::new(), |prefix, node, outer| {
            node.update(prefix, outer, identities, nets)
        });
    }
}

impl Node {
    /// Gives the network its identity, `outer` counting the blocks around it.
    fn update(
        &mut self,
        prefix: Prefix,
        outer: &Counts,
        identities: &mut Identities,
        nets: &mut lpm::Editor,
    ) -> Counts {
        let mut counts = outer.clone();
        self.apply(&mut counts);
        let members: Vec<PeerSetId> =
            counts.iter().filter(|(_, count)| *count > 0).map(|(set, _)| *set).collect();
        let identity = identities.acquire(&members);
        let old = self.identity.replace(identity);
        if old != Some(identity) {
            nets.set(prefix, Some(identity.0));
        }
        old.into_iter().for_each(|old| identities.release(old));
        counts
    }

    fn step(&self, set: PeerSetId) -> Option<&Step> {
        self.steps.iter().find(|step| step.set == set)
    }

    fn add(&mut self, step: Step) {
        match self.steps.iter_mut().find(|known| known.set == step.set) {
            Some(known) => {
                known.plain += step.plain;
                known.excepting += step.excepting;
                known.excepted += step.excepted;
            }
            None => self.steps.push(step),
        }
    }

    fn subtract(&mut self, step: Step) {
        for known in self.steps.iter_mut().filter(|known| known.set == step.set) {
            known.plain -= step.plain.min(known.plain);
            known.excepting -= step.excepting.min(known.excepting);
            known.excepted -= step.excepted.min(known.excepted);
        }
        self.steps.retain(|step| step.plain | step.excepting | step.excepted != 0);
    }

    fn apply(&self, counts: &mut Counts) {
        for step in &self.steps {
            let change =
                i64::from(step.plain) + i64::from(step.excepting) - i64::from(step.excepted);
            match counts.binary_search_by_key(&step.set, |(set, _)| *set) {
                Ok(at) => counts[at].1 += change,
                Err(at) => counts.insert(at, (step.set, change)),
            }
        }
    }
}

/// A block whose exceptions lie inside it and are disjoint, so that each address sees the
/// block once and sees it taken away at most once.
struct Parts {
    net: Prefix,
    except: Vec<Prefix>,
}

impl Parts {
    /// `None` if nothing is left.
    fn of(block: &Block) -> Option<Self> {
        let net = Prefix::new(&block.net)?;
        let mut except: Vec<Prefix> = block.except.iter().filter_map(Prefix::new).collect();
        if except.iter().any(|except| except.covers(net)) {
            return None;
        }
        except.retain(|except| net.covers(*except));
        except.sort_unstable_by_key(|except| except.order());
        // Sorted, an outer network comes right before all that it covers.
        except.dedup_by(|inner, outer| outer.covers(*inner));
        Some(Self { net, except })
    }

    fn changes(&self, set: PeerSetId) -> impl Iterator<Item = (Prefix, Step)> + '_ {
        let none = Step { set, plain: 0, excepting: 0, excepted: 0 };
        let begins = match self.except.is_empty() {
            true => Step { plain: 1, ..none },
            false => Step { excepting: 1, ..none },
        };
        let ends = self.except.iter().map(move |except| (*except, Step { excepted: 1, ..none }));
        std::iter::once((self.net, begins)).chain(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn sets_that_come_together_have_no_identities_in_between() {
        let mut editor = AddressMapEditor::default();
        for set in 0..500 {
            let except = vec![IpNet::from(IpAddr::from([9, 0, (set / 256) as u8, set as u8]))];
            let block = Block { net: "0.0.0.0/0".parse().unwrap(), except };
            editor.add(PeerSetId(set), &block);
        }
        let map = editor.version();
        assert_eq!(map.identities().count(), 502, "none, all, and all but each one");
        assert_eq!(map.members(map.lookup(Address::from_v4_bits(0x0900_0007))).len(), 499);
    }

    #[test]
    fn a_moved_host_meets_no_combination_in_between() {
        let host: IpAddr = "10.0.0.1".parse().unwrap();
        let [a, b, c] = [1, 2, 3].map(PeerSetId);
        let mut editor = AddressMapEditor::default();
        let net = Block { net: "10.0.0.0/8".parse().unwrap(), except: vec![] };
        editor.add(c, &net);
        editor.move_host(host, &[], &[a, b]);
        let first = editor.version();
        assert_eq!(first.members(first.lookup(Address::from(host))), [a, b, c]);
        assert_eq!(first.identities().count(), 3);
        editor.move_host(host, &[a, b], &[a]);
        let second = editor.version();
        assert_eq!(second.members(second.lookup(Address::from(host))), [a, c]);
        editor.move_host(host, &[a], &[]);
        let third = editor.version();
        assert_eq!(third.members(third.lookup(Address::from(host))), [c]);
        assert!(third.same_lineage(&first));
    }
}
