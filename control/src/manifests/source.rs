//! Reads manifests repeatedly and remembers each file's last objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::documents::{self, Content};
use super::{LONGEST, Loaded, files, unreadable};
use crate::{Fault, FieldFault, Object, ObjectRef, read_regular};

/// Manifest files with a memory.
///
/// A file that exists but cannot be read to its end keeps its last objects; if it was never
/// readable, the documents before the damage count. If a file may contain a damaged object (a
/// document without `apiVersion` or name, a file truncated for rewriting), its missing objects
/// stay, and a fault reports them. Deleting a file removes its objects. Single bad objects in a
/// readable file are evaluated as [`crate::objects`] describes.
#[derive(Debug, Default)]
pub struct Source {
    paths: Vec<PathBuf>,
    /// The last complete content of each file.
    known: BTreeMap<PathBuf, Vec<(Object, usize)>>,
}

impl Source {
    /// The files and folders at `paths`.
    pub fn new(paths: &[PathBuf]) -> Self {
        Self { paths: paths.to_vec(), known: BTreeMap::new() }
    }

    /// Reads everything again.
    pub fn load(&mut self) -> Loaded {
        let (files, faults) = files(&self.paths);
        let mut loaded = Loaded { faults, ..Loaded::default() };
        let mut known = BTreeMap::new();
        for file in files {
            let content = match read_regular(&file, LONGEST) {
                Ok(text) => documents::read(&file, &text, &mut |_, _, value| Some(value)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    Content { faults: vec![unreadable(&file, &error)], ..Content::default() }
                }
            };
            loaded.faults.extend(content.faults);
            for (kind, count) in content.skipped {
                *loaded.skipped.entry(kind).or_default() += count;
            }
            let mut objects = content.objects;
            match self.known.remove(&file) {
                Some(last) if !content.whole => objects = last,
                Some(last) if content.unclear => {
                    keep_missing(&file, last, &mut objects, &mut loaded.faults);
                }
                _ => {}
            }
            known.insert(file, objects);
        }
        self.keep_what_cannot_be_reached(&mut known);
        loaded.objects = merge(&known, &mut loaded.faults);
        self.known = known;
        loaded
    }

    /// Files below a path that exists but cannot be listed stay.
    fn keep_what_cannot_be_reached(&mut self, known: &mut BTreeMap<PathBuf, Vec<(Object, usize)>>) {
        for (file, objects) in std::mem::take(&mut self.known) {
            let gone = match fs::symlink_metadata(&file) {
                Ok(_) => false,
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if !gone && !known.contains_key(&file) {
                known.insert(file, objects);
            }
        }
    }
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
pub(super) fn merge(
    known: &BTreeMap<PathBuf, Vec<(Object, usize)>>,
    faults: &mut Vec<Fault>,
) -> Vec<Object> {
    let mut at: HashMap<ObjectRef, (usize, &PathBuf, usize)> = HashMap::new();
    let mut objects: Vec<Object> = Vec::new();
    for (file, content) in known {
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
