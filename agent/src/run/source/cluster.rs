//! Ties the state folder to a cluster.
//!
//! The file `cluster` in the folder records the UID of the namespace kube-system of the cluster that
//! the saved objects, sessions and addresses of domain names belong to. With another cluster's API server they are refused.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use control::Durability;

use super::state_writer;

/// The cluster of a state folder.
pub(in crate::run) struct ClusterRecord {
    folder: PathBuf,
    /// The recorded UID; `None` before the first one is known.
    uid: Option<String>,
}

/// Longest record that is read; a UID is shorter.
const LONGEST: u64 = 256;

impl ClusterRecord {
    /// Reads the record of a folder. A record that cannot be read matches no cluster.
    pub(in crate::run) fn open(folder: &Path) -> Self {
        let path = file(folder);
        let uid = match read(&path) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("unreadable: {error}")),
        };
        Self { folder: folder.to_owned(), uid }
    }

    /// Records the API server's cluster; returns why the saved state is refused if it belongs to
    /// another one. The saved objects are removed then.
    pub(in crate::run) fn verify(&mut self, uid: &str) -> Option<String> {
        if self.uid.as_deref() == Some(uid) {
            return None;
        }
        let refused = self.uid.take().map(|known| {
            remove(&state_writer::file(&self.folder));
            format!(
                "{} is of another cluster: its namespace kube-system had UID '{}', the API \
                 server's has '{uid}'",
                self.folder.display(),
                known.escape_debug()
            )
        });
        // Written once nothing of the other cluster is left.
        let path = file(&self.folder);
        if let Err(error) = write(&path, uid) {
            tracing::error!("state-dir: {}: {error}", path.display());
        }
        self.uid = Some(uid.to_owned());
        refused
    }

    /// [`verify`](Self::verify) before the saved sessions and names are in use; they are removed as
    /// well.
    pub(in crate::run) fn verify_at_start(&mut self, uid: &str) -> Option<String> {
        if self.uid.as_deref().is_some_and(|known| known != uid) {
            remove(&sessions(&self.folder));
            remove(&names(&self.folder));
        }
        self.verify(uid)
    }
}

/// The file of the saved sessions.
pub(in crate::run) fn sessions(state_dir: &Path) -> PathBuf {
    state_dir.join("sessions")
}

/// The file of the addresses of domain names.
pub(in crate::run) fn names(state_dir: &Path) -> PathBuf {
    state_dir.join("names")
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster")
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = control::read_regular(path, LONGEST)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn write(path: &Path, uid: &str) -> io::Result<()> {
    control::replace_file(path, Durability::Synced, |out| writeln!(out, "{uid}"))
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!("state-dir: {}: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    fn exists(folder: &TempDir, name: &str) -> bool {
        folder.path().join(name).exists()
    }

    #[test]
    fn state_without_a_record_is_taken_and_tied_to_the_first_cluster() {
        let folder = TempDir::new("cluster-first");
        fs::write(folder.path().join("cluster-state"), "x").unwrap();
        fs::write(folder.path().join("sessions"), "x").unwrap();
        fs::write(folder.path().join("names"), "x").unwrap();
        let mut record = ClusterRecord::open(folder.path());
        assert_eq!(record.verify_at_start("a"), None);
        assert_eq!(ClusterRecord::open(folder.path()).uid.as_deref(), Some("a"));
        assert_eq!(ClusterRecord::open(folder.path()).verify_at_start("a"), None);
        assert!(exists(&folder, "cluster-state") && exists(&folder, "sessions"));
        assert!(exists(&folder, "names"));

        let why = ClusterRecord::open(folder.path()).verify_at_start("b").unwrap();
        assert!(why.contains("another cluster") && why.contains("'a'"), "{why}");
        assert!(!exists(&folder, "cluster-state") && !exists(&folder, "sessions"));
        assert!(!exists(&folder, "names"));
        assert_eq!(ClusterRecord::open(folder.path()).verify_at_start("b"), None);
    }

    #[test]
    fn a_damaged_record_matches_no_cluster() {
        let folder = TempDir::new("cluster-damaged");
        for damage in [&b"\xff\xfe"[..], b"", b"something else"] {
            fs::write(folder.path().join("cluster"), damage).unwrap();
            assert!(ClusterRecord::open(folder.path()).verify("a").is_some(), "{damage:?}");
            assert_eq!(ClusterRecord::open(folder.path()).verify("a"), None);
        }
    }
}
