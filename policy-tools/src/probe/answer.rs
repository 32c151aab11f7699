//! The answer to a question, and the combination of several answers.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use dataplane::Outcome;
use serde::{Serialize, Serializer};

use super::Endpoint;
use super::host::HostDecision;

/// Verdict on opening a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeVerdict {
    /// It may be opened.
    Allow,
    /// It may not be opened.
    Deny,
}

impl ProbeVerdict {
    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for ProbeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a case expects of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// It may be opened.
    Allow,
    /// A policy or a switch denies it.
    Deny,
    /// Nothing is there that it could be opened to, so that nothing decides.
    Unreachable,
}

impl Expected {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::Unreachable];

    /// The name in a file of cases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unreachable => "unreachable",
        }
    }

    /// From that name; `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How an answer compares with what a case expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is as expected.
    Holds,
    /// It is not.
    Fails,
    /// Nothing decided about the connection, which neither holds nor fails.
    Undecided,
}

/// Reasons beside the outcomes of the dataplane.
pub mod reason {
    /// A pod reaches itself without leaving its network namespace.
    pub const SAME_POD: &str = "same-pod";
    /// So does a node, with the host-network pods on it.
    pub const SAME_NODE: &str = "same-node";
    /// Neither end is in the cluster, so that no switch sees the connection.
    pub const NO_POLICY: &str = "no-policy";
    /// No address family that both ends have.
    pub const NO_COMMON_FAMILY: &str = "no-common-family";
    /// The service has no ready endpoint.
    pub const NO_ENDPOINT: &str = "no-endpoint";
    /// The port name stands for nothing at the target.
    pub const UNKNOWN_PORT_NAME: &str = "unknown-port-name";
    /// The service has no such port.
    pub const UNKNOWN_PORT: &str = "unknown-port";
    /// The pod has finished; another one may have its address.
    pub const POD_FINISHED: &str = "pod-finished";
    /// Another pod or node claims the same address.
    pub const ADDRESS_CONFLICT: &str = "address-conflict";
    /// The service is of type ExternalName and leads to a name without addresses, which follows.
    pub const EXTERNAL_NAME: &str = "external-name: ";
    /// The packet was forwarded, but to another end.
    pub const MISDELIVERED: &str = "misdelivered";
}

/// Reasons for which no policy or switch decided.
const UNDECIDED: [&str; 3] = [reason::NO_COMMON_FAMILY, reason::POD_FINISHED, reason::MISDELIVERED];

/// Reasons for which nothing is there that a connection could be opened to.
const UNREACHABLE: [&str; 5] = [
    reason::NO_COMMON_FAMILY,
    reason::POD_FINISHED,
    reason::NO_ENDPOINT,
    reason::UNKNOWN_PORT,
    reason::UNKNOWN_PORT_NAME,
];

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The verdict.
    pub verdict: ProbeVerdict,
    /// Why: the name of an outcome of the dataplane, one of [`reason`], or how answers differ.
    pub reason: Cow<'static, str>,
    /// Origins of the rules that decided.
    pub by: Vec<Origin>,
}

impl Answer {
    /// Returns an allowing answer that no rule decided.
    pub fn allow(reason: &'static str) -> Self {
        Self { verdict: ProbeVerdict::Allow, reason: reason.into(), by: Vec::new() }
    }

    /// Returns a denying answer that no rule decided.
    pub fn deny(reason: &'static str) -> Self {
        Self { verdict: ProbeVerdict::Deny, reason: reason.into(), by: Vec::new() }
    }

    /// Returns the answer about a service of type ExternalName that leads out of the manifests.
    pub(crate) fn leads_to(end: &Endpoint) -> Self {
        let reason = format!("{}{end} has no address here", reason::EXTERNAL_NAME);
        Self { verdict: ProbeVerdict::Deny, reason: reason.into(), by: Vec::new() }
    }

    /// Compares with what a case expects. What nothing decided is no denial by a policy.
    pub fn compare(&self, expected: Expected) -> Judgement {
        let is = |reasons: &[&str]| reasons.contains(&&*self.reason);
        let holds = match expected {
            Expected::Unreachable => is(&UNREACHABLE),
            _ if is(&UNDECIDED) || self.reason.starts_with(reason::EXTERNAL_NAME) => {
                return Judgement::Undecided;
            }
            Expected::Allow => self.verdict == ProbeVerdict::Allow,
            Expected::Deny => self.verdict == ProbeVerdict::Deny,
        };
        if holds { Judgement::Holds } else { Judgement::Fails }
    }

    /// Combines answers that must all allow; `difference` names what distinguishes the labelled answers.
    ///
    /// Where some allow and some deny, the answer is deny, the reason names all of them, and
    /// `by` the rules of those that deny.
    pub fn all(difference: &'static str, answers: Vec<(String, Self)>) -> Option<Self> {
        let denied = answers.iter().filter(|(_, it)| it.verdict == ProbeVerdict::Deny).count();
        let differ = denied > 0 && denied < answers.len();
        let reason = differ.then(|| difference_in_words(difference, &answers, denied));
        let verdict = if denied > 0 { ProbeVerdict::Deny } else { ProbeVerdict::Allow };
        let deciding = || answers.iter().map(|(_, it)| it).filter(|it| it.verdict == verdict);
        let first = deciding().next()?;
        let reason = reason.map_or_else(|| first.reason.clone(), Into::into);
        Some(Self { verdict, reason, by: distinct(deciding().flat_map(|it| &it.by)) })
    }
}

/// Origins of rules, each once.
pub(crate) fn distinct<'a>(origins: impl Iterator<Item = &'a Origin>) -> Vec<Origin> {
    let mut found: Vec<Origin> = Vec::new();
    for origin in origins {
        if !found.contains(origin) {
            found.push(origin.clone());
        }
    }
    found
}

/// Leaves out `default-allow` of one end where a rule decided at the other.
pub(crate) fn drop_default(by: &mut Vec<Origin>) {
    if by.iter().any(|origin| *origin != Origin::DefaultAllow) {
        by.retain(|origin| *origin != Origin::DefaultAllow);
    }
}

/// The answer about one connection, its path, and the decisions of host firewalls at its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reply {
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
    /// The switches on the path, in order.
    pub path: Vec<Passage>,
    /// The decision at the node whose process opens it.
    #[serde(skip)]
    pub at_source: Option<Arc<HostDecision>>,
    /// The decision at the node that it is opened to.
    #[serde(skip)]
    pub at_target: Option<Arc<HostDecision>>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, path: Vec::new(), at_source: None, at_target: None }
    }
}

/// Decision of one switch about the packet that opens a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passage {
    /// The node.
    pub node: Arc<str>,
    /// The port it entered by.
    #[serde(rename = "in")]
    pub input: Arc<str>,
    /// The port it left by.
    #[serde(rename = "out")]
    pub output: Option<Arc<str>>,
    /// Its source as it came in.
    pub source: IpAddr,
    /// Its destination as it came in.
    pub destination: IpAddr,
    /// Its outcome here.
    #[serde(serialize_with = "by_name")]
    pub outcome: Outcome,
    /// Origins of the rules that decided.
    #[serde(skip)]
    pub by: Vec<Origin>,
    /// The decision of the egress rules of the pod that opens the connection.
    #[serde(skip)]
    pub egress: Option<PodDecision>,
    /// The decision of the ingress rules of the pod that it is opened to.
    #[serde(skip)]
    pub ingress: Option<PodDecision>,
}

fn by_name<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

/// Verdict of the rules of one pod in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDecision {
    /// The pod, as `ns/pod`.
    pub pod: Arc<str>,
    /// True if they permit the connection.
    pub permits: bool,
    /// The rule that decided; `None` where the other end denies and this one only permits.
    pub by: Option<Origin>,
}

/// Answers that a reason lists one by one; of more it gives the number.
const LISTED: usize = 4;

fn difference_in_words(what: &str, answers: &[(String, Answer)], denied: usize) -> String {
    let one = |(label, answer): &(String, Answer)| format!("{label} {}", answer.reason);
    if answers.len() <= LISTED {
        let all: Vec<String> = answers.iter().map(one).collect();
        return format!("{what}: {}", all.join(", "));
    }
    let first = answers.iter().find(|(_, it)| it.verdict == ProbeVerdict::Deny).map(one);
    format!("{what}: {denied} of {} denied, as {}", answers.len(), first.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(verdict: ProbeVerdict, reason: &'static str, by: &str) -> Answer {
        Answer { verdict, reason: reason.into(), by: vec![by.into()] }
    }

    #[test]
    fn what_nothing_decided_is_no_denial() {
        use Expected::{Allow, Deny, Unreachable};
        use Judgement::{Fails, Holds, Undecided};
        let of = |reason| {
            let answer = Answer::deny(reason);
            [Allow, Deny, Unreachable].map(|expected| answer.compare(expected))
        };
        assert_eq!(of("policy-denied"), [Fails, Holds, Fails]);
        assert_eq!(of(reason::NO_COMMON_FAMILY), [Undecided, Undecided, Holds]);
        assert_eq!(of(reason::POD_FINISHED), [Undecided, Undecided, Holds]);
        assert_eq!(of(reason::MISDELIVERED), [Undecided, Undecided, Fails]);
        assert_eq!(of(reason::NO_ENDPOINT), [Fails, Holds, Holds]);
        let allowed = Answer::allow("policy-allowed");
        assert_eq!([Allow, Deny, Unreachable].map(|it| allowed.compare(it)), [Holds, Fails, Fails]);
    }

    #[test]
    fn all_must_allow() {
        let yes = |by| answer(ProbeVerdict::Allow, "policy-allowed", by);
        let no = answer(ProbeVerdict::Deny, "policy-denied", "p");
        let of = |list: &[Answer]| {
            let labelled = list.iter().enumerate().map(|(n, it)| (format!("b{n}"), it.clone()));
            Answer::all("backends-differ", labelled.collect())
        };
        assert_eq!(of(&[]), None);
        let both = of(&[yes("a"), yes("b"), yes("a")]).unwrap();
        assert_eq!((both.verdict, both.by.len()), (ProbeVerdict::Allow, 2));
        let mixed = of(&[yes("a"), no.clone()]).unwrap();
        assert_eq!(mixed.verdict, ProbeVerdict::Deny);
        assert_eq!(mixed.reason, "backends-differ: b0 policy-allowed, b1 policy-denied");
        assert_eq!(mixed.by, ["p".into()]);
        let none = of(&[no.clone(), no.clone()]).unwrap();
        assert_eq!(none.reason, "policy-denied");
        let many = of(&[yes("a"), yes("a"), yes("a"), yes("a"), no]).unwrap();
        assert_eq!(many.reason, "backends-differ: 1 of 5 denied, as b4 policy-denied");
    }
}
