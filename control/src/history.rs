//! Past objects: what was known when, for questions about policies at an earlier moment.
//!
//! ```text
//! 2026-11-25T09:13:07Z.objects.gz    named by its first moment
//!   podgate-history 1
//!   {"Namespace":{…}}                all objects at that moment, one a line
//!   …
//!   {"at":1764061987}                they are complete, as of this second of the Unix epoch
//!   {"at":1764062047}                what follows is a change, at this second
//!   {"Pod":{…}}                      an object came or changed
//!   {"gone":{"kind":"Pod",…}}        an object went
//! ```
//!
//! Each write appends a gzip member of its own, so a file that was cut off loses its last changes alone. A
//! process begins a file of its own, and another one once changes need more than all objects do.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::file::open_regular;
use crate::state::ObjectSnapshot;
use crate::{Object, ObjectRef};

const HEAD: &str = "podgate-history 1";
/// The end of a file's name.
const ENDING: &str = ".objects.gz";
/// Bytes of changes that a file takes at least.
const LEAST: u64 = 64 << 10;

/// Writes past objects into a folder.
#[derive(Debug)]
pub struct History {
    folder: PathBuf,
    most_bytes: u64,
    known: HashMap<ObjectRef, Object>,
    present: Option<Present>,
}

/// The file that is written to.
#[derive(Debug)]
struct Present {
    path: PathBuf,
    /// Bytes of all objects.
    first: u64,
    /// Bytes of the file.
    bytes: u64,
    /// The moment of the last change in it.
    last: Timestamp,
}

/// A line that is no object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mark {
    At(i64),
    Gone(ObjectRef),
}

/// Any line behind the first.
enum Line {
    Mark(Mark),
    Object(Object),
}

impl Line {
    /// Reads a line: kinds of objects begin with a capital.
    fn parse(text: &str) -> serde_json::Result<Self> {
        let is_mark = [r#"{"at":"#, r#"{"gone":"#].iter().any(|begin| text.starts_with(begin));
        match is_mark {
            true => serde_json::from_str(text).map(Self::Mark),
            false => serde_json::from_str(text).map(Self::Object),
        }
    }
}

/// The objects of an earlier moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// All that were known.
    pub objects: Vec<Object>,
    /// Since when they were so.
    pub since: SystemTime,
    /// The part of the file that cannot be read, in words.
    pub damage: Option<String>,
}

impl History {
    /// A history in `folder`, of at most so many bytes.
    pub fn new(folder: &Path, most_bytes: u64) -> Self {
        let folder = folder.to_owned();
        Self { folder, most_bytes, known: HashMap::new(), present: None }
    }

    /// Writes what differs from the objects written last. Deletes the oldest files beyond the size.
    ///
    /// # Errors
    /// If the folder cannot be written to, or all objects take more than the size.
    pub fn write(&mut self, snapshot: ObjectSnapshot, now: SystemTime) -> io::Result<()> {
        let now = Timestamp::try_from(now).map_err(io::Error::other)?;
        let objects: HashMap<ObjectRef, Object> =
            snapshot.0.into_iter().map(|object| (object.reference(), object)).collect();
        let is_full = |it: &Present| it.bytes > it.first + it.first.max(LEAST);
        // After the clock was set back, the file of a later moment would answer for what is written now.
        let hidden = files(&self.folder).unwrap_or_default();
        let is_hidden = |it: &Present| {
            it.last > now || hidden.iter().any(|(first, path)| *first <= now && *path > it.path)
        };
        let written = match self.present.as_mut().filter(|it| !is_full(it) && !is_hidden(it)) {
            Some(present) => append(present, &self.known, &objects, now),
            None => self.begin(&objects, now),
        };
        if written.is_err() {
            // Whatever is in the file, it is not what is known.
            self.present = None;
        }
        self.known = objects;
        written?;
        self.tidy()
    }

    fn begin(&mut self, objects: &HashMap<ObjectRef, Object>, now: Timestamp) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let second = Timestamp::from_second(now.as_second()).map_err(io::Error::other)?;
        let path = self.folder.join(format!("{second}{ENDING}"));
        // Whatever has this name, such as a link or a FIFO, is not written to.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = member(&file, |out| {
            writeln!(out, "{HEAD}")?;
            objects.values().try_for_each(|object| line(out, object))?;
            line(out, &Mark::At(second.as_second()))
        });
        // Half of it would hide the file before, and a full disk would be full of halves.
        let bytes = written.inspect_err(|_| drop(fs::remove_file(&path)))?;
        self.present = Some(Present { path, first: bytes, bytes, last: second });
        Ok(())
    }

    fn tidy(&mut self) -> io::Result<()> {
        let all = files(&self.folder)?;
        let sizes = all.iter().map(|(_, path)| Ok(fs::metadata(path)?.len()));
        let sizes = sizes.collect::<io::Result<Vec<u64>>>()?;
        let mut bytes: u64 = sizes.iter().sum();
        for ((_, path), size) in all.iter().zip(sizes) {
            if bytes <= self.most_bytes {
                return Ok(());
            }
            fs::remove_file(path)?;
            bytes -= size;
            if self.present.as_ref().is_some_and(|it| it.path == *path) {
                self.present = None;
                let most = self.most_bytes;
                let what = format!("the objects take {size} bytes, and their history has {most}");
                return Err(io::Error::other(what));
            }
        }
        Ok(())
    }
}

/// Appends what differs.
fn append(
    present: &mut Present,
    known: &HashMap<ObjectRef, Object>,
    objects: &HashMap<ObjectRef, Object>,
    now: Timestamp,
) -> io::Result<()> {
    let is_known =
        |(reference, object): &(&ObjectRef, &Object)| known.get(*reference) == Some(*object);
    let mut changed = objects.iter().filter(|it| !is_known(it)).peekable();
    let mut gone = known.keys().filter(|it| !objects.contains_key(*it)).peekable();
    if changed.peek().is_none() && gone.peek().is_none() {
        return Ok(());
    }
    let file = OpenOptions::new().append(true).open(&present.path)?;
    let written = member(&file, |out| {
        line(out, &Mark::At(now.as_second()))?;
        changed.try_for_each(|(_, object)| line(out, object))?;
        gone.try_for_each(|reference| line(out, &Mark::Gone(reference.clone())))
    });
    // A part of the changes is no moment that there was.
    present.bytes += written.inspect_err(|_| drop(file.set_len(present.bytes)))?;
    present.last = now;
    Ok(())
}

/// Writes a gzip member at the end of a file, onto the disk; returns its bytes.
fn member(
    file: &File,
    write: impl FnOnce(&mut GzEncoder<BufWriter<&File>>) -> io::Result<()>,
) -> io::Result<u64> {
    let before = file.metadata()?.len();
    let mut encoder = GzEncoder::new(BufWriter::new(file), Compression::fast());
    write(&mut encoder)?;
    encoder.finish()?.flush()?;
    file.sync_data()?;
    Ok(file.metadata()?.len() - before)
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Bytes of the files in a folder.
///
/// # Errors
/// If it cannot be read.
pub fn size(folder: &Path) -> io::Result<u64> {
    files(folder)?.iter().map(|(_, path)| Ok(fs::metadata(path)?.len())).sum()
}

/// The regular files of a folder with their first moments, oldest first.
fn files(folder: &Path) -> io::Result<Vec<(Timestamp, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type().is_ok_and(|it| it.is_file()) {
            continue;
        }
        let path = entry.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(time) = name.strip_suffix(ENDING).and_then(|time| time.parse().ok()) {
            files.push((time, path));
        }
    }
    files.sort();
    Ok(files)
}

/// The objects as they were known at a moment; `None` if the history begins later.
///
/// # Errors
/// If the folder or the file cannot be read.
pub fn at(folder: &Path, time: SystemTime) -> io::Result<Option<Past>> {
    let time = Timestamp::try_from(time).map_err(io::Error::other)?;
    let file = files(folder)?.into_iter().rev().find(|(first, _)| *first <= time);
    let Some((first, path)) = file else { return Ok(None) };
    let mut past = read(&path, first, time)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    past.damage = past.damage.map(|damage| format!("{}: {damage}", path.display()));
    Ok(Some(past))
}

fn read(path: &Path, first: Timestamp, until: Timestamp) -> io::Result<Past> {
    let mut lines = BufReader::new(MultiGzDecoder::new(open_regular(path)?)).lines();
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    match lines.next().transpose()? {
        Some(head) if head == HEAD => {}
        _ => return Err(invalid(format!("does not begin with {HEAD:?}"))),
    }
    let mut objects: BTreeMap<ObjectRef, Object> = BTreeMap::new();
    let (mut since, mut damage, mut is_first) = (first, None, true);
    for (n, text) in lines.enumerate() {
        let read = text.and_then(|text| Line::parse(&text).map_err(io::Error::from));
        match read {
            Ok(Line::Mark(Mark::At(second))) => {
                let at = Timestamp::from_second(second).map_err(io::Error::other)?;
                if at > until {
                    break;
                }
                (since, is_first) = (at, false);
            }
            Ok(Line::Mark(Mark::Gone(reference))) => drop(objects.remove(&reference)),
            Ok(Line::Object(object)) => drop(objects.insert(object.reference(), object)),
            // Half of the objects of a cluster would answer as if its policies were missing.
            Err(error) if is_first => return Err(invalid(format!("line {}: {error}", n + 2))),
            Err(error) => {
                damage = Some(format!("line {}: {error}; what follows is unknown", n + 2));
                break;
            }
        }
    }
    if is_first {
        return Err(invalid("is cut off".to_owned()));
    }
    Ok(Past { objects: objects.into_values().collect(), since: since.into(), damage })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use testkit::TempDir;

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::objects::{Read, read as parse};
    use crate::{Control, Kind, Scope};

    fn second(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_764_000_000 + second)
    }

    fn apply(control: &mut Control, value: Value) {
        match parse(value) {
            Read::Object(object, _) => control.apply(object),
            other => panic!("{other:?}"),
        }
    }

    fn pod(name: &str, role: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "x", "labels": {"role": role}}})
    }

    /// Names of the pods at a moment, with their roles.
    fn pods(folder: &Path, time: u64) -> Option<(Vec<String>, SystemTime)> {
        let past = at(folder, second(time)).unwrap()?;
        assert_eq!(past.damage, None);
        let pods = past.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some(format!("{} {}", pod.key.name, pod.labels.value("role")?)),
            _ => None,
        });
        Some((pods.collect(), past.since))
    }

    #[test]
    fn objects_are_as_they_were_at_any_moment() {
        let folder = TempDir::new("history");
        let mut control = Control::new(Scope::All);
        let mut history = History::new(folder.path(), 1 << 20);
        apply(&mut control, pod("a", "web"));
        apply(
            &mut control,
            json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "x"}}),
        );
        history.write(ObjectSnapshot::of(&control), second(10)).unwrap();
        apply(&mut control, pod("b", "db"));
        history.write(ObjectSnapshot::of(&control), second(20)).unwrap();
        let size = || size(folder.path()).unwrap();
        let before = size();
        history.write(ObjectSnapshot::of(&control), second(25)).unwrap();
        assert_eq!(size(), before, "nothing changed");
        apply(&mut control, pod("b", "cache"));
        control.delete(&ObjectRef {
            kind: Kind::Pod,
            namespace: Some("x".into()),
            name: "a".into(),
        });
        history.write(ObjectSnapshot::of(&control), second(30)).unwrap();
        // A process that was killed continues with a file of its own.
        let mut history = History::new(folder.path(), 1 << 20);
        history.write(ObjectSnapshot::of(&control), second(40)).unwrap();
        apply(&mut control, pod("c", "web"));
        history.write(ObjectSnapshot::of(&control), second(50)).unwrap();
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(pods(folder.path(), 9), None);
        assert_eq!(pods(folder.path(), 10), Some((names(&["a web"]), second(10))));
        assert_eq!(pods(folder.path(), 19), Some((names(&["a web"]), second(10))));
        assert_eq!(pods(folder.path(), 29), Some((names(&["a web", "b db"]), second(20))));
        assert_eq!(pods(folder.path(), 39), Some((names(&["b cache"]), second(30))));
        assert_eq!(pods(folder.path(), 49), Some((names(&["b cache"]), second(40))));
        assert_eq!(pods(folder.path(), 500), Some((names(&["b cache", "c web"]), second(50))));
        for (_, path) in files(folder.path()).unwrap() {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_keeps_what_is_before() {
        let folder = TempDir::new("history-cut");
        let mut control = Control::new(Scope::All);
        let mut history = History::new(folder.path(), 1 << 20);
        let mut ends = Vec::new();
        for n in 0..5 {
            apply(&mut control, pod(&format!("p{n}"), "web"));
            history.write(ObjectSnapshot::of(&control), second(10 + n)).unwrap();
            ends.push(size(folder.path()).unwrap());
        }
        let path = files(folder.path()).unwrap().remove(0).1;
        let whole = fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let complete = ends.iter().filter(|end| **end <= length as u64).count();
            match at(folder.path(), second(100)) {
                // All objects of the first moment, or none.
                Err(error) => {
                    assert!(complete == 0 && error.to_string().contains(ENDING), "{length} {error}")
                }
                Ok(past) => {
                    let past = past.unwrap();
                    let count = past.objects.len();
                    assert!(count >= complete, "{length}: {count} of {complete}");
                    let is_whole = ends.contains(&(length as u64));
                    assert!(is_whole || past.damage.is_some() || count > complete, "{length}");
                }
            }
        }
    }

    #[test]
    fn the_oldest_files_make_room_and_too_many_objects_are_refused() {
        let folder = TempDir::new("history-size");
        let mut control = Control::new(Scope::All);
        (0..50).for_each(|n| apply(&mut control, pod(&format!("p{n}"), "web")));
        for n in 0..40 {
            let mut history = History::new(folder.path(), 4_000);
            history.write(ObjectSnapshot::of(&control), second(n)).unwrap();
        }
        let found = files(folder.path()).unwrap();
        assert!(size(folder.path()).unwrap() <= 4_000 && found.len() > 1, "{found:?}");
        assert_eq!(found.last().unwrap().0.as_second(), 1_764_000_039);
        let mut history = History::new(folder.path(), 100);
        let refused = history.write(ObjectSnapshot::of(&control), second(99)).unwrap_err();
        assert!(refused.to_string().ends_with("and their history has 100"), "{refused}");
        assert_eq!(files(folder.path()).unwrap(), []);
    }

    #[test]
    fn links_fifos_and_folders_with_names_of_files_are_passed_over() {
        let folder = TempDir::new("history-odd");
        let outside = TempDir::new("history-outside");
        let victim = outside.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let name = |at: u64| {
            let time = Timestamp::try_from(second(at)).unwrap();
            folder.path().join(format!("{time}{ENDING}"))
        };
        std::os::unix::fs::symlink(&victim, name(20)).unwrap();
        std::os::unix::fs::symlink("/nowhere", name(5)).unwrap();
        fs::create_dir(name(6)).unwrap();
        [7, 30, 60].into_iter().for_each(|at| testkit::make_fifo(&name(at)));
        let mut control = Control::new(Scope::All);
        apply(&mut control, pod("a", "web"));
        // Where a link is, and where a FIFO is.
        for at in [20, 30] {
            let mut history = History::new(folder.path(), 1 << 20);
            history.write(ObjectSnapshot::of(&control), second(at)).unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(files(folder.path()).unwrap().len(), 2);
        assert_eq!(pods(folder.path(), 10), None);
        assert_eq!(pods(folder.path(), 25).unwrap().1, second(20));
        assert_eq!(pods(folder.path(), 90).unwrap().1, second(30));
        // Room is made of files alone.
        let mut history = History::new(folder.path(), size(folder.path()).unwrap() + 8);
        history.write(ObjectSnapshot::of(&control), second(40)).unwrap();
        assert_eq!(files(folder.path()).unwrap().len(), 2);
        assert!(name(6).is_dir());
    }

    #[test]
    fn after_a_clock_that_was_wrong_the_newest_objects_answer() {
        let folder = TempDir::new("history-clock");
        let mut control = Control::new(Scope::All);
        let mut history = History::new(folder.path(), 1 << 20);
        let mut write = |control: &mut Control, role: &str, at: u64| {
            apply(control, pod("a", role));
            history.write(ObjectSnapshot::of(control), second(at)).unwrap();
        };
        let role = |at: u64| pods(folder.path(), at).map(|(pods, _)| pods[0].clone());
        write(&mut control, "one", 1000);
        write(&mut control, "two", 1100);
        // Set back by some seconds, and to before the file's first.
        write(&mut control, "three", 1050);
        assert_eq!(role(1200).as_deref(), Some("a three"));
        write(&mut control, "four", 900);
        assert_eq!(role(950).as_deref(), Some("a four"));
        write(&mut control, "five", 1300);
        assert_eq!(role(1300).as_deref(), Some("a five"));
        // An hour ahead, and back.
        write(&mut control, "six", 5000);
        write(&mut control, "seven", 1400);
        assert_eq!(role(1400).as_deref(), Some("a seven"));
        write(&mut control, "eight", 1500);
        assert_eq!(role(4000).as_deref(), Some("a eight"));
        write(&mut control, "nine", 6000);
        assert_eq!(role(6000).as_deref(), Some("a nine"));
    }

    /// A file system that is full leaves what was written before, and nothing of what was not.
    #[test]
    fn a_full_disk_costs_no_earlier_moment() {
        testkit::requires_root!();
        let folder = TempDir::new("history-full");
        let disk = folder.path().to_str().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            assert!(
                std::process::Command::new(program).args(arguments).status().unwrap().success()
            );
        };
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "podgate-history", disk]);
        let tried = std::panic::catch_unwind(|| {
            let mut control = Control::new(Scope::All);
            apply(&mut control, pod("a", "web"));
            let mut history = History::new(folder.path(), 1 << 20);
            history.write(ObjectSnapshot::of(&control), second(10)).unwrap();
            let noise = |n: u64| -> String {
                let mut state = n;
                let mut letter = |_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n | 1);
                    char::from(b'a' + ((state >> 33) % 26) as u8)
                };
                (0..4000).map(&mut letter).collect()
            };
            (0..60).for_each(|n| apply(&mut control, pod(&format!("p{n}"), &noise(n))));
            for at in 20..25 {
                history.write(ObjectSnapshot::of(&control), second(at)).unwrap_err();
            }
            let before = at(folder.path(), second(100)).unwrap().unwrap();
            assert_eq!((before.objects.len(), before.since), (1, second(10)));
            assert_eq!(files(folder.path()).unwrap().len(), 1);
        });
        run("umount", &[disk]);
        assert!(tried.is_ok());
    }

    #[test]
    fn a_file_with_many_changes_is_followed_by_another() {
        let folder = TempDir::new("history-next");
        let mut control = Control::new(Scope::All);
        let mut history = History::new(folder.path(), 1 << 20);
        let mut n = 0;
        while files(folder.path()).is_ok_and(|files| files.len() < 2) {
            // What differs each time does not compress well.
            let role: String = (0..2000_u64)
                .map(|at| char::from(b'a' + ((n * 7919 + at * at * 31 + n * at) % 26) as u8))
                .collect();
            apply(&mut control, pod("a", &role));
            history.write(ObjectSnapshot::of(&control), second(n)).unwrap();
            n += 1;
            assert!(n < 5_000);
        }
        assert_eq!(pods(folder.path(), n).unwrap().0.len(), 1);
    }
}
