//! The reply to connections that policies deny.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The reply to the initiator of a connection that a policy denies: an option of a node, and the
/// annotation [`DeniedReply::ANNOTATION`] of a Namespace, which decides about its pods' policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeniedReply {
    /// None.
    #[default]
    Drop,
    /// A TCP reset, or an ICMP error (administratively prohibited), if the initiator is a pod.
    Reject,
    /// The same to any initiator, outside the cluster too.
    RejectAll,
}

impl DeniedReply {
    /// The annotation of a Namespace.
    pub const ANNOTATION: &'static str = "podgate.io/denied-reply";

    /// The name in options and annotations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::RejectAll => "reject-all",
        }
    }
}

impl FromStr for DeniedReply {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Drop, Self::Reject, Self::RejectAll];
        all.into_iter().find(|it| it.name() == text).ok_or_else(|| {
            format!("'{}' is none of drop, reject and reject-all", text.escape_debug())
        })
    }
}

impl fmt::Display for DeniedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
