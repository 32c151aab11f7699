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
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
/// Bytes of a session: its record, its translation and its account.
pub const SESSION_BYTES: u64 =
    (size_of::<Record>() + size_of::<Translation>() + size_of::<Account>()) as u64;

const HEADER: usize = 4096;
/// Place of the capacity in the header.
const CAPACITY: Range<usize> = 32..40;

impl Store {
    /// In memory.
    pub(super) fn in_memory(capacity: usize) -> io::Result<Self> {
        let records = Array::zeroed(capacity)?.populate();
        let (translations, accounts) = (Array::zeroed(capacity)?, Array::zeroed(capacity)?);
        Ok(Self { records, translations, accounts })
    }

    /// In a file, whose size becomes the one for `capacity`. The sessions that fit stay; a file of another layout
    /// or boot is cleared.
    ///
    /// The disk's blocks are reserved here: a page that found none later would end the process
    /// (SIGBUS).
    pub(super) fn in_file(path: &Path, capacity: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        let (layout, header) = (Layout::of(capacity), header(capacity)?);
        let found = found(&mut file, &header)?;
        let kept = match found {
            Some(found) if found != capacity => {
                let mut parts = Layout::of(found).read(&file)?;
                fit(&mut parts, capacity);
                parts
            }
            _ => Vec::new(),
        };
        if found != Some(capacity) {
            file.set_len(0)?;
        }
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, layout.length as u64) {
            // Releases the blocks that were reserved.
            file.set_len(0)?;
            return Err(error.into());
        }
        for (part, at) in kept.iter().zip(layout.parts) {
            file.write_all_at(part, at as u64)?;
        }
        // The file counts from here on.
        file.write_all_at(&header, 0)?;
        let region = Region::of_file(&file, layout.length)?;
        let [records, translations, accounts] = layout.parts;
        let populated = Array::new(&region, records, capacity).populate();
        region.collapse();
        Ok(Self {
            records: populated,
            translations: Array::new(&region, translations, capacity),
            accounts: Array::new(&region, accounts, capacity),
        })
    }
}

/// Offsets of the parts of a file for so many sessions, and its length.
struct Layout {
    parts: [usize; 3],
    length: usize,
}

impl Layout {
    fn of(capacity: usize) -> Self {
        let translations = HEADER + capacity * CELLS[0];
        let accounts = translations + capacity * CELLS[1];
        let length = accounts + capacity * CELLS[2];
        Self { parts: [HEADER, translations, accounts], length }
    }

    /// The parts of a file that has this layout.
    fn read(&self, file: &File) -> io::Result<Vec<Vec<u8>>> {
        let [records, translations, accounts] = self.parts;
        let ranges =
            [records..translations, translations..accounts, accounts..self.length].into_iter();
        let read = |range: Range<usize>| {
            let mut part = vec![0; range.len()];
            file.read_exact_at(&mut part, range.start as u64).map(|()| part)
        };
        ranges.map(read).collect()
    }
}

/// Bytes of a session in each part.
const CELLS: [usize; 3] = [size_of::<Record>(), size_of::<Translation>(), size_of::<Account>()];

/// Cuts the parts of a larger file to this capacity: sessions at places behind it take free ones before it.
fn fit(parts: &mut [Vec<u8>], capacity: usize) {
    let places = parts[0].len() / CELLS[0];
    let is_used = |records: &[u8], place: usize| {
        let first = records[place * CELLS[0]..].first_chunk().copied().unwrap_or_default();
        Record::is_open(u64::from_ne_bytes(first))
    };
    let mut free = 0..capacity;
    for place in capacity..places {
        if !is_used(&parts[0], place) {
            continue;
        }
        let Some(to) = free.find(|to| !is_used(&parts[0], *to)) else { break };
        for (part, size) in parts.iter_mut().zip(CELLS) {
            part.copy_within(place * size..(place + 1) * size, to * size);
        }
    }
    parts.iter_mut().zip(CELLS).for_each(|(part, size)| part.truncate(capacity * size));
}

fn header(capacity: usize) -> io::Result<[u8; 128]> {
    let mut header = [0; 128];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[CAPACITY].copy_from_slice(&(capacity as u64).to_le_bytes());
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let length = boot.len().min(64);
    header[64..64 + length].copy_from_slice(&boot[..length]);
    Ok(header)
}

/// The capacity of a file that is sound, of this layout and of this boot as `header` says. A file of
/// an earlier version, without accounts, gets them.
fn found(file: &mut File, header: &[u8; 128]) -> io::Result<Option<usize>> {
    let mut found = [0; 128];
    if file.read_exact_at(&mut found, 0).is_err() {
        return Ok(None);
    }
    let capacity = u64::from_le_bytes(found[CAPACITY].try_into().expect("eight bytes"));
    found[CAPACITY].copy_from_slice(&header[CAPACITY]);
    let size = file.metadata()?.len();
    // Of whatever length a file claims to be for: it has that length.
    let Some(capacity) = usize::try_from(capacity).ok().filter(|it| *it as u64 <= size / 64) else {
        return Ok(None);
    };
    let layout = Layout::of(capacity);
    let is_sound = [layout.length, layout.parts[2]].iter().any(|length| *length as u64 == size);
    if found != *header || !is_sound {
        return Ok(None);
    }
    file.set_len(layout.length as u64)?;
    Ok(Some(capacity))
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
