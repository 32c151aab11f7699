//! Identifiers of pods.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Identifier of a pod among those of its name. As Kubernetes writes them, they take no memory of their own: UUIDs,
/// and the kubelet's hashes of static pods.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Uid {
    /// A UUID (RFC 9562) in lower case.
    Uuid([u8; 16]),
    /// 32 hexadecimal digits in lower case.
    Hash([u8; 16]),
    /// Another text.
    Text(Arc<str>),
}

/// Places of the dashes in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        let bytes = text.as_bytes();
        let has_dashes = bytes.len() == 36 && DASHES.iter().all(|at| bytes[*at] == b'-');
        let digits = match has_dashes {
            true => digits((0..36).filter(|at| !DASHES.contains(at)).map(|at| bytes[at])),
            false => digits(bytes.iter().copied()),
        };
        match digits {
            Some(value) if has_dashes => Self::Uuid(value),
            Some(value) => Self::Hash(value),
            None => Self::Text(text.into()),
        }
    }
}

/// The value of 32 hexadecimal digits in lower case.
fn digits(mut text: impl Iterator<Item = u8>) -> Option<[u8; 16]> {
    let mut value = [0; 16];
    for byte in &mut value {
        for _ in 0..2 {
            let digit = match text.next()? {
                digit @ b'0'..=b'9' => digit - b'0',
                digit @ b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | digit;
        }
    }
    text.next().is_none().then_some(value)
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, has_dashes) = match self {
            Self::Uuid(value) => (value, true),
            Self::Hash(value) => (value, false),
            Self::Text(text) => return f.write_str(text),
        };
        for (at, byte) in value.iter().enumerate() {
            if has_dashes && matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_kubernetes_writes_takes_no_memory_of_its_own() {
        assert!(matches!("6b1c1d9a-0f00-4000-8000-00000000000f".into(), Uid::Uuid(_)));
        assert!(matches!("0123456789abcdef0123456789abcdef".into(), Uid::Hash(_)));
        for other in
            ["", "h", "6B1C1D9A-0F00-4000-8000-00000000000F", "0123456789abcdef-0123456789abcdef"]
        {
            assert!(matches!(other.into(), Uid::Text(_)), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_uid_is_the_same_text_afterwards(
            text in prop_oneof!["[0-9a-f-]{0,40}", "[0-9a-f]{32}", ".{0,40}",
                "[0-9a-fA]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"],
        ) {
            prop_assert_eq!(Uid::from(&*text).to_string(), text);
        }
    }
}
