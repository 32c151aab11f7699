//! Storage of the sessions: memory, or a file that a later process takes over.
//!
//! | bytes of the file | hold |
//! |---|---|
//! | 0–63 | [`MAGIC`], which names the layout, and the capacity |
//! | 64–127 | the boot that the file belongs to, since times are counted from it |
//! | 4096… | records, 64 bytes each |
//! | behind them | translations, 48 bytes each |
//! | behind them | accounts, 24 bytes each; a file of an earlier version ends before them |
//!
//! A process may end anywhere: a record is in use only from its last write on.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::record::Record;
use super::region::{Array, Region};
use super::translation::Translation;
use super::usage::Account;

pub(super) struct Store {
    pub(super) records: Array<Record>,
    pub(super) translations: Array<Translation>,
    pub(super) accounts: Array<Account>,
}

const MAGIC: &[u8; 24] = b"podgate sessions, v1\n\0\0\0";
const HEADER: usize = 4096;

impl Store {
    /// In memory.
    pub(super) fn in_memory(capacity: usize) -> io::Result<Self> {
        let records = Array::zeroed(capacity)?.populate();
        let (translations, accounts) = (Array::zeroed(capacity)?, Array::zeroed(capacity)?);
        Ok(Self { records, translations, accounts })
    }

    /// In a file. A file of another layout, capacity or boot is cleared.
    ///
    /// The disk's blocks are reserved here: a page that found none later would end the process
    /// (SIGBUS).
    pub(super) fn in_file(path: &Path, capacity: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        let header = header(capacity)?;
        let records = capacity * size_of::<Record>();
        let translations = capacity * size_of::<Translation>();
        let without_accounts = HEADER + records + translations;
        let length = without_accounts + capacity * size_of::<Account>();
        if !is_same(&mut file, &header, &[length, without_accounts]) {
            file.set_len(0)?;
            io::Seek::rewind(&mut file)?;
            file.write_all(&header)?;
        }
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, length as u64) {
            // Releases the blocks that were reserved.
            file.set_len(0)?;
            return Err(error.into());
        }
        let region = Region::of_file(&file, length)?;
        let populated = Array::new(&region, HEADER, capacity).populate();
        region.collapse();
        Ok(Self {
            records: populated,
            translations: Array::new(&region, HEADER + records, capacity),
            accounts: Array::new(&region, without_accounts, capacity),
        })
    }
}

fn header(capacity: usize) -> io::Result<[u8; 128]> {
    let mut header = [0; 128];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[32..40].copy_from_slice(&(capacity as u64).to_le_bytes());
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let length = boot.len().min(64);
    header[64..64 + length].copy_from_slice(&boot[..length]);
    Ok(header)
}

fn is_same(file: &mut File, header: &[u8; 128], lengths: &[usize]) -> bool {
    let mut found = [0; 128];
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    lengths.iter().any(|length| *length as u64 == size)
        && file.read_exact(&mut found).is_ok()
        && found == *header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a disk that is full, a sparse file could be mapped, and the first session whose page finds
    /// no room would end the process (SIGBUS).
    #[test]
    fn a_file_that_the_disk_has_no_room_for_is_refused() {
        testkit::requires_root!();
        let folder = testkit::TempDir::new("full");
        let run = |program: &str, arguments: &[&str]| {
            let status = std::process::Command::new(program).args(arguments).status();
            assert!(status.expect(program).success(), "{program} {arguments:?}");
        };
        let mount = folder.path().to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", mount]);
        let path = folder.path().join("sessions");
        let refused = Store::in_file(&path, 1 << 16).err();
        let left = std::fs::metadata(&path).map_or(0, |it| it.len());
        let fits = Store::in_file(&path, 1 << 12).is_ok();
        run("umount", &[mount]);
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
        assert_eq!(left, 0, "what was begun is taken back");
        assert!(fits);
    }
}
