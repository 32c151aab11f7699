//! Mistakes in manifests that no parser finds: each with its file, line and column.
//!
//! - `fields`: what an object's text alone shows,
//! - `selectors`: selectors and port names, against the pods that there are,
//! - `rules`: rules that others leave nothing to.

mod fields;
mod rules;
mod selectors;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::input::located::{Located, documents};
use crate::input::staged::Staged;
use crate::input::{Manifests, is_of_cluster};
use crate::probe::complete::complete;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
    /// The object, as `KIND NS/NAME`.
    pub object: String,
    /// The kind of mistake; [`INVALID`] for what the switch itself cannot read.
    pub code: &'static str,
    /// The mistake, and where possible its mend.
    pub message: String,
}

/// The code of faults that make an object unusable.
pub const INVALID: &str = "invalid";

/// An object as it stands in its file.
struct Source {
    file: String,
    document: usize,
    tree: Located,
    /// `KIND NS/NAME`.
    object: String,
}

/// Finds the mistakes in files and folders, in the order of files and lines. The objects of `cluster`
/// count too, and are not checked themselves.
///
/// # Errors
/// Files that cannot be read, or are no YAML.
pub fn lint(paths: &[PathBuf], cluster: Option<&Path>) -> Result<Vec<Finding>, Vec<String>> {
    let staged = Staged::new(paths, cluster, true)?;
    let (mut manifests, mut faults, mut files) = Manifests::read_staged(&staged);
    if let Some(live) = &staged.live {
        files.remove(live);
        faults.retain(|fault| fault.file.as_ref() != Some(live));
    }
    let named = |file: &Path| staged.named(&crate::input::name(file));
    let mut sources = Vec::new();
    let mut unreadable = Vec::new();
    for file in &files {
        let name = named(file);
        let text = fs::read(file).map_err(|error| format!("cannot be read: {error}"));
        match text.and_then(|text| documents(&text)) {
            Ok(found) => {
                for (n, document) in found.into_iter().enumerate() {
                    add_sources(&name, n + 1, document, None, &mut sources);
                }
            }
            Err(problem) => unreadable.push(format!("{name}: {problem}")),
        }
    }
    let unrendered = manifests.unrendered.iter().map(|(file, note)| (named(file), note.clone()));
    let no_file = faults.iter().filter(|fault| fault.document.is_none());
    unreadable.extend(no_file.map(|fault| staged.named(&fault.to_string())));
    if !unreadable.is_empty() {
        return Err(unreadable);
    }
    if sources.is_empty() && !faults.is_empty() {
        return Err(faults.iter().map(|fault| staged.named(&fault.to_string())).collect());
    }
    if sources.is_empty() {
        let nothing = paths.iter().map(|path| format!("{}: holds no objects", path.display()));
        let notes = unrendered.map(|(file, note)| format!("{file}: {note}"));
        return Err(nothing.chain(notes).collect());
    }
    let mut findings = Findings { sources: &sources, found: BTreeSet::new() };
    // Most often the cause of faults.
    for (file, message) in unrendered.filter(|_| !faults.is_empty()) {
        let (object, code) = (String::new(), "not-rendered");
        findings.found.insert(Finding { file, line: 1, column: 1, object, code, message });
    }
    for source in &sources {
        findings.foreign(source);
        findings.types(source);
        findings.peers(source);
    }
    findings.faults(&faults, &named);
    findings.selectors(&manifests.objects);
    complete(&mut manifests, []).map_err(|problem| vec![problem])?;
    findings.rules(&manifests);
    Ok(findings.found.into_iter().collect())
}

/// The objects of a document, of a list each item, which may leave its kind to the list.
fn add_sources(
    file: &str,
    document: usize,
    tree: Located,
    list: Option<&str>,
    sources: &mut Vec<Source>,
) {
    let text = |path: &[&str]| {
        let at = path.iter().try_fold(&tree, |at, field| at.get(field));
        at.and_then(Located::text).map(str::to_owned)
    };
    let Some(kind) = text(&["kind"]).or(list.map(str::to_owned)) else { return };
    if kind.ends_with("List") && tree.get("items").is_some_and(Located::is_list) {
        let list = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
        for item in tree.get("items").into_iter().flat_map(Located::elements) {
            add_sources(file, document, item.clone(), list, sources);
        }
        return;
    }
    let name = text(&["metadata", "name"]).unwrap_or_default();
    let namespace = text(&["metadata", "namespace"]).unwrap_or_else(|| "default".into());
    let object = match &*kind {
        kind if is_of_cluster(kind) => format!("{kind} {name}"),
        _ => format!("{kind} {namespace}/{name}"),
    };
    sources.push(Source { file: file.to_owned(), document, tree, object });
}

struct Findings<'a> {
    sources: &'a [Source],
    found: BTreeSet<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, source: &Source, path: &str, code: &'static str, message: String) {
        let at = source.tree.nearest(path);
        self.found.insert(Finding {
            file: source.file.clone(),
            line: at.line,
            column: at.column,
            object: source.object.clone(),
            code,
            message,
        });
    }

    fn add_to(&mut self, object: &str, path: &str, code: &'static str, message: String) {
        if let Some(source) = self.sources.iter().rev().find(|source| source.object == object) {
            self.add(source, path, code, message);
        }
    }
}
