//! Watches manifests for changes.
//!
//! Folders are watched rather than files: an editor or a ConfigMap mount replaces files by
//! renaming, and a watch on the replaced file would see nothing any more. After every burst
//! of events the set of watched folders is worked out again, so new subfolders and new link
//! targets are followed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use inotify::{Inotify, WatchDescriptor, WatchMask, Watches};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{files, is_hidden};

/// Interval of the thread's signs of life.
const PULSE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// A writer that is still busy after this long is reported anyway.
const LONGEST_BURST: Duration = Duration::from_millis(100);
/// Silence that ends a burst.
const QUIET: Duration = Duration::from_millis(5);

/// Calls back when something changed below the watched paths, until dropped.
///
/// Start it before the first [`load`](super::load): what changes between the two is then
/// reported, at worst once too often.
#[derive(Debug)]
pub struct Watcher {
    stop: Arc<AtomicBool>,
    /// Set by the thread again and again.
    pulse: Arc<AtomicBool>,
    /// A watch that exists only to be removed: its removal wakes the thread.
    wakeup: (Watches, WatchDescriptor),
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Watches `paths`, which need not exist yet; `changed` runs on the watcher's own thread.
    ///
    /// # Errors
    /// When the kernel refuses an inotify instance or watch (`fs.inotify.max_user_*`).
    pub fn new(paths: &[PathBuf], changed: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mut watches = inotify.watches();
        let descriptor = watches.add("/", WatchMask::DELETE_SELF | WatchMask::MASK_ADD)?;
        let mut folders = Folders {
            paths: paths.to_vec(),
            watches: inotify.watches(),
            interests: HashMap::new(),
        };
        folders.follow()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pulse = Arc::new(AtomicBool::new(true));
        let beats = Arc::clone(&pulse);
        let thread = thread::Builder::new()
            .name("manifests".into())
            .spawn(move || run(inotify, folders, &stopped, &beats, changed))?;
        Ok(Self { stop, pulse, wakeup: (watches, descriptor), thread: Some(thread) })
    }

    /// Returns whether the thread made progress since the last call, as it does every few seconds.
    pub fn responds(&self) -> bool {
        self.pulse.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let (watches, descriptor) = &mut self.wakeup;
        let woken = watches.remove(descriptor.clone()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn run(
    mut inotify: Inotify,
    mut folders: Folders,
    stop: &AtomicBool,
    pulse: &AtomicBool,
    mut changed: impl FnMut(),
) {
    let mut buffer = [0; 16 * 1024];
    while !stop.load(Ordering::Acquire) {
        pulse.store(true, Ordering::Release);
        // An error shows again when events are read.
        let _ = poll(&mut [PollFd::new(&inotify, PollFlags::IN)], Some(&PULSE));
        let mut relevant = match inotify.read_events(&mut buffer) {
            Ok(mut events) => events.any(|event| folders.concerns(&event.wd, event.name)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                continue;
            }
            Err(error) => {
                tracing::error!("manifests are no longer watched: {error}");
                return;
            }
        };
        let began = Instant::now();
        let mut last = began;
        while relevant && last.elapsed() < QUIET && began.elapsed() < LONGEST_BURST {
            thread::sleep(Duration::from_millis(1));
            if inotify.read_events(&mut buffer).is_ok_and(|mut events| events.next().is_some()) {
                last = Instant::now();
            }
        }
        if let Err(error) = folders.follow() {
            tracing::error!("some manifests cannot be watched: {error}");
            relevant = true;
        }
        if relevant && !stop.load(Ordering::Acquire) {
            changed();
        }
    }
}

/// The folders under watch.
struct Folders {
    paths: Vec<PathBuf>,
    watches: Watches,
    interests: HashMap<WatchDescriptor, Interest>,
}

/// Names in a folder that matter.
#[derive(Clone, PartialEq, Eq)]
enum Interest {
    /// All of them.
    All,
    /// Only these: the folder is there for a few files.
    Names(BTreeSet<OsString>),
}

impl Folders {
    fn concerns(&self, watch: &WatchDescriptor, name: Option<&OsStr>) -> bool {
        match (self.interests.get(watch), name) {
            (Some(Interest::All), _) => true,
            (Some(Interest::Names(names)), Some(name)) => names.contains(name),
            // The folder itself went, or events were lost.
            (Some(Interest::Names(_)), None) => true,
            (None, _) => false,
        }
    }

    /// Brings the watches in line with the folders that exist now.
    fn follow(&mut self) -> io::Result<()> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ATTRIB
            | WatchMask::MASK_ADD;
        let mut interests = HashMap::new();
        for (folder, interest) in wanted(&self.paths) {
            match self.watches.add(&folder, mask) {
                Ok(watch) => {
                    interests
                        .entry(watch)
                        .and_modify(|have| merge(have, interest.clone()))
                        .or_insert(interest);
                }
                // Deleted in between: its parent's watch reports it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.interests = interests;
        Ok(())
    }
}

fn merge(have: &mut Interest, more: Interest) {
    match (have, more) {
        (Interest::All, _) => {}
        (Interest::Names(names), Interest::Names(more)) => names.extend(more),
        (have, Interest::All) => *have = Interest::All,
    }
}

/// The folders to watch for `paths`: each folder and its subfolders; for each file, and each
/// path as such, the nearest folder that exists; for links the same at their target.
fn wanted(paths: &[PathBuf]) -> BTreeMap<PathBuf, Interest> {
    let mut whole = BTreeSet::new();
    for path in paths.iter().filter(|path| path.is_dir()) {
        subfolders(path, &mut BTreeSet::new(), &mut |folder| whole.extend([folder]));
    }
    // The watch on its folder reports all about a file that is no link.
    let is_watched = |path: &Path| {
        path.parent().is_some_and(|folder| whole.contains(folder)) && !path.is_symlink()
    };
    let mut wanted: BTreeMap<PathBuf, Interest> =
        whole.iter().map(|folder| (folder.clone(), Interest::All)).collect();
    let mut add = |folder: PathBuf, interest: Interest| {
        wanted.entry(folder).and_modify(|have| merge(have, interest.clone())).or_insert(interest);
    };
    for path in files(paths).0.iter().chain(paths) {
        if is_watched(path) {
            continue;
        }
        let real = path.canonicalize().ok();
        for path in [Some(path), real.as_ref()].into_iter().flatten() {
            if let Some((folder, name)) = nearest(path) {
                add(folder, Interest::Names(BTreeSet::from([name])));
            }
        }
    }
    wanted
}

/// The nearest existing folder above `path`, and the next name on the way to `path`.
fn nearest(path: &Path) -> Option<(PathBuf, OsString)> {
    let absolute = std::path::absolute(path).ok()?;
    let mut path = absolute.as_path();
    loop {
        let (parent, name) = (path.parent()?, path.file_name()?);
        if parent.is_dir() {
            return Some((parent.to_path_buf(), name.to_owned()));
        }
        path = parent;
    }
}

fn subfolders(path: &Path, visited: &mut BTreeSet<PathBuf>, found: &mut impl FnMut(PathBuf)) {
    let fresh = path.canonicalize().is_ok_and(|real| visited.insert(real));
    if !fresh {
        return;
    }
    found(path.to_path_buf());
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let entry = entry.path();
        if entry.is_dir() && !is_hidden(&entry) {
            subfolders(&entry, visited, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;

    type Step = (&'static str, fn(&Path));

    /// Each step must be noticed; none may be noticed without a step.
    fn watch(name: &str, steps: &[Step]) {
        let root =
            std::env::temp_dir().join(format!("podgate-watcher-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("folder")).unwrap();
        let (sender, receiver) = mpsc::channel();
        let paths = [root.join("folder"), root.join("late/file.yaml")];
        let watcher = Watcher::new(&paths, move || sender.send(()).unwrap()).unwrap();
        for (what, step) in steps {
            step(&root);
            receiver.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("{what}"));
            // The end of the burst may be reported once more.
            while receiver.recv_timeout(Duration::from_millis(50)).is_ok() {}
        }
        drop(watcher);
        assert!(receiver.recv().is_err());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn writes_renames_and_new_subfolders_are_noticed() {
        watch(
            "folder",
            &[
                ("write", |root| fs::write(root.join("folder/a.yaml"), "x").unwrap()),
                ("atomic rename", |root| {
                    fs::write(root.join("aside"), "y").unwrap();
                    fs::rename(root.join("aside"), root.join("folder/a.yaml")).unwrap();
                }),
                ("new subfolder", |root| fs::create_dir(root.join("folder/sub")).unwrap()),
                ("write there", |root| fs::write(root.join("folder/sub/b.yaml"), "x").unwrap()),
                ("delete", |root| fs::remove_file(root.join("folder/a.yaml")).unwrap()),
                ("folder gone", |root| fs::remove_dir_all(root.join("folder")).unwrap()),
                ("folder back", |root| fs::create_dir(root.join("folder")).unwrap()),
                ("write again", |root| fs::write(root.join("folder/c.yaml"), "x").unwrap()),
            ],
        );
    }

    #[test]
    fn a_swapped_link_as_of_a_config_map_is_noticed() {
        use std::os::unix::fs::symlink;
        watch(
            "link",
            &[
                ("first", |root| {
                    fs::create_dir(root.join("folder/..1")).unwrap();
                    fs::write(root.join("folder/..1/a.yaml"), "x").unwrap();
                    symlink("..1", root.join("folder/..data")).unwrap();
                    symlink("..data/a.yaml", root.join("folder/a.yaml")).unwrap();
                }),
                ("swap", |root| {
                    fs::create_dir(root.join("folder/..2")).unwrap();
                    fs::write(root.join("folder/..2/a.yaml"), "y").unwrap();
                    symlink("..2", root.join("folder/..tmp")).unwrap();
                    fs::rename(root.join("folder/..tmp"), root.join("folder/..data")).unwrap();
                }),
            ],
        );
    }

    #[test]
    fn a_file_that_does_not_exist_yet_is_noticed_when_it_appears() {
        watch(
            "late",
            &[
                ("its folder", |root| fs::create_dir(root.join("late")).unwrap()),
                ("the file", |root| fs::write(root.join("late/file.yaml"), "x").unwrap()),
            ],
        );
    }
}
