//! Files that appear whole or not at all: written aside, then renamed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Result of placing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The file was missing or had other content.
    Written,
    /// The file was up to date.
    None,
}

/// Puts a copy of the program `source` at `folder/name`, which is made if it is not there.
///
/// A runtime that starts the program meanwhile starts the old or the new one.
///
/// # Errors
/// Names the file.
pub fn place_file(source: &Path, folder: &Path, name: &str) -> Result<Change, String> {
    let content = fs::read(source).map_err(|error| format!("{}: {error}", source.display()))?;
    place(&content, folder, name, 0o755)
}

/// Puts `text` at `folder/name`, readable for its owner alone.
///
/// # Errors
/// Names the file.
pub fn place_text(text: &str, folder: &Path, name: &str) -> Result<Change, String> {
    place(text.as_bytes(), folder, name, 0o600)
}

fn place(content: &[u8], folder: &Path, name: &str, mode: u32) -> Result<Change, String> {
    let path = folder.join(name);
    let place = || -> io::Result<Change> {
        fs::create_dir_all(folder)?;
        let mode_of = |path: &Path| fs::metadata(path).map(|it| it.permissions().mode() & 0o7777);
        if fs::read(&path).is_ok_and(|found| found == content) && mode_of(&path)? == mode {
            return Ok(Change::None);
        }
        // No ending that a runtime reads as a configuration.
        let aside = folder.join(format!(".{name}.new"));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&aside)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        File::open(folder)?.sync_all()?;
        Ok(Change::Written)
    };
    place().map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_left_alone_when_it_is_the_same() {
        let folder = testkit::TempDir::new("place");
        let inner = folder.path().join("opt/cni/bin");
        let source = folder.path().join("plugin");
        fs::write(&source, "one").unwrap();
        assert_eq!(place_file(&source, &inner, "podgate-cni").unwrap(), Change::Written);
        assert_eq!(place_file(&source, &inner, "podgate-cni").unwrap(), Change::None);
        // A program that runs cannot be written to: the new one is another file.
        let old = File::open(inner.join("podgate-cni")).unwrap();
        fs::write(&source, "two").unwrap();
        assert_eq!(place_file(&source, &inner, "podgate-cni").unwrap(), Change::Written);
        assert_eq!(io::read_to_string(old).unwrap(), "one");
        let mode = fs::metadata(inner.join("podgate-cni")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "nothing is left aside");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let error = place_text("{}", Path::new("/proc/nothing"), "x.conflist").unwrap_err();
        assert!(error.starts_with("/proc/nothing/x.conflist: "), "{error}");
    }
}
