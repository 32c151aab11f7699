//! Finds mistakes in manifests that no parser reports, each with file, line and column.
//!
//! - `fields`: what an object's text alone shows,
//! - `selectors`: selectors, against the pods that there are,
//! - `ports` and `networks`: ports and networks of rules, against containers, services and pods,
//! - `dns`: pods that cannot ask for names,
//! - `rules` and `hidden`: rules that others leave nothing to,
//! - `repairs`: remedies that a message names,
//! - `ignore`: findings that are left out.

mod dns;
mod fields;
mod hidden;
mod ignore;
mod networks;
mod ports;
mod repairs;
mod rules;
mod selectors;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::manifests;
use control::model::Labels;
use serde::Serialize;

use crate::input::located::{Located, readable};
use crate::input::staged::Staged;
use crate::input::{Manifests, Reading, is_of_cluster};
use crate::probe::complete::complete;

use ignore::Comments;
pub use ignore::Ignored;

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
    /// The mistake, and if known its fix.
    pub message: String,
}

/// The code of faults that make an object unusable.
pub const INVALID: &str = "invalid";

/// The code of workloads that no policy selects.
pub const NOT_SELECTED: &str = "not-selected";

impl Finding {
    /// Its weight: `error`, `warning`, or `note` for what may well be meant.
    pub fn severity(&self) -> &'static str {
        match self.code {
            INVALID => "error",
            NOT_SELECTED => "note",
            _ => "warning",
        }
    }
}

/// Every code.
pub const CHECKS: [&str; 26] = [
    "block-of-pods",
    "block-of-service",
    "dns-over-tcp-only",
    "egress-without-dns",
    "egress-without-type",
    "except-is-all",
    "except-outside",
    "host-bits",
    "ingress-without-type",
    INVALID,
    "not-enforced-here",
    "not-rendered",
    NOT_SELECTED,
    "opens-to-all",
    "or-for-and",
    "peer-selects-no-pod",
    "peer-selects-only-host-network",
    "port-of-no-container",
    "redundant-rule",
    "selects-no-node",
    "selects-no-pod",
    "selects-only-host-network",
    "service-port",
    "shadowed-rule",
    "unknown-check",
    "unknown-port-name",
];

/// Settings of the search for mistakes.
#[derive(Clone, Debug, Default)]
pub struct LintOptions<'a> {
    /// The kubeconfig of a cluster whose objects count too, and are not checked themselves.
    pub cluster: Option<&'a Path>,
    /// The context of that kubeconfig; `None`: its current one.
    pub context: Option<String>,
    /// True if pods outside of the files are expected: a selector without pods is then no mistake.
    pub workloads_elsewhere: bool,
    /// True if charts and kustomizations are rendered, by the user's programs.
    pub render: bool,
    /// True if workloads that no policy selects are noted.
    pub not_selected: bool,
    /// Findings that are left out, beside those that comments leave out.
    pub ignored: Ignored,
}

/// An object as it stands in its file.
struct Source {
    file: String,
    document: usize,
    tree: Located,
    /// `KIND NS/NAME`.
    object: String,
}

/// The result of a search for mistakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linted {
    /// The mistakes, in the order of files and lines.
    pub findings: Vec<Finding>,
    /// Folders that were not checked as they will be applied, each with what to run.
    pub notes: Vec<String>,
    /// Templates and charts that were not checked.
    pub templates: Vec<String>,
}

/// Finds the mistakes in files and folders.
///
/// # Errors
/// Fails if no object can be read. Beside objects that can, what cannot is a finding.
pub fn lint(paths: &[PathBuf], options: &LintOptions<'_>) -> Result<Linted, Vec<String>> {
    let context = options.context.clone();
    let reading = Reading { render: options.render, context, ..Reading::default() };
    let staged = Staged::new(paths, options.cluster, true, &reading)?;
    let (mut manifests, mut faults, mut files) = Manifests::read_staged(&staged, &reading);
    if let Some(live) = &staged.live {
        files.remove(live);
        faults.retain(|fault| fault.file.as_ref() != Some(live));
    }
    let named = |file: &Path| staged.named(&crate::input::name(file));
    let mut sources = Vec::new();
    let mut comments: BTreeMap<String, Comments> = BTreeMap::new();
    for file in &files {
        let name = named(file);
        // What cannot be read is among the faults.
        let Ok(text) = control::read_regular(file, manifests::LONGEST) else { continue };
        let words = String::from_utf8_lossy(&text);
        comments.insert(name.clone(), Comments::of(&words));
        for fault in faults.iter_mut().filter(|it| it.file.as_deref() == Some(file)) {
            let line = fault.position.filter(|_| fault.object.is_none()).map(|it| it.line);
            if let Some(repair) = line.and_then(|line| repairs::of_text(&words, line)) {
                fault.fault.problem += &format!("; {repair}");
            }
        }
        for (n, document) in readable(&text).into_iter().enumerate() {
            add_sources(&name, n + 1, document, None, &mut sources);
        }
    }
    let unrendered = manifests.unrendered.iter();
    let unrendered = unrendered.map(|it| (named(&it.file), it.note.clone()));
    if sources.is_empty() && !faults.is_empty() {
        return Err(faults.iter().map(|fault| staged.named(&fault.to_string())).collect());
    }
    if sources.is_empty() {
        let nothing = paths.iter().map(|path| format!("{}: holds no objects", path.display()));
        let notes = unrendered.map(|(file, note)| format!("{file}: {note}"));
        return Err(nothing.chain(notes).collect());
    }
    let mut findings = Findings {
        sources: &sources,
        found: BTreeSet::new(),
        reported: BTreeSet::new(),
        of_operators: sources.iter().filter_map(Source::of_operator).collect(),
        workloads_elsewhere: options.workloads_elsewhere || manifests.pods().next().is_none(),
    };
    let mut notes = Vec::new();
    for (file, message) in unrendered {
        if faults.is_empty() {
            notes.push(format!("{file}: {message}"));
            continue;
        }
        // This is the most frequent cause of faults.
        let (object, code) = (String::new(), "not-rendered");
        findings.found.insert(Finding { file, line: 1, column: 1, object, code, message });
    }
    for source in &sources {
        findings.foreign(source);
        findings.types(source);
        findings.peers(source);
    }
    findings.faults(&faults, &named);
    findings.selectors(&manifests);
    findings.dns(&manifests.objects);
    if options.not_selected {
        findings.not_selected(&manifests);
    }
    let before = manifests.clone();
    complete(&mut manifests, []).map_err(|problem| vec![problem])?;
    findings.rules(&manifests);
    findings.hidden(before);
    let mut found = findings.found;
    let is_left_out = |it: &Finding| {
        it.code != INVALID
            && (options.ignored.has(it) || comments.get(&it.file).is_some_and(|of| of.has(it)))
    };
    found.retain(|it| !is_left_out(it));
    for (file, comments) in &comments {
        found.extend(comments.faults.iter().map(|(line, message)| Finding {
            file: file.clone(),
            line: *line,
            column: 1,
            object: String::new(),
            code: "unknown-check",
            message: message.clone(),
        }));
    }
    let templates = manifests.templates.iter().map(|note| staged.named(note)).collect();
    Ok(Linted { findings: found.into_iter().collect(), notes, templates })
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

impl Source {
    /// The labels of a workload itself, which its pods need not have.
    fn labels_beside_template(&self) -> Option<Labels> {
        self.tree.get("spec")?.get("template")?.get("spec")?;
        let labels = self.tree.get("metadata")?.get("labels")?.fields().iter();
        Some(labels.filter_map(|(key, value)| Some((&**key, value.text()?))).collect())
    }

    /// Returns namespace and labels of an object of a custom kind: its operator may create pods with these labels.
    fn of_operator(&self) -> Option<(Arc<str>, Labels)> {
        let text =
            |at: &Located, field: &str| at.get(field).and_then(Located::text).map(str::to_owned);
        let version = text(&self.tree, "apiVersion")?;
        let (group, _) = version.split_once('/')?;
        if !group.contains('.') || group.ends_with(".k8s.io") || group == "podgate.io" {
            return None;
        }
        let metadata = self.tree.get("metadata")?;
        let namespace = text(metadata, "namespace").unwrap_or_else(|| "default".into());
        let labels = metadata.get("labels")?.fields().iter();
        let labels = labels.filter_map(|(key, value)| Some((&**key, value.text()?)));
        Some((namespace.into(), labels.collect()))
    }
}

struct Findings<'a> {
    sources: &'a [Source],
    found: BTreeSet<Finding>,
    /// Namespaces with a finding that is reported once for all their policies.
    reported: BTreeSet<(Arc<str>, &'static str)>,
    /// Namespaces and labels of objects whose operators may make pods.
    of_operators: Vec<(Arc<str>, Labels)>,
    workloads_elsewhere: bool,
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
