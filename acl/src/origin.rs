//! Origins of rules: the policies that state them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One of a pod's two directions, named as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Direction {
    /// Connections towards the pod; the peer is the source.
    Ingress,
    /// Connections the pod opens; the peer is the destination.
    Egress,
}

impl Direction {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The field of a policy that holds the rules of this direction.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A policy: `KIND NAME`, or `KIND NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyRef {
    /// The kind, such as `NetworkPolicy`.
    pub kind: Box<str>,
    /// The namespace, if the kind has one.
    pub namespace: Option<Box<str>>,
    /// The name.
    pub name: Box<str>,
}

impl PolicyRef {
    /// A policy by its kind, namespace and name.
    pub fn new(kind: &str, namespace: Option<&str>, name: &str) -> Self {
        Self { kind: kind.into(), namespace: namespace.map(Into::into), name: name.into() }
    }

    /// Whether this is the policy `NAME` or `NAMESPACE/NAME`.
    pub fn is(&self, name: &str) -> bool {
        match (name.split_once('/'), &self.namespace) {
            (Some((namespace, name)), Some(own)) => **own == *namespace && *self.name == *name,
            _ => *self.name == *name,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(' ')?;
        let (namespace, name) = name.split_once('/').map_or((None, name), |(a, b)| (Some(a), b));
        Some(Self::new(kind, namespace, name))
    }
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.name)
    }
}

/// The origin of a rule, and of a verdict by it. Cheap to clone; in JSON its text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// A rule of a policy, by its position in the list of this direction: `NetworkPolicy default/db ingress[0]`.
    Rule(Arc<PolicyRef>, Direction, u32),
    /// No policy applies: `default-allow`.
    DefaultAllow,
    /// These policies isolate the pod, and none of their rules matches:
    /// `default-deny of NetworkPolicy default/db, NetworkPolicy default/all`.
    DefaultDeny(Arc<Vec<PolicyRef>>),
    /// Everything is denied because policies cannot be applied: `default-deny: Pod a/b has faults`.
    Closed(Arc<String>),
    /// Anything else, in its own words.
    Other(Arc<String>),
}

impl Origin {
    /// An origin that is no policy.
    pub fn other(text: impl Into<String>) -> Self {
        Self::Other(Arc::new(text.into()))
    }

    /// The policies: that of the rule, or those that isolate.
    pub fn policies(&self) -> &[PolicyRef] {
        match self {
            Self::Rule(policy, ..) => std::slice::from_ref(policy),
            Self::DefaultDeny(policies) => policies,
            Self::DefaultAllow | Self::Closed(_) | Self::Other(_) => &[],
        }
    }

    /// The policies in words, without the rule; the origin itself where it names none.
    pub fn policies_in_words(&self) -> String {
        match self.policies() {
            [] => self.to_string(),
            policies => join(policies),
        }
    }

    /// The direction whose rules hold this one.
    pub fn direction(&self) -> Option<Direction> {
        if let Self::Rule(_, direction, _) = self { Some(*direction) } else { None }
    }

    /// The field of the policy that holds the rule, such as `ingress[0]`.
    pub fn field(&self) -> Option<String> {
        let Self::Rule(_, direction, index) = self else { return None };
        Some(format!("{}[{index}]", direction.field()))
    }

    /// Whether one of the policies is `NAME` or `NAMESPACE/NAME`; without policies, whether `name` is the
    /// origin in words.
    pub fn is_of(&self, name: &str) -> bool {
        match self.policies() {
            [] => self.to_string() == name,
            policies => policies.iter().any(|policy| policy.is(name)),
        }
    }

    /// Whether this denies what no rule is about.
    pub fn is_default_deny(&self) -> bool {
        matches!(self, Self::DefaultDeny(_) | Self::Closed(_))
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Other(text) if text.is_empty())
    }

    /// Origins in words, joined by commas.
    pub fn list(origins: &[Self]) -> String {
        join(origins)
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix(DEFAULT_DENY) {
            return match (rest.strip_prefix(" of "), rest.strip_prefix(": ")) {
                _ if rest.is_empty() => Some(Self::DefaultDeny(Arc::default())),
                (Some(policies), _) => {
                    let policies: Option<_> = policies.split(", ").map(PolicyRef::parse).collect();
                    Some(Self::DefaultDeny(Arc::new(policies?)))
                }
                (None, fault) => Some(Self::Closed(Arc::new(fault?.to_owned()))),
            };
        }
        if text == DEFAULT_ALLOW {
            return Some(Self::DefaultAllow);
        }
        let (policy, field) = text.rsplit_once(' ')?;
        let (name, index) = field.strip_suffix(']')?.split_once('[')?;
        let direction = Direction::BOTH.into_iter().find(|it| it.field() == name)?;
        let number: u32 = index.parse().ok()?;
        let is_canonical = number.to_string() == index;
        let policy = PolicyRef::parse(policy).filter(|_| is_canonical)?;
        Some(Self::Rule(Arc::new(policy), direction, number))
    }
}

const DEFAULT_ALLOW: &str = "default-allow";
const DEFAULT_DENY: &str = "default-deny";

fn join(list: &[impl fmt::Display]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(policy, direction, index) => {
                write!(f, "{policy} {}[{index}]", direction.field())
            }
            Self::DefaultAllow => f.write_str(DEFAULT_ALLOW),
            Self::DefaultDeny(policies) if policies.is_empty() => f.write_str(DEFAULT_DENY),
            Self::DefaultDeny(policies) => write!(f, "{DEFAULT_DENY} of {}", join(policies)),
            Self::Closed(fault) => write!(f, "{DEFAULT_DENY}: {fault}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Reads what is printed. Text of another form is an origin in its own words.
impl From<&str> for Origin {
    fn from(text: &str) -> Self {
        Self::parse(text).unwrap_or_else(|| Self::other(text))
    }
}

impl From<String> for Origin {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(text.as_str().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        let policy = |namespace, name| PolicyRef::new("NetworkPolicy", namespace, name);
        let cases = [
            (
                "NetworkPolicy default/db ingress[0]",
                Origin::Rule(Arc::new(policy(Some("default"), "db")), Direction::Ingress, 0),
            ),
            (
                "NetworkPolicy out egress[12]",
                Origin::Rule(Arc::new(policy(None, "out")), Direction::Egress, 12),
            ),
            ("default-allow", Origin::DefaultAllow),
            ("default-deny", Origin::DefaultDeny(Arc::default())),
            (
                "default-deny of NetworkPolicy a/b, NetworkPolicy a/c",
                Origin::DefaultDeny(Arc::new(vec![policy(Some("a"), "b"), policy(Some("a"), "c")])),
            ),
            (
                "default-deny: Pod a/b has faults",
                Origin::Closed(Arc::new("Pod a/b has faults".to_owned())),
            ),
            ("own-node", Origin::other("own-node")),
            ("default-denying", Origin::other("default-denying")),
            ("P a ingress[007]", Origin::other("P a ingress[007]")),
            ("P ingress[1]", Origin::other("P ingress[1]")),
            ("", Origin::other("")),
        ];
        for (text, origin) in cases {
            assert_eq!(Origin::from(text), origin);
            assert_eq!(origin.to_string(), text);
        }
    }

    #[test]
    fn policies_are_known_by_name_and_namespace() {
        let origin = Origin::from("default-deny of NetworkPolicy a/b, ClusterNetworkPolicy c");
        let found = ["b", "a/b", "c", "d/b", "NetworkPolicy", "a", "x/c"];
        assert_eq!(
            found.map(|name| origin.is_of(name)),
            [true, true, true, false, false, false, false]
        );
        assert_eq!(origin.policies_in_words(), "NetworkPolicy a/b, ClusterNetworkPolicy c");
        let rule = Origin::from("NetworkPolicy a/b egress[3]");
        assert_eq!(rule.policies_in_words(), "NetworkPolicy a/b");
        assert_eq!(
            (rule.direction(), rule.field().as_deref()),
            (Some(Direction::Egress), Some("egress[3]"))
        );
        assert_eq!(Origin::DefaultAllow.policies_in_words(), "default-allow");
    }
}
