//! The folders below which the process changes files (Landlock, <https://docs.kernel.org/userspace-api/landlock.html>):
//! everywhere else it makes, writes, renames and removes none, whatever user it runs as.

#![allow(unsafe_code, reason = "no library in our tree has these system calls")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Rights to change files, by the version of the interface that has them (linux/landlock.h).
const WRITE_FILE: u64 = 1 << 1;
/// Removing and making entries of folders.
const ENTRIES: u64 = 0b1_1111_1111 << 4;
/// Moving files between folders.
const REFER: (u64, i64) = (1 << 13, 2);
const TRUNCATE: (u64, i64) = (1 << 14, 3);
/// Those that a rule about a file may have.
const OF_FILES: u64 = WRITE_FILE | TRUNCATE.0;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: i32 = 1;

/// Files that the switch writes beside those of its configuration: sysctls of the network, which a
/// container may have at the second path, and what programs that it runs throw away.
pub const WRITTEN: [&str; 3] = ["/proc/sys/net", "/host/proc/sys/net", "/dev/null"];

/// The folders, open: a rule is about an inode, and those of `/proc` last as long as they are used.
static IN_FORCE: Mutex<Vec<File>> = Mutex::new(Vec::new());

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// Returns the version of Landlock's interface; `None` if the kernel has none or it is switched off.
pub fn version() -> Option<i64> {
    let nothing = std::ptr::null::<u64>();
    // SAFETY: with this flag the kernel takes a null pointer and no length, and touches no memory.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, CREATE_RULESET_VERSION)
    };
    (version > 0).then_some(version)
}

/// Returns whether [`write_only_below`] is in force.
pub(crate) fn are_confined() -> bool {
    !IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Restricts the calling thread, and all that it starts, to changing files below these folders, for good.
/// Paths that do not exist are left out. Needs no-new-privileges. Returns `false` if the kernel has no
/// Landlock.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn write_only_below<'a>(paths: impl IntoIterator<Item = &'a Path>) -> io::Result<bool> {
    let Some(version) = version() else { return Ok(false) };
    let rights = [REFER, TRUNCATE].into_iter().filter(|(_, since)| version >= *since);
    let rights = rights.fold(WRITE_FILE | ENTRIES, |all, (right, _)| all | right);
    // SAFETY: the kernel reads the eight bytes of `rights`, which outlives the call.
    let ruleset = result(unsafe {
        let size = size_of_val(&rights);
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rights, size, 0_u32)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as i32) };
    let mut open = Vec::new();
    for path in paths {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let allowed = if file.metadata()?.is_dir() { rights } else { rights & OF_FILES };
        let rule = PathBeneath { allowed, parent: file.as_raw_fd() };
        // SAFETY: the kernel reads the twelve bytes of `rule`, which outlives the call, as `file` does.
        result(unsafe {
            let (number, rule) = (libc::SYS_landlock_add_rule, &raw const rule);
            libc::syscall(number, ruleset.as_raw_fd(), RULE_PATH_BENEATH, rule, 0_u32)
        })?;
        open.push(file);
    }
    // SAFETY: takes a descriptor and flags, and touches no memory of ours.
    result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) })?;
    IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner).append(&mut open);
    Ok(true)
}

fn result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_change_below_the_folders_and_nowhere_else() {
        testkit::requires!(version().is_some(), "the kernel has no Landlock");
        // A thread of its own: rights are given up for good.
        let done = std::thread::spawn(|| {
            let folder = std::env::temp_dir().join(format!("confine-{}", std::process::id()));
            let (inside, outside) = (folder.join("inside"), folder.join("outside"));
            for folder in [&inside, &outside] {
                fs::create_dir_all(folder).unwrap();
                fs::write(folder.join("old"), "old").unwrap();
            }
            rustix::thread::set_no_new_privs(true).unwrap();
            let missing = folder.join("missing");
            let paths = [inside.as_path(), Path::new("/dev/null"), &missing];
            assert!(write_only_below(paths).unwrap() && are_confined());
            fs::write(inside.join("new"), "new").unwrap();
            fs::rename(inside.join("new"), inside.join("old")).unwrap();
            fs::create_dir(inside.join("folder")).unwrap();
            fs::write("/dev/null", "x").unwrap();
            assert_eq!(fs::read(outside.join("old")).unwrap(), b"old", "reading is free");
            let refused = [
                fs::write(outside.join("new"), "x"),
                OpenOptions::new().append(true).open(outside.join("old")).map(drop),
                fs::remove_file(outside.join("old")),
                fs::rename(inside.join("old"), outside.join("new")),
                fs::create_dir(outside.join("folder")),
                std::os::unix::fs::symlink("/", outside.join("link")),
                std::os::unix::net::UnixListener::bind(outside.join("socket")).map(drop),
                fs::write("/etc/confine-test", "x"),
            ];
            for (number, result) in refused.into_iter().enumerate() {
                let kind = result.unwrap_err().kind();
                assert!(
                    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::CrossesDevices),
                    "{number}: {kind}"
                );
            }
            // Programs that it runs are confined as well.
            let touch = std::process::Command::new("touch").arg(outside.join("new")).status();
            assert!(!touch.unwrap().success());
            fs::remove_file(inside.join("old")).unwrap();
        });
        let failed = done.join();
        let folder = std::env::temp_dir().join(format!("confine-{}", std::process::id()));
        fs::remove_dir_all(folder).unwrap();
        failed.unwrap();
    }
}
