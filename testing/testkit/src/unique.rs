//! Names and folders no other test uses.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A name that no other test has, in this process or another one: `label`, the
/// process and a count.
pub fn unique_name(label: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("pgt-{label}-{}-{count}", std::process::id())
}

/// A folder that is removed with its content when this value is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes an empty folder among the system's temporary files.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(label: &str) -> Self {
        let path = std::env::temp_dir().join(unique_name(label));
        // Left over from a test that was killed, in a process with the same number.
        let _absent = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}

/// Makes a FIFO.
///
/// # Panics
/// If it cannot be made.
pub fn make_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo {}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_comes_twice() {
        assert_ne!(unique_name("a"), unique_name("a"));
    }

    #[test]
    fn a_folder_lives_as_long_as_its_guard() {
        let folder = TempDir::new("dir");
        let path = folder.path().to_owned();
        std::fs::write(path.join("file"), "text").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
