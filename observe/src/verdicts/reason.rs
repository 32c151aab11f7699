//! Reasons of verdicts.

use std::fmt;

use dataplane::Outcome;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An outcome of the dataplane; its name in words and in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// One that this version knows.
    Outcome(Outcome),
    /// One of a switch of another version, by its name.
    Unknown(Box<str>),
}

impl Reason {
    /// Its name, as in metrics.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Outcome(outcome) => outcome.name(),
            Self::Unknown(name) => name,
        }
    }

    /// The outcome, if this version knows it.
    pub fn outcome(&self) -> Option<Outcome> {
        if let Self::Outcome(outcome) = self { Some(*outcome) } else { None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Outcome> for Reason {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

/// The reason of this name.
impl From<&str> for Reason {
    fn from(name: &str) -> Self {
        let known = Outcome::ALL.iter().find(|outcome| outcome.name() == name);
        known.map_or_else(|| Self::Unknown(name.into()), |outcome| Self::Outcome(*outcome))
    }
}

impl PartialEq<Outcome> for Reason {
    fn eq(&self, other: &Outcome) -> bool {
        self.outcome() == Some(*other)
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?.as_str().into())
    }
}
