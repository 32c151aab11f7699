//! The ends of connections that are compared, and their classes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Table;
use control::model::Direction;
use control::{Object, PodKey};
use ipnet::IpNet;

use super::parts::Versions;
use crate::policy::changed::Differing;
use crate::policy::matrix::{self, Matrix};
use crate::policy::possible::Possible;
use crate::probe::host;

/// One end of connections, in both versions.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Its workload, or another name of it.
    pub(super) name: String,
    pub(super) pod: Option<PodKey>,
    /// True if it represents pods that are in no file.
    stands: bool,
    /// Its node.
    pub(super) node: Option<Arc<str>>,
    /// True if it is a node that a host firewall selects.
    guarded: bool,
    /// True if decisions about it may have changed, as those about either end of a connection.
    pub(super) changed: bool,
    /// True if every part has it.
    pub(super) is_everywhere: bool,
    pub(super) old: IpAddr,
    pub(super) new: IpAddr,
}

/// Ends that all tables and networks treat alike.
pub(super) type Class = Vec<End>;

impl End {
    /// Returns whether rules decide about connections between two ends: one of them is a pod of the files or a node
    /// with host firewalls, and they are not the same.
    pub(super) fn is_pair(&self, to: &Self) -> bool {
        let is_decided = |end: &Self| end.guarded || end.pod.is_some() && !end.stands;
        self.old != to.old && (is_decided(self) || is_decided(to))
    }

    /// Returns whether it is the node of another end.
    pub(super) fn is_node_of(&self, to: &Self) -> bool {
        self.pod.is_none() && self.node.is_some() && self.node == to.node
    }
}

/// Addresses of one family that no object has, one for each class that policies distinguish.
pub(super) struct Outside {
    v4: bool,
    ends: BTreeMap<IpAddr, String>,
    /// Every network that a policy names.
    nets: Vec<IpNet>,
}

impl Outside {
    /// Those of the policies of both versions.
    pub(super) fn new(differing: &Differing<'_>, possible: &Possible, v4: bool) -> Self {
        let mut ends = matrix::outside(differing.all(), v4);
        let taken = differing.all().flat_map(|object| match object {
            Object::Pod(pod) if !pod.finished => &pod.addresses[..],
            Object::Node(node) => &node.addresses,
            _ => &[],
        });
        let taken: HashSet<&IpAddr> = taken.collect();
        ends.retain(|address, _| !taken.contains(address));
        let words = possible.words.iter().filter(|(address, _)| address.is_ipv4() == v4);
        ends.extend(words.map(|(address, name)| (*address, name.clone())));
        Self { v4, ends, nets: matrix::networks(differing.all()).into_iter().collect() }
    }
}

/// All ends of one family of a part, in classes that all tables and networks treat alike.
pub(super) fn classes(
    versions: &Versions<'_>,
    matrices: [&Matrix; 2],
    outside: &Outside,
) -> Vec<Class> {
    let [old, new] = matrices.map(Matrix::view);
    let v4 = outside.v4;
    let names = versions.names;
    let first = |addresses: &[IpAddr]| addresses.iter().find(|it| it.is_ipv4() == v4).copied();
    let mut ends = Vec::new();
    for (key, pod) in old.pods.iter() {
        let Some(other) = new.pods.get(key) else { continue };
        if let (Some(old), Some(new)) = (first(&pod.addresses), first(&other.addresses)) {
            let (name, node) = (names.workload(key), Some(Arc::clone(&pod.node)));
            let stands = names.representatives.contains_key(key);
            let is_everywhere = versions.is_everywhere(key);
            let changed = versions.has_changed(key);
            let (pod, guarded) = (Some(key.clone()), false);
            ends.push(End { name, pod, stands, node, guarded, changed, is_everywhere, old, new });
        }
    }
    let is_everywhere = true;
    for (name, node) in old.nodes.iter() {
        let Some(other) = new.nodes.get(name) else { continue };
        let guarded = [old, new].iter().any(|view| view.host_acls.contains_key(name));
        if let (Some(old), Some(new)) = (first(&node.addresses), first(&other.addresses)) {
            let (pod, node, name) = (None, Some(Arc::clone(name)), names.node(name));
            let (stands, changed) = (false, versions.nodes_changed || old != new);
            ends.push(End { name, pod, stands, node, guarded, changed, is_everywhere, old, new });
        }
    }
    // Without an end of the family that policies are about, nothing of the family matters.
    if !ends.iter().any(|end| end.pod.is_some() || end.guarded) {
        return Vec::new();
    }
    ends.extend(outside.ends.iter().map(|(address, name)| End {
        name: name.clone(),
        pod: None,
        stands: false,
        node: None,
        guarded: false,
        changed: false,
        is_everywhere,
        old: *address,
        new: *address,
    }));
    let mut classes: HashMap<_, Class> = HashMap::new();
    for end in ends {
        let tables = match &end.pod {
            Some(pod) => [matrix::tables(old, pod), matrix::tables(new, pod)],
            None => Default::default(),
        };
        let address = |table: &Option<Arc<Table>>| table.as_ref().map(Arc::as_ptr);
        let of_tables = tables.each_ref().map(|pair| pair.each_ref().map(address));
        let networks = |address: IpAddr| -> Vec<usize> {
            let inside = outside.nets.iter().enumerate().filter(|(_, net)| net.contains(&address));
            inside.map(|(n, _)| n).collect()
        };
        let identities =
            (old.addresses.lookup(end.old.into()), new.addresses.lookup(end.new.into()));
        let hosts = [old, new].map(|view| {
            let node = end.node.as_ref().filter(|_| end.guarded);
            let tables = Direction::BOTH.map(|it| host::tables(view, node, it).map(Arc::as_ptr));
            tables.map(Iterator::collect::<Vec<*const Table>>)
        });
        let key = (
            of_tables,
            hosts,
            identities,
            networks(end.old),
            networks(end.new),
            end.pod.is_some(),
            (end.stands, end.changed, end.is_everywhere),
        );
        let class = classes.entry(key).or_default();
        class.push(end);
    }
    let mut classes: Vec<Class> = classes.into_values().collect();
    classes.sort_by(|a, b| a[0].name.cmp(&b[0].name));
    classes
}
