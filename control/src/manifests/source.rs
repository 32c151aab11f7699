//! Reads manifests repeatedly and remembers each file's last objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::documents::{self, Content};
use super::{LONGEST, Loaded, files, unreadable};
use crate::{Fault, FieldFault, Object, ObjectRef, read_regular};

/// Age of a file's last change from which on its times tell further changes apart: file systems count them in
/// steps, the coarsest in steps of two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Manifest files with a memory. Only files that changed are read again.
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
}

/// The last complete content of a file.
#[derive(Debug, Default)]
struct Known {
    content: Content,
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
        Self { paths: paths.to_vec(), known: BTreeMap::new() }
    }

    /// Reads what changed since the last call.
    pub fn load(&mut self) -> Loaded {
        let (files, faults) = files(&self.paths);
        let mut loaded = Loaded { faults, ..Loaded::default() };
        let mut known = BTreeMap::new();
        for file in files {
            let last = self.known.remove(&file);
            // Before the file is read: a change in between makes it read again.
            let stamp = Stamp::of(&file);
            let now = match last {
                Some(last) if stamp.is_some() && last.stamp == stamp => last,
                last => match read_again(&file, last, stamp) {
                    Some(now) => now,
                    None => continue,
                },
            };
            loaded.faults.extend(now.content.faults.iter().cloned());
            for (kind, count) in &now.content.skipped {
                *loaded.skipped.entry(kind.clone()).or_default() += count;
            }
            known.insert(file, now);
        }
        self.keep_what_cannot_be_reached(&mut known);
        let objects = known.iter().map(|(file, known)| (file, &known.content.objects));
        loaded.objects = merge(objects, &mut loaded.faults);
        self.known = known;
        loaded
    }

    /// Files below a path that exists but cannot be listed stay.
    fn keep_what_cannot_be_reached(&mut self, known: &mut BTreeMap<PathBuf, Known>) {
        for (file, last) in std::mem::take(&mut self.known) {
            let gone = match fs::symlink_metadata(&file) {
                Ok(_) => false,
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if !gone {
                known.entry(file).or_insert(Known { stamp: None, ..last });
            }
        }
    }
}

/// Reads a file; `None` if it is gone.
fn read_again(file: &Path, last: Option<Known>, stamp: Option<Stamp>) -> Option<Known> {
    let mut content = match read_regular(file, LONGEST) {
        Ok(text) => documents::read(file, &text, &mut |_, _, value| Some(value)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => Content { faults: vec![unreadable(file, &error)], ..Content::default() },
    };
    // Otherwise the outcome depends on earlier content.
    let stamp = stamp.filter(|_| content.whole && !content.unclear);
    match last {
        Some(last) if !content.whole => content.objects = last.content.objects,
        Some(last) if content.unclear => {
            keep_missing(file, last.content.objects, &mut content.objects, &mut content.faults);
        }
        _ => {}
    }
    Some(Known { content, stamp })
}

/// Adds to the `objects` of a file those that it had last and has no more.
fn keep_missing(
    file: &Path,
    last: Vec<(Object, usize)>,
    objects: &mut Vec<(Object, usize)>,
    faults: &mut Vec<Fault>,
) {
    let present: HashSet<ObjectRef> =
        objects.iter().map(|(object, _)| object.reference()).collect();
    for (object, document) in last {
        let reference = object.reference();
        if present.contains(&reference) {
            continue;
        }
        faults.push(Fault {
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
        objects.push((object, document));
    }
}

/// The objects of all files, the later definition counting; definitions that differ are a fault.
pub(super) fn merge<'f>(
    files: impl Iterator<Item = (&'f PathBuf, &'f Vec<(Object, usize)>)>,
    faults: &mut Vec<Fault>,
) -> Vec<Object> {
    let mut at: HashMap<ObjectRef, (usize, &PathBuf, usize)> = HashMap::new();
    let mut objects: Vec<Object> = Vec::new();
    for (file, content) in files {
        for (object, document) in content {
            let reference = object.reference();
            match at.insert(reference.clone(), (objects.len(), file, *document)) {
                None => objects.push(object.clone()),
                Some((index, other, elsewhere)) => {
                    at.insert(reference.clone(), (index, file, *document));
                    if objects[index] != *object {
                        faults.push(Fault {
                            file: Some(file.clone()),
                            document: Some(*document),
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
        source.known.values_mut().for_each(|known| known.content.objects.clear());
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
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
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
