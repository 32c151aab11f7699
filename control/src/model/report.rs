//! Conditions in the status of a policy.

/// The status of an object. It does not affect the policy's meaning, so all reports compare equal
/// and none is saved.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `metadata.generation`: grows with each change of the spec.
    pub generation: Option<i64>,
    /// The condition of type [`Condition::TYPE`], if there is one.
    pub condition: Option<Condition>,
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
    /// `status`: all of the policy is enforced as written.
    pub accepted: bool,
    /// A word for programs.
    pub reason: String,
    /// A message for people.
    pub message: String,
    /// The generation that this is about.
    pub observed_generation: Option<i64>,
    /// When `status` became what it is, RFC 3339.
    pub last_transition_time: String,
}

impl Condition {
    /// `type`.
    pub const TYPE: &'static str = "podgate.io/Accepted";
}
