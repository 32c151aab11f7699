//! Findings and their levels.

use serde::Serialize;

/// Result of one check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Something is not there that the switch does without.
    Note,
    /// The switch runs; a requested feature is missing or blocked.
    Warning,
    /// The switch cannot run.
    Fatal,
}

/// One fact about the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Its severity.
    pub level: Level,
    /// The finding in words.
    pub detail: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    pub(crate) fn new(check: &'static str, level: Level, detail: impl Into<String>) -> Self {
        Self { check, level, detail: detail.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
