//! Faults in the input and their positions.

use std::fmt;
use std::path::PathBuf;

use crate::ObjectRef;

/// A field that cannot be read or has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldFault {
    /// The path of the field, such as `spec.ingress[0].from[1].ipBlock.cidr`; empty for
    /// the object as a whole.
    pub field: String,
    /// The fault, with the value where that helps.
    pub problem: String,
}

impl FieldFault {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: plain(field.into()), problem: plain(problem.into()) }
    }

    /// The same with the object it is in.
    pub fn of(self, object: ObjectRef) -> Fault {
        Fault { file: None, document: None, position: None, object: Some(object), fault: self }
    }
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}

/// Writes control characters as escapes, so that no input forges a line of output.
pub(crate) fn plain(text: String) -> String {
    match text.chars().any(char::is_control) {
        false => text,
        true => text
            .chars()
            .flat_map(|it| match it.is_control() {
                true => it.escape_default().collect::<Vec<char>>(),
                false => vec![it],
            })
            .collect(),
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
}

/// A fault and where it was found; displays as
/// `FILE: document N (KIND NS/NAME): FIELD: what is wrong`, without the parts that do not apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The file, for manifests.
    pub file: Option<PathBuf>,
    /// The document in the file, from 1.
    pub document: Option<usize>,
    /// Position in the file of the field or of the innermost part around it; `None` if the file
    /// cannot be parsed.
    pub position: Option<Position>,
    /// The object, if its name is known.
    pub object: Option<ObjectRef>,
    /// The field and the problem.
    pub fault: FieldFault,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", plain(file.display().to_string()))?;
        }
        match (&self.document, &self.object) {
            (Some(document), Some(object)) => write!(f, "document {document} ({object}): ")?,
            (Some(document), None) => write!(f, "document {document}: ")?,
            (None, Some(object)) => write!(f, "{object}: ")?,
            (None, None) => {}
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_fault_forges_a_line() {
        let fault = Fault {
            file: Some("a\nfault: none.yaml".into()),
            document: Some(1),
            position: None,
            object: None,
            fault: FieldFault::new("x\ny", "z\u{1b}[2J"),
        };
        assert_eq!(fault.to_string(), r"a\nfault: none.yaml: document 1: x\ny: z\u{1b}[2J");
    }
}
