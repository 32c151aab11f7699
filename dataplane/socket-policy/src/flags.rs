//! Flags of a pod that follow from its rules.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use session_rules::{Action, Rule, Scope};

use crate::layout::{POD_DATAGRAMS, POD_NO_RAW};

/// Kinds of calls that the rules of a pod deny.
#[derive(Default)]
pub(crate) struct Denials {
    opens: bool,
    accepts: bool,
    /// Whether they allow it anything.
    allows: bool,
}

impl Denials {
    /// Returns the flags of a pod. Raw sockets are refused to a pod that may open nothing, and to one on the host
    /// network that is denied anything: its packets do not pass the switch, which decides about those of other pods.
    pub(crate) fn of(&self, is_host: bool) -> u32 {
        let datagrams = if self.opens || self.accepts { POD_DATAGRAMS } else { 0 };
        let no_raw = if self.opens && (is_host || !self.allows) { POD_NO_RAW } else { 0 };
        datagrams | no_raw
    }
}

/// Kinds of calls that the rules deny, by pod.
pub(crate) fn flags<'r>(
    rules: &'r [Rule],
    accepted: &'r [(Arc<str>, Rule)],
) -> HashMap<&'r str, Denials, RandomState> {
    let mut found = HashMap::<&str, Denials, RandomState>::default();
    for rule in rules {
        let Scope::Local(pod) = &rule.scope else { continue };
        let of_pod = found.entry(pod).or_default();
        of_pod.opens |= rule.action == Action::Deny;
        of_pod.allows |= rule.action == Action::Allow;
    }
    for (pod, rule) in accepted {
        found.entry(pod).or_default().accepts |= rule.action == Action::Deny;
    }
    found
}
