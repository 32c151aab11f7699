//! The supported versions of the CNI specification.

use std::fmt;

use serde_json::{Value, json};

/// A version of the specification, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub(super) const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    pub(super) const LATEST: Self = Self::V1_1_0;

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The version a configuration names, if it can be read that far.
pub(super) fn of(configuration: &[u8]) -> Option<Version> {
    let value: Value = serde_json::from_slice(configuration).ok()?;
    Version::parse(value.get("cniVersion")?.as_str()?)
}

/// The answer to VERSION, in the version of the request.
pub(super) fn answer(asked: Option<Version>) -> Value {
    json!({
        "cniVersion": asked.unwrap_or(Version::LATEST).as_str(),
        "supportedVersions": Version::ALL.map(Version::as_str),
    })
}

/// The newest version that is not newer than `ours` and among a plugin's `supported` ones.
pub(super) fn common(ours: Version, supported: &[String]) -> Option<Version> {
    let understood = |version: &Version| supported.iter().any(|one| one == version.as_str());
    Version::ALL.into_iter().rev().filter(|version| *version <= ours).find(understood)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_names_the_version_asked_in() {
        let answer = answer(of(br#"{"cniVersion":"1.0.0"}"#));
        assert_eq!(answer["cniVersion"], "1.0.0");
        assert_eq!(answer["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
        assert_eq!(of(b"{"), None);
        assert_eq!(of(br#"{"cniVersion":"9.0.0"}"#), None);
    }

    #[test]
    fn what_two_plugins_have_in_common() {
        let supported = ["0.4.0", "1.0.0", "2.0.0"].map(String::from);
        assert_eq!(common(Version::V1_1_0, &supported), Some(Version::V1_0_0));
        assert_eq!(common(Version::V0_4_0, &supported), Some(Version::V0_4_0));
        assert_eq!(common(Version::V0_3_1, &supported), None);
    }
}
