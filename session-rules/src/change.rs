//! Computes the changes that bring a stack from its present rules to the wanted ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;

use crate::Rule;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Delete the rule with this tag.
    Delete(Arc<str>),
    /// Add this rule.
    Add(Rule),
}

/// Why a stack refuses a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rule with this tag exists already.
    #[error("session rule tag {0:?} is in use")]
    TagInUse(Arc<str>),
    /// No rule has this tag.
    #[error("no session rule has tag {0:?}")]
    NoSuchTag(Arc<str>),
}

/// Makes tags: a prefix that marks rules as ours, and a number.
#[derive(Clone, Debug)]
pub struct Tags {
    prefix: Arc<str>,
    next: u64,
}

impl Tags {
    /// Tags that begin with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into(), next: 0 }
    }

    /// Whether a tag is of this kind.
    pub fn owns(&self, tag: &str) -> bool {
        tag.strip_prefix(&*self.prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|it| it.is_ascii_digit()))
    }

    fn make(&mut self, in_use: &HashSet<Arc<str>, RandomState>) -> Arc<str> {
        loop {
            let tag: Arc<str> = format!("{}{}", self.prefix, self.next).into();
            self.next = self.next.wrapping_add(1);
            if !in_use.contains(&tag) {
                return tag;
            }
        }
    }
}

/// Returns the changes from `dumped` (all rules of a stack) to `wanted`, deletions first.
///
/// Equal rules keep their tags; duplicates are deleted. Rules with foreign tags stay. The tags of
/// `wanted` are ignored: additions get new ones.
pub fn changes(dumped: &[Rule], wanted: &[Rule], tags: &mut Tags) -> Vec<Change> {
    let mut missing: HashMap<_, &Rule, RandomState> =
        wanted.iter().map(|rule| (rule.meaning(), rule)).collect();
    let mut in_use: HashSet<Arc<str>, RandomState> = HashSet::default();
    let mut changes = Vec::new();
    for rule in dumped {
        in_use.insert(Arc::clone(&rule.tag));
        if tags.owns(&rule.tag) && missing.remove(&rule.meaning()).is_none() {
            changes.push(Change::Delete(Arc::clone(&rule.tag)));
        }
    }
    for rule in wanted {
        if missing.remove(&rule.meaning()).is_some() {
            changes.push(Change::Add(Rule { tag: tags.make(&in_use), ..rule.clone() }));
        }
    }
    changes
}

/// The rules a stack holds, by tag.
#[derive(Clone, Debug, Default)]
pub struct Installed(BTreeMap<Arc<str>, Rule>);

impl Installed {
    /// Applies one change.
    ///
    /// # Errors
    /// When an added tag is in use, or a deleted one does not exist.
    pub fn apply(&mut self, change: Change) -> Result<(), Error> {
        match change {
            Change::Delete(tag) => self.0.remove(&tag).map(drop).ok_or(Error::NoSuchTag(tag)),
            Change::Add(rule) if self.0.contains_key(&rule.tag) => Err(Error::TagInUse(rule.tag)),
            Change::Add(rule) => {
                self.0.insert(Arc::clone(&rule.tag), rule);
                Ok(())
            }
        }
    }

    /// All rules.
    pub fn dump(&self) -> Vec<Rule> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, End, Ports, Scope, Transport};

    fn rule(port: u16, tag: &str) -> Rule {
        Rule {
            scope: Scope::Global,
            transport: Transport::Tcp,
            local: End { net: None, ports: Ports::one(port) },
            remote: End::ANY,
            action: Action::Allow,
            tag: tag.into(),
        }
    }

    fn ports(installed: &Installed) -> Vec<u16> {
        let mut ports: Vec<u16> =
            installed.dump().iter().map(|rule| rule.local.ports.first).collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn differences_lead_from_what_is_there_to_what_is_wanted() {
        let mut tags = Tags::new("podgate-");
        let mut installed = Installed::default();
        installed.apply(Change::Add(rule(22, "somebody-else"))).unwrap();
        installed.apply(Change::Add(rule(1, "podgate-0"))).unwrap();
        installed.apply(Change::Add(rule(2, "podgate-7"))).unwrap();
        installed.apply(Change::Add(rule(2, "podgate-8"))).unwrap();
        let wanted = [rule(2, ""), rule(3, ""), rule(4, ""), rule(3, "")];
        let steps = changes(&installed.dump(), &wanted, &mut tags);
        let first_add = steps.iter().position(|it| matches!(it, Change::Add(_))).unwrap();
        assert!(steps[first_add..].iter().all(|it| matches!(it, Change::Add(_))), "deletes first");
        assert_eq!(steps.len(), 4, "{steps:?}");
        for step in steps {
            installed.apply(step).unwrap();
        }
        assert_eq!(ports(&installed), [2, 3, 4, 22]);
        assert_eq!(changes(&installed.dump(), &wanted, &mut tags), []);
    }

    #[test]
    fn a_used_tag_and_an_unknown_one_are_refused() {
        let mut installed = Installed::default();
        installed.apply(Change::Add(rule(1, "a"))).unwrap();
        assert_eq!(installed.apply(Change::Add(rule(2, "a"))), Err(Error::TagInUse("a".into())));
        assert_eq!(installed.apply(Change::Delete("b".into())), Err(Error::NoSuchTag("b".into())));
    }

    #[test]
    fn tags_made_anew_pass_over_those_in_use() {
        let mut tags = Tags::new("podgate-");
        let dumped = [rule(1, "podgate-0"), rule(2, "podgate-1")];
        let steps = changes(&dumped, &[rule(1, ""), rule(2, ""), rule(3, "")], &mut tags);
        assert_eq!(steps, [Change::Add(rule(3, "podgate-2"))]);
    }
}
