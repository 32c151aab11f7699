//! Failures of dials.

/// Failure of a dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    /// The error text for the API server.
    pub(crate) text: String,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    NoAgent,
    /// A session rule here denies the target.
    Denied,
    TooManyPending,
    /// The agent gave no answer in time.
    NoAnswer,
    AgentGone,
    /// The agent's dial failed.
    Refused(Cause),
}

/// Causes of a dial's failure at the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Timeout,
    TooManyFiles,
    Denied,
    Other,
}

impl Kind {
    /// The metric's label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NoAgent => "no_agent",
            Self::Denied => "denied_by_rule",
            Self::TooManyPending => "too_many_pending",
            Self::NoAnswer => "backend_dial_timeout",
            Self::AgentGone => "backend_close",
            Self::Refused(_) => "error_response",
        }
    }
}

impl Failure {
    pub(crate) fn no_agent() -> Self {
        Self { kind: Kind::NoAgent, text: "No agent available".to_owned() }
    }

    pub(crate) fn too_many() -> Self {
        let text = "too many dials wait for this agent already".to_owned();
        Self { kind: Kind::TooManyPending, text }
    }

    /// The failure of an agent's dial. The protocol transfers its text only, which both
    /// implementations compose alike: `dial tcp TARGET: CAUSE`, the system's error last.
    pub(crate) fn of_agent(text: String) -> Self {
        let of_target = text.strip_prefix("dial tcp ").and_then(|it| it.split_once(": "));
        let cause = match text.rsplit(": ").next() {
            _ if of_target.is_some_and(|(_, it)| it.starts_with("denied")) => Cause::Denied,
            Some("i/o timeout") => Cause::Timeout,
            Some("too many open files") => Cause::TooManyFiles,
            _ => Cause::Other,
        };
        Self { kind: Kind::Refused(cause), text }
    }
}
