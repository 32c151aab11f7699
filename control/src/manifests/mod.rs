//! Manifests: files and folders of Kubernetes objects.
//!
//! YAML or JSON, many documents to a file, `List`s of any kind; what `kubectl get … -A -o yaml`
//! prints works as it is. A folder stands for the `.yaml`, `.yml` and `.json` files in it and
//! in its subfolders. Hidden names (with a leading dot, as the inner folders of a mounted
//! ConfigMap have) and what editors leave (`name~`, `#name#`) are passed over. A file named
//! outright is read whatever its name.
//!
//! [`load`] reads everything once. [`Source`] reads repeatedly and remembers each file's last
//! objects, so that a file broken half-way through an edit changes nothing. [`Watcher`] reports
//! changes.

mod documents;
mod json;
mod lenient;
mod located;
mod parsed;
mod parts;
mod source;
mod watcher;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use parsed::Text;

pub use lenient::template_line;
pub use located::{Located, Tree};
pub use parsed::Parsed;
pub use source::Source;
pub use watcher::Watcher;
pub use yaml::{parse_yaml, yaml_problem};

use crate::{Fault, FieldFault, Object, ObjectRef, read_bounded, read_regular};

/// The content of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The objects, each once. Of an object that is defined twice the later definition counts;
    /// files are ordered by name.
    pub objects: Vec<Object>,
    /// Documents of other kinds, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// The changes of manifests since they were read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The objects that were added or changed; some of them may be as they were.
    pub objects: Vec<Object>,
    /// The objects that are gone.
    pub removed: Vec<ObjectRef>,
    /// Documents of other kinds in all files, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// The faults of all files.
    pub faults: Vec<Fault>,
}

/// Maximum length of a manifest, in bytes; the output of `kubectl get` for a large cluster has a tenth of it.
pub const LONGEST: u64 = 1 << 30;

/// Reads `paths` once.
pub fn load(paths: &[PathBuf]) -> Loaded {
    Source::new(paths).load()
}

/// Changes an object before it is read, by its file and the number of its document; `None` leaves
/// it out.
pub type Adapt<'a> = dyn FnMut(&Path, usize, Value) -> Option<Value> + 'a;

/// Reads `paths` once, every object going through `adapt` first; what `parsed` has is not parsed again. The path
/// `-` is standard input.
pub fn load_adapted(paths: &[PathBuf], parsed: &Parsed, adapt: &mut Adapt<'_>) -> Loaded {
    let (stdin, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.iter().cloned().partition(|path| path.as_os_str() == "-");
    let (mut files, faults) = files(&paths);
    files.extend(stdin);
    let mut loaded = Loaded { faults, ..Loaded::default() };
    let mut known = BTreeMap::new();
    let mut texts = Vec::new();
    for file in files {
        let text = match file.as_os_str() == "-" {
            true => read_bounded(io::stdin().lock(), LONGEST),
            false => read_regular(&file, LONGEST),
        };
        match text {
            Ok(text) => {
                let text = Text { is_json: documents::is_json(&file), text: text.into() };
                texts.push((file, text));
            }
            Err(error) => loaded.faults.push(unreadable(&file, &error)),
        }
    }
    parsed.parse(&texts.iter().map(|(_, text)| text).collect::<Vec<_>>());
    for (file, text) in texts {
        let documents = parsed.documents(&text);
        let content = documents::read_parsed(&file, &text.text, documents, adapt);
        loaded.faults.extend(content.faults);
        for (kind, count) in content.skipped {
            *loaded.skipped.entry(kind).or_default() += count;
        }
        known.insert(file, content.objects);
    }
    let all = known.iter().flat_map(|(file, objects)| {
        objects.iter().map(move |(object, document)| (file, object, *document))
    });
    loaded.objects = source::merge(all, &mut loaded.faults);
    loaded
}

/// The files that `paths` stand for, sorted, and the paths that cannot be read.
fn files(paths: &[PathBuf]) -> (BTreeSet<PathBuf>, Vec<Fault>) {
    let (mut files, mut faults) = (BTreeSet::new(), Vec::new());
    let mut visited = BTreeSet::new();
    for path in paths {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => folder(path, &mut visited, &mut files, &mut faults),
            Ok(_) => {
                files.insert(path.clone());
            }
            Err(error) => faults.push(unreadable(path, &error)),
        }
    }
    (files, faults)
}

fn folder(
    path: &Path,
    visited: &mut BTreeSet<PathBuf>,
    files: &mut BTreeSet<PathBuf>,
    faults: &mut Vec<Fault>,
) {
    // Links may form a cycle.
    match path.canonicalize() {
        Ok(real) => {
            if !visited.insert(real) {
                return;
            }
        }
        Err(error) => return faults.push(unreadable(path, &error)),
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return faults.push(unreadable(path, &error)),
    };
    for entry in entries.flatten() {
        // The folder's entry has the type, except of a link.
        let kind = entry.file_type().ok().filter(|kind| !kind.is_symlink()).map(Ok);
        let entry = entry.path();
        let kind = kind.unwrap_or_else(|| fs::metadata(&entry).map(|meta| meta.file_type()));
        match kind {
            _ if is_hidden(&entry) => {}
            Ok(kind) if kind.is_dir() => folder(&entry, visited, files, faults),
            Ok(_) if is_manifest(&entry) => {
                files.insert(entry);
            }
            Ok(_) => {}
            // Deleted since it was listed: it has no objects.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !entry.is_symlink() => {}
            Err(error) => faults.push(unreadable(&entry, &error)),
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with('.') || name.starts_with('#') || name.ends_with('~')
    })
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|it| ["yaml", "yml", "json"].iter().any(|known| it == *known))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Fault {
    Fault {
        file: Some(path.to_path_buf()),
        document: None,
        position: None,
        object: None,
        fault: FieldFault::new("", format!("cannot be read: {error}")),
    }
}
