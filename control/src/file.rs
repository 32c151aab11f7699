//! Reads files that other users may place: only regular ones, of bounded length. Replaces files as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file; a FIFO or device is refused rather than waited for.
///
/// # Errors
/// When it cannot be opened or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is no regular file")),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`], and when the file is longer.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_regular(path)?, most)
}

/// Reads at most `most` bytes, to their end.
///
/// # Errors
/// When they cannot be read, and when there are more.
pub fn read_bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        false => Ok(bytes),
        true => {
            let problem = format!("is longer than {most} bytes");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
        }
    }
}

/// Whether a file must be there after a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk before the call returns, and so is its name.
    Synced,
    /// When the kernel gets to it.
    Lazy,
}

/// Replaces the file at `path` as a whole: readers find the old content or the new. The file is its
/// owner's alone.
///
/// # Errors
/// When it cannot be written or renamed; an earlier file is then intact.
pub fn replace_file(
    path: &Path,
    durability: Durability,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = Path::new(&aside);
    let replace = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut out = BufWriter::new(options.open(aside)?);
        write(&mut out)?;
        out.flush()?;
        if durability == Durability::Synced {
            out.get_ref().sync_all()?;
        }
        fs::rename(aside, path)?;
        match path.parent().filter(|it| !it.as_os_str().is_empty()) {
            Some(folder) if durability == Durability::Synced => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    };
    replace().inspect_err(|_| {
        // An incomplete file is useless.
        let _ = fs::remove_file(aside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_only_so_far() {
        let folder = testkit::TempDir::new("regular");
        let path = folder.path().join("fifo");
        testkit::make_fifo(&path);
        let refused = |path: &Path| read_regular(path, 10).unwrap_err().to_string();
        assert_eq!(refused(&path), "is no regular file");
        assert_eq!(refused(Path::new("/dev/zero")), "is no regular file");
        assert_eq!(refused(folder.path()), "is no regular file");
        let path = folder.path().join("file");
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_regular(&path, 10).unwrap(), b"0123456789");
        assert!(refused_at(&path, 9).contains("longer than 9 bytes"));
    }

    fn refused_at(path: &Path, most: u64) -> String {
        read_regular(path, most).unwrap_err().to_string()
    }
}
