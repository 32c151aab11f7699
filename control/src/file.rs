//! Reads files that other users may place: only regular ones, of bounded length.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
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
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        false => Ok(bytes),
        true => {
            let problem = format!("is longer than {most} bytes");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_only_so_far() {
        let folder = testkit::TempDir::new("regular");
        let path = folder.path().join("fifo");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        made(&name);
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

    fn made(name: &std::ffi::CStr) {
        let status = std::process::Command::new("mkfifo").arg(name.to_str().unwrap()).status();
        assert!(status.unwrap().success());
    }
}
