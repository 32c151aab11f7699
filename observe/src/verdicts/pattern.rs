//! Patterns of names.

/// A name in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern; letter case is ignored.
    pub fn new(text: &str) -> Self {
        Self(text.to_ascii_lowercase())
    }

    /// The pattern of a domain name.
    ///
    /// # Errors
    /// Fails if it is empty.
    pub fn of_domain(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let name = text.strip_suffix('.').unwrap_or(text);
        match name.is_empty() {
            true => Err("a pattern is empty".to_owned()),
            false => Ok(Self::new(name)),
        }
    }

    /// Returns whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("www.example.org", "www.example.org", true),
            ("WWW.Example.org.", "www.example.org", true),
            ("*.example.org", "www.example.org", true),
            ("*.example.org", "example.org", false),
            ("www.*", "www.example.org", true),
            ("w*e*g", "www.example.org", true),
            ("w*x*x*g", "www.example.org", false),
            ("www", "www.example.org", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(Pattern::of_domain(pattern).unwrap().matches(name), expected, "{pattern}");
        }
    }
}
