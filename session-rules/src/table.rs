//! The compiled form.
//!
//! Rules with the same scope, transport and prefix lengths form a group: one hash table from
//! their networks to the few rules that differ in ports. A lookup probes the groups of its
//! scope from the most specific on and ends at the first that has a match.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;
use ipnet::IpNet;

use crate::{Connection, Rule, Scope, Transport};

/// A compiled, immutable set of rules.
#[derive(Debug, Default)]
pub struct Table {
    rules: Vec<Rule>,
    scopes: HashMap<(Scope, Transport), Vec<Group>, RandomState>,
}

/// Rules whose ends have prefixes of these lengths (-1: any address).
#[derive(Debug)]
struct Group {
    remote: i16,
    local: i16,
    /// Indices of rules, the most specific first.
    by_nets: HashMap<Nets, Vec<usize>, RandomState>,
}

/// The networks of the remote and the local end.
type Nets = (Option<IpNet>, Option<IpNet>);

impl Table {
    /// Compiles rules; of equally specific ones that match the same, the first counts.
    pub fn compile(rules: Vec<Rule>) -> Self {
        let mut scopes: HashMap<(Scope, Transport), Vec<Group>, RandomState> = HashMap::default();
        let mut order: Vec<usize> = (0..rules.len()).collect();
        // Stable: equal ones stay in order.
        order.sort_by_key(|index| std::cmp::Reverse(rules[*index].specificity()));
        for index in order {
            let rule = &rules[index];
            let groups = scopes.entry((rule.scope.clone(), rule.transport)).or_default();
            let (remote, local) = (rule.remote.length(), rule.local.length());
            if groups.last().is_none_or(|it| (it.remote, it.local) != (remote, local)) {
                groups.push(Group { remote, local, by_nets: HashMap::default() });
            }
            let nets =
                (rule.remote.net.map(|net| net.trunc()), rule.local.net.map(|it| it.trunc()));
            if let Some(group) = groups.last_mut() {
                group.by_nets.entry(nets).or_default().push(index);
            }
        }
        Self { rules, scopes }
    }

    /// The rule that decides about the connection.
    pub fn lookup(&self, connection: &Connection) -> Option<&Rule> {
        let groups = self.scopes.get(&(connection.scope.clone(), connection.transport))?;
        groups.iter().find_map(|group| {
            let remote = masked(connection.remote.0, group.remote)?;
            let local = masked(connection.local.0, group.local)?;
            let candidates = group.by_nets.get(&(remote, local))?;
            candidates.iter().map(|index| &self.rules[*index]).find(|it| it.matches(connection))
        })
    }

    /// The rules, in the order they were given.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

/// The network of this length around an address; `None` if its family has no such length.
fn masked(address: IpAddr, length: i16) -> Option<Option<IpNet>> {
    match u8::try_from(length) {
        Err(_) => Some(None),
        Ok(length) => IpNet::new(address, length).ok().map(|net| Some(net.trunc())),
    }
}
