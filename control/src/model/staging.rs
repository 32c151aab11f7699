//! Staged policies: evaluated beside those that are enforced, and not enforced.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Whether a policy is enforced: an option of a node, and the annotation [`Stage::ANNOTATION`] of policies, and
/// of Namespaces for their policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Evaluated alone: what it would change is reported.
    Staged,
    /// Enforced.
    #[default]
    Enforced,
}

impl Stage {
    /// The annotation of policies and Namespaces.
    pub const ANNOTATION: &'static str = "podgate.io/stage";
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "staged" => Ok(Self::Staged),
            "enforced" => Ok(Self::Enforced),
            _ => Err(format!("'{}' is neither staged nor enforced", text.escape_debug())),
        }
    }
}

/// The annotations of a policy about stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staging {
    /// Its annotation [`Stage::ANNOTATION`].
    pub stage: Option<Stage>,
    /// Its annotation [`Staging::REPLACES`]: the name of the policy, of the same kind and namespace, that it
    /// replaces among the staged ones. It is staged itself.
    pub replaces: Option<Arc<str>>,
}

impl Staging {
    /// The annotation with the name of the policy whose next version this one is.
    pub const REPLACES: &'static str = "podgate.io/stages";

    /// The stage of the policy, where `default` is that of policies without annotation.
    pub fn stage(&self, default: Stage) -> Stage {
        match self.replaces {
            Some(_) => Stage::Staged,
            None => self.stage.unwrap_or(default),
        }
    }
}
