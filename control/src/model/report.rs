//! Conditions in the status of a policy.

/// The status of an object. It does not affect the policy's meaning, so all reports compare equal
/// and none is saved.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `metadata.generation`: grows with each change of the spec.
    pub generation: Option<i64>,
    /// Its conditions of ours.
    pub conditions: Vec<Condition>,
}

impl Report {
    /// The condition of this kind.
    pub fn condition(&self, kind: ConditionKind) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

impl PartialEq for Report {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Report {}

/// A `metav1.Condition` of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: ConditionKind,
    /// `status`.
    pub holds: bool,
    /// A word for programs.
    pub reason: String,
    /// A message for people.
    pub message: String,
    /// The generation that this is about.
    pub observed_generation: Option<i64>,
    /// When `status` became what it is, RFC 3339.
    pub last_transition_time: String,
}

/// The meaning of a [`Condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// All of the policy is enforced as written.
    Accepted,
    /// This generation is in force on every node.
    InForce,
    /// The policy is staged.
    Staged,
    /// Its nodes and the API server stand for these addresses.
    Resolved,
}

impl ConditionKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Accepted, Self::InForce, Self::Staged, Self::Resolved];

    /// `type`, as objects spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "podgate.io/Accepted",
            Self::InForce => "podgate.io/InForce",
            Self::Staged => "podgate.io/Staged",
            Self::Resolved => "podgate.io/Resolved",
        }
    }
}
