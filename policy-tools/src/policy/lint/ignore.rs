//! Reads which findings to leave out.
//!
//! - `# podgate-lint: ignore CHECK[, CHECK…]` at the end of a line, or alone above one: findings there,
//! - the same alone and not indented: findings of the whole document,
//! - a line `CHECK`, or `CHECK OBJECT`, or `CHECK FILE` in a file of such lines.

use std::collections::BTreeMap;

use super::{CHECKS, Finding};

const MARK: &str = "# podgate-lint: ignore";

/// Findings to leave out, as a file lists them.
#[derive(Clone, Debug, Default)]
pub struct Ignored {
    rules: Vec<(String, Option<String>)>,
}

impl Ignored {
    /// Reads lines: a check, and an object or a file where it is about one alone.
    ///
    /// # Errors
    /// Names each line with an unknown check.
    pub fn read(text: &str) -> Result<Self, Vec<String>> {
        let (mut rules, mut faults) = (Vec::new(), Vec::new());
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let (check, place) = line.split_once(' ').unwrap_or((line, ""));
            match CHECKS.contains(&check) {
                _ if check.is_empty() => {}
                false => faults.push(format!("line {}: {}", n + 1, unknown(check))),
                true => {
                    let place = Some(place.trim().to_owned()).filter(|it| !it.is_empty());
                    rules.push((check.to_owned(), place));
                }
            }
        }
        if faults.is_empty() { Ok(Self { rules }) } else { Err(faults) }
    }

    /// Adds the rules of another one.
    pub fn extend(&mut self, other: Self) {
        self.rules.extend(other.rules);
    }

    pub(super) fn has(&self, finding: &Finding) -> bool {
        self.rules.iter().any(|(check, place)| {
            *check == finding.code
                && place.as_ref().is_none_or(|place| {
                    *place == finding.object
                        || finding.file == *place
                        || finding.file.ends_with(&format!("/{place}"))
                })
        })
    }
}

/// Returns the message about an unknown check.
fn unknown(check: &str) -> String {
    let near = crate::policy::labels::nearest(check, CHECKS.into_iter());
    let hint = near.map_or_else(
        || "podgate policy lint --help lists them".to_owned(),
        |it| format!("did you mean {it}?"),
    );
    format!("{} is not a check; {hint}", check.escape_debug())
}

/// The comments of a file.
#[derive(Debug, Default)]
pub(super) struct Comments {
    /// By line: the checks that are left out there.
    lines: BTreeMap<u64, Vec<String>>,
    /// The first and the last line of a document, and the checks that are left out in it.
    documents: Vec<(u64, u64, Vec<String>)>,
    /// Lines with an unknown check, each with its fault.
    pub(super) faults: Vec<(u64, String)>,
}

impl Comments {
    pub(super) fn of(text: &str) -> Self {
        let mut found = Self::default();
        let (mut first, mut of_document) = (1, Vec::new());
        let mut n = 0;
        for line in text.lines() {
            n += 1;
            if line.starts_with("---") {
                found.documents.push((first, n - 1, std::mem::take(&mut of_document)));
                first = n;
            }
            let Some((before, checks)) = line.split_once(MARK) else { continue };
            let checks = checks.split([',', ' ']).map(str::trim).filter(|it| !it.is_empty());
            let (known, wrong): (Vec<&str>, Vec<&str>) = checks.partition(|it| CHECKS.contains(it));
            found.faults.extend(wrong.iter().map(|check| (n, unknown(check))));
            let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
            if before.is_empty() {
                of_document.extend(known);
            } else {
                let of_next = before.trim().is_empty();
                found.lines.entry(n + u64::from(of_next)).or_default().extend(known);
            }
        }
        found.documents.push((first, n, of_document));
        found
    }

    pub(super) fn has(&self, finding: &Finding) -> bool {
        let is_it = |checks: &Vec<String>| checks.iter().any(|it| *it == finding.code);
        self.lines.get(&finding.line).is_some_and(is_it)
            || self.documents.iter().any(|(first, last, checks)| {
                (first..=last).contains(&&finding.line) && is_it(checks)
            })
    }
}
