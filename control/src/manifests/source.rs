//! Reads manifests repeatedly and remembers each file's last objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ahash::RandomState;

use super::documents::Content;
use super::parts::{self, Hashers, Part};
use super::{Changes, LONGEST, Loaded, files, unreadable};
use crate::{Fault, FieldFault, Object, ObjectRef, read_regular};

/// Age of a file's last change from which on its times tell further changes apart: file systems count them in
/// steps, the coarsest in steps of two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Manifest files with a memory. Only documents that changed are read again.
///
/// A file that exists but cannot be read to its end keeps its last objects; if it was never
/// readable, the documents before the damage count. If a file may contain a damaged object (a
/// document without `apiVersion` or name, a file truncated for rewriting), its missing objects
/// stay, and a fault reports them. Deleting a file removes its objects. Single bad objects in a
/// readable file are evaluated as [`crate::objects`] describes.
#[derive(Debug, Default)]
pub struct Source {
    paths: Vec<PathBuf>,
    known: BTreeMap<PathBuf, Known>,
    hashers: Hashers,
    /// Number of definitions of each object.
    definitions: HashMap<ObjectRef, i64, RandomState>,
    /// The objects with more than one.
    ambiguous: HashSet<ObjectRef, RandomState>,
    /// Faults of paths that cannot be read.
    unreachable: Vec<Fault>,
}

/// The last complete content of a file.
#[derive(Debug, Default)]
struct Known {
    parts: Vec<Part>,
    /// State of the file with this content, if every later change alters that state.
    stamp: Option<Stamp>,
}

/// The state of a file: device, inode, length, and the times of its last changes.
#[derive(Debug, PartialEq, Eq)]
struct Stamp([i128; 5]);

impl Stamp {
    /// The state of the file at a path; `None` if it is no regular file or changed of late.
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let nanos =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        let written = nanos(meta.mtime(), meta.mtime_nsec());
        let changed = nanos(meta.ctime(), meta.ctime_nsec());
        let settled = SystemTime::now().checked_sub(SETTLED)?;
        let settled = settled.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos();
        let is_settled = written.max(changed) < i128::try_from(settled).ok()?;
        let ids = [meta.dev().into(), meta.ino().into(), meta.len().into()];
        is_settled.then(|| Self([ids[0], ids[1], ids[2], written, changed]))
    }
}

impl Source {
    /// The files and folders at `paths`.
    pub fn new(paths: &[PathBuf]) -> Self {
        Self { paths: paths.to_vec(), ..Self::default() }
    }

    /// Reads what changed since the last call, and returns everything.
    pub fn load(&mut self) -> Loaded {
        self.read();
        let (mut faults, skipped) = self.report();
        let objects = merge(self.all(), &mut faults);
        Loaded { objects, skipped, faults }
    }

    /// Reads what changed since the last call, and returns that.
    pub fn changes(&mut self) -> Changes {
        let mut touched = self.read();
        let (mut faults, skipped) = self.report();
        let is_gone = |reference: &&ObjectRef| !self.definitions.contains_key(*reference);
        let removed = touched.iter().filter(is_gone).cloned().collect();
        // Their differences are faults again.
        touched.extend(self.ambiguous.iter().cloned());
        let changed = self.all().filter(|(_, object, _)| touched.contains(&object.reference()));
        let objects = if touched.is_empty() { Vec::new() } else { merge(changed, &mut faults) };
        Changes { objects, removed, skipped, faults }
    }

    /// Every definition of an object, with its file and the number of its document.
    fn all(&self) -> impl Iterator<Item = (&PathBuf, &Object, usize)> {
        self.known.iter().flat_map(|(file, known)| {
            let objects = known.parts.iter().flat_map(Part::objects);
            objects.map(move |(object, document)| (file, object, document))
        })
    }

    /// The faults of all files, and the number of their documents of other kinds.
    fn report(&self) -> (Vec<Fault>, BTreeMap<String, usize>) {
        let (mut faults, mut skipped) = (self.unreachable.clone(), BTreeMap::new());
        for part in self.known.values().flat_map(|known| &known.parts) {
            faults.extend(part.faults());
            for (kind, count) in &part.content.skipped {
                *skipped.entry(kind.clone()).or_default() += count;
            }
        }
        (faults, skipped)
    }

    /// Reads what changed, and returns the objects of documents that came or went.
    fn read(&mut self) -> HashSet<ObjectRef, RandomState> {
        let (files, faults) = files(&self.paths);
        self.unreachable = faults;
        let mut before = std::mem::take(&mut self.known);
        let mut touched = HashSet::default();
        for file in files {
            let last = before.remove(&file);
            // Before the file is read: a change in between makes it read again.
            let stamp = Stamp::of(&file);
            let now = match last {
                Some(last) if stamp.is_some() && last.stamp == stamp => last,
                last => {
                    let parts = last.as_ref().map_or_else(Vec::new, |last| last.parts.clone());
                    let now = read_again(&file, last, stamp, &self.hashers);
                    self.count(&parts, now.as_ref().map_or(&[], |now| &now.parts), &mut touched);
                    let Some(now) = now else { continue };
                    now
                }
            };
            self.known.insert(file, now);
        }
        for (file, last) in before {
            // A file below a path that exists but cannot be listed stays.
            match fs::symlink_metadata(&file) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.count(&last.parts, &[], &mut touched);
                }
                _ => drop(self.known.insert(file, Known { stamp: None, ..last })),
            }
        }
        touched
    }

    /// Counts the definitions of a file's parts instead of those before; adds their objects to
    /// `touched`, where a part is not among both.
    fn count(
        &mut self,
        before: &[Part],
        after: &[Part],
        touched: &mut HashSet<ObjectRef, RandomState>,
    ) {
        let mut balance: HashMap<*const Content, (i64, &Part)> = HashMap::new();
        for (parts, change) in [(before, -1), (after, 1)] {
            for part in parts {
                balance.entry(Arc::as_ptr(&part.content)).or_insert((0, part)).0 += change;
            }
        }
        for (change, part) in balance.into_values().filter(|(change, _)| *change != 0) {
            for (object, _) in part.objects() {
                let reference = object.reference();
                let count = self.definitions.entry(reference.clone()).or_default();
                *count += change;
                match *count {
                    0 => drop(self.definitions.remove(&reference)),
                    1 => drop(self.ambiguous.remove(&reference)),
                    _ => drop(self.ambiguous.insert(reference.clone())),
                }
                touched.insert(reference);
            }
        }
    }
}

/// Reads a file; `None` if it is gone.
fn read_again(
    file: &Path,
    last: Option<Known>,
    stamp: Option<Stamp>,
    hashers: &Hashers,
) -> Option<Known> {
    let last = last.map(|last| last.parts);
    let mut parts = match read_regular(file, LONGEST) {
        Ok(text) => parts::read(file, &text, last.as_deref().unwrap_or_default(), hashers),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            let faults = vec![unreadable(file, &error)];
            vec![Part::whole(Content { faults, ..Content::default() })]
        }
    };
    let is_whole = parts.iter().all(|part| part.content.whole);
    let is_unclear = parts.iter().any(|part| part.content.unclear);
    // Otherwise the outcome depends on earlier content.
    let stamp = stamp.filter(|_| is_whole && !is_unclear);
    if let Some(last) = last.filter(|_| !is_whole || is_unclear) {
        let kept = Part::whole(missing(file, &last, &parts, is_whole));
        if !is_whole {
            parts.iter_mut().for_each(Part::drop_objects);
        }
        parts.push(kept);
    }
    Some(Known { parts, stamp })
}

/// The objects that a file had last and has no more, as faults too where the file is whole.
fn missing(file: &Path, last: &[Part], now: &[Part], is_whole: bool) -> Content {
    let present: HashSet<ObjectRef> =
        now.iter().flat_map(Part::objects).map(|(object, _)| object.reference()).collect();
    let mut kept = Content { whole: true, ..Content::default() };
    for (object, document) in last.iter().flat_map(Part::objects) {
        let reference = object.reference();
        if is_whole && present.contains(&reference) {
            continue;
        }
        if is_whole {
            kept.faults.push(Fault {
                file: Some(file.to_path_buf()),
                document: None,
                position: None,
                object: Some(reference),
                fault: FieldFault::new(
                    "",
                    "missing, but the file may be damaged; stays as it was until the file is whole or \
                     gone",
                ),
            });
        }
        kept.objects.push((object.clone(), document));
    }
    kept
}

/// The objects of all files, the later definition counting; definitions that differ are a fault.
pub(super) fn merge<'f>(
    definitions: impl Iterator<Item = (&'f PathBuf, &'f Object, usize)>,
    faults: &mut Vec<Fault>,
) -> Vec<Object> {
    let mut at: HashMap<ObjectRef, (usize, &PathBuf, usize)> = HashMap::new();
    let mut objects: Vec<Object> = Vec::new();
    for (file, object, document) in definitions {
        let reference = object.reference();
        match at.insert(reference.clone(), (objects.len(), file, document)) {
            None => objects.push(object.clone()),
            Some((index, other, elsewhere)) => {
                at.insert(reference.clone(), (index, file, document));
                if objects[index] != *object {
                    faults.push(Fault {
                        file: Some(file.clone()),
                        document: Some(document),
                        position: None,
                        object: Some(reference),
                        fault: FieldFault::new(
                            "",
                            format!(
                                "differs from document {elsewhere} of {}; this one counts",
                                other.display()
                            ),
                        ),
                    });
                    objects[index] = object.clone();
                }
            }
        }
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own, with files.
    struct Folder(testkit::TempDir);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(testkit::TempDir::new(&format!("source-{name}")))
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    fn pod(name: &str, label: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{l: {label}}}}}\n"
        )
    }

    fn names(loaded: &Loaded) -> Vec<String> {
        loaded.objects.iter().map(|object| object.reference().name.to_string()).collect()
    }

    #[test]
    fn a_folder_is_read_with_its_subfolders_but_without_hidden_and_temporary_files() {
        let folder = Folder::new("names");
        folder.write("b.yaml", &pod("b", "x"));
        folder.write("sub/a.yml", &pod("a", "x"));
        folder.write("c.json", r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"}}"#);
        for ignored in [".hidden.yaml", "..data/d.yaml", "b.yaml~", "#b.yaml#", "README.md"] {
            folder.write(ignored, &pod("no", "x"));
        }
        let loaded = super::super::load(&[folder.path().to_path_buf()]);
        assert_eq!(names(&loaded), ["b", "c", "a"]);
        assert_eq!(loaded.faults, []);
    }

    #[test]
    fn a_broken_file_keeps_what_it_said_last() {
        let folder = Folder::new("broken");
        folder.write("a.yaml", &(pod("a", "x") + &pod("b", "x")));
        let mut source = Source::new(&[folder.path().to_path_buf()]);
        assert_eq!(names(&source.load()), ["a", "b"]);
        folder.write("a.yaml", &(pod("a", "x") + "---\nkind: [\n"));
        let loaded = source.load();
        assert_eq!(names(&loaded), ["a", "b"]);
        assert_eq!(loaded.faults.len(), 1);
        folder.write("a.yaml", &pod("a", "x"));
        assert_eq!(names(&source.load()), ["a"]);
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        assert_eq!(names(&source.load()), Vec::<String>::new());
    }

    #[test]
    fn only_what_changed_is_read_again() {
        let folder = Folder::new("changed");
        folder.write("a.yaml", &pod("a", "x"));
        folder.write(
            "b.yaml",
            &(pod("b", "x") + "---\napiVersion: apps/v1\nkind: Job\nmetadata: {name: j}\n"),
        );
        folder.write("c.yaml", &pod("c", "7"));
        let long_ago = SystemTime::now() - 10 * SETTLED;
        let age = |name: &str| {
            let file = fs::File::options().write(true).open(folder.path().join(name)).unwrap();
            file.set_modified(long_ago).unwrap();
        };
        let mut source = Source::new(&[folder.path().to_path_buf()]);
        // The kernel alone sets the time of a file's last change: wait until it is long enough ago.
        std::thread::sleep(SETTLED + Duration::from_millis(100));
        let first = source.load();
        let stamped =
            |source: &Source| source.known.values().filter(|it| it.stamp.is_some()).count();
        assert_eq!((stamped(&source), first.faults.len(), first.skipped.len()), (3, 1, 1));
        // What is known stands for the file, faults and skipped documents included.
        source.known.values_mut().for_each(|known| {
            known.parts.iter_mut().for_each(Part::drop_objects);
        });
        let again = source.load();
        assert_eq!((again.faults, again.skipped), (first.faults, first.skipped));
        assert_eq!(again.objects, []);
        // A change of the same length, with the time of the last change put back.
        folder.write("a.yaml", &pod("d", "x"));
        age("a.yaml");
        assert_eq!(names(&source.load()), ["d"]);
        // It changed of late, so its times may not tell the next change.
        assert_eq!(stamped(&source), 2);
        folder.write("a.yaml", &pod("e", "x"));
        assert_eq!(names(&source.load()), ["e"]);
    }

    #[test]
    fn changes_are_what_came_and_went() {
        let folder = Folder::new("changes");
        folder.write("a.yaml", &(pod("a", "x") + &pod("b", "x") + &pod("c", "x")));
        folder.write("b.yaml", &pod("d", "x"));
        let mut source = Source::new(&[folder.path().to_path_buf()]);
        let mut changes = || {
            let Changes { objects, mut removed, faults, .. } = source.changes();
            removed.sort();
            let names = |all: Vec<ObjectRef>| {
                all.iter().map(|it| it.name.to_string()).collect::<Vec<_>>().join(" ")
            };
            let objects = objects.iter().map(Object::reference).collect();
            (names(objects), names(removed), faults.len())
        };
        let of =
            |objects: &str, removed: &str, faults| (objects.to_owned(), removed.to_owned(), faults);
        assert_eq!(changes(), of("a b c d", "", 0));
        assert_eq!(changes(), of("", "", 0));
        // One document of several, and one that goes.
        folder.write("a.yaml", &(pod("a", "x") + &pod("b", "y")));
        assert_eq!(changes(), of("b", "c", 0));
        // A second definition counts as long as it is there, and is a fault as long.
        folder.write("c.yaml", &pod("b", "z"));
        assert_eq!(changes(), of("b", "", 1));
        folder.write("b.yaml", &pod("d", "y"));
        assert_eq!(changes(), of("b d", "", 1));
        fs::remove_file(folder.path().join("c.yaml")).unwrap();
        assert_eq!(changes(), of("b", "", 0));
        // A broken file changes nothing.
        folder.write("a.yaml", "kind: [");
        let (_, removed, faults) = changes();
        assert_eq!((removed.as_str(), faults), ("", 1));
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        assert_eq!(changes(), of("", "a b", 0));
    }

    #[test]
    fn what_may_be_the_rest_of_an_object_takes_nothing_out_of_force() {
        let folder = Folder::new("rest");
        let mut source = Source::new(&[folder.path().to_path_buf()]);
        let rests = [
            "",
            "\n",
            "---\napiVersion: v1\nkind: P\n",
            "---\napiVersion: v1\n",
            "---\nkind: Pod\nmetadata: {name: a}\n",
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n",
            "---\napiVersion: v1\nkind: List\nitems: {}\n",
            "---\napiVersion: v1\nkind: NetworkPolicy\nmetadata: {name: a}\n",
        ];
        for rest in rests {
            folder.write("a.yaml", &(pod("a", "x") + &pod("b", "x")));
            assert_eq!(names(&source.load()), ["a", "b"]);
            folder.write("a.yaml", rest);
            for _ in 0..2 {
                let loaded = source.load();
                assert_eq!(names(&loaded), ["a", "b"], "{rest:?}");
                let reported =
                    |fault: &&Fault| fault.to_string().contains("Pod default/a: missing");
                assert_eq!(loaded.faults.iter().filter(reported).count(), 1, "{:?}", loaded.faults);
            }
            folder.write("a.yaml", &(pod("b", "x") + rest));
            let loaded = source.load();
            let blank = rest.trim().is_empty();
            assert_eq!(names(&loaded), if blank { vec!["b"] } else { vec!["b", "a"] }, "{rest:?}");
        }
        folder.write("a.yaml", "# On purpose.\n");
        assert_eq!(names(&source.load()), Vec::<String>::new());
    }

    #[test]
    fn of_two_definitions_the_later_counts_and_a_difference_is_told() {
        let folder = Folder::new("twice");
        folder.write("a.yaml", &(pod("a", "x") + &pod("a", "x")));
        let mut source = Source::new(&[folder.path().to_path_buf()]);
        assert_eq!(source.load().faults, []);
        folder.write("b.yaml", &pod("a", "y"));
        let loaded = source.load();
        assert_eq!(names(&loaded), ["a"]);
        assert!(loaded.faults[0].to_string().contains("document 2 of"), "{}", loaded.faults[0]);
    }

    #[test]
    fn a_fifo_or_device_among_manifests_is_a_fault_and_holds_nothing_up() {
        let folder = Folder::new("fifo");
        folder.write("a.yaml", &pod("a", "x"));
        let fifo = folder.path().join("b.yaml");
        testkit::make_fifo(&fifo);
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("c.yaml")).unwrap();
        let loaded = Source::new(&[folder.path().to_path_buf()]).load();
        assert_eq!(names(&loaded), ["a"]);
        let faults: Vec<String> = loaded.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.ends_with("is no regular file")), "{faults:?}");
    }

    #[test]
    fn a_path_that_is_not_there_is_a_fault() {
        let loaded = super::super::load(&[PathBuf::from("/nonexistent/podgate.yaml")]);
        assert!(
            loaded.faults[0].to_string().starts_with("/nonexistent/podgate.yaml: cannot be read")
        );
    }
}
