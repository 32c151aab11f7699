//! Programs at a cgroup, by links. A link that is pinned outlives the process.

#![allow(unsafe_code, reason = "system calls that return descriptors")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_sys as sys;

use dataplane::bpf::{Error, result};

/// In front of the name of a pin until it takes its place. Names of pins have no dots.
const NEW: &str = "new_";

/// Attaches a program to a cgroup beside all others there, until the link is closed.
pub(crate) fn attach(program: RawFd, kind: u32, cgroup: &File) -> io::Result<OwnedFd> {
    // SAFETY: takes plain numbers; the descriptor that it returns is new and ours.
    let link = unsafe { sys::bpf_link_create(program, cgroup.as_raw_fd(), kind, std::ptr::null()) };
    result(link.min(0))?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Pins a link in the place of an earlier one of that name, whose program ends then: there is no moment without
/// either.
pub(crate) fn pin(link: &OwnedFd, folder: &Path, name: &str) -> io::Result<()> {
    let (new, place) = (folder.join(format!("{NEW}{name}")), folder.join(name));
    unpin(&new)?;
    let path = CString::new(new.as_os_str().as_bytes())?;
    // SAFETY: the link is open and the path a C string.
    result(unsafe { sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) })?;
    let earlier = pinned(&place);
    std::fs::rename(&new, &place)?;
    earlier.map_or(Ok(()), |link| detach(&link))
}

/// The link that is pinned there, if there is one.
fn pinned(path: &Path) -> Option<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the path is a C string; the descriptor that the call returns is new and ours.
    unsafe {
        let link = sys::bpf_obj_get(path.as_ptr());
        (link >= 0).then(|| OwnedFd::from_raw_fd(link))
    }
}

/// Takes a link's program off its cgroup. Closing the link would do so a little later.
pub(crate) fn detach(link: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes a plain number.
    result(unsafe { sys::bpf_link_detach(link.as_raw_fd()) })
}

/// Ends a pinned link; one that is not there has ended.
fn unpin(path: &Path) -> io::Result<()> {
    if let Some(link) = pinned(path) {
        detach(&link)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Ends the links pinned in a folder under other names.
pub(crate) fn remove_but(folder: &Path, names: &[String]) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !names.iter().any(|name| entry.file_name() == **name) {
            unpin(&entry.path())?;
        }
    }
    Ok(())
}

/// Ends the links pinned in a folder, and removes it.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        unpin(&entry?.path())?;
    }
    std::fs::remove_dir(folder)
}

/// Removes all pins in a folder: the programs end there, unless a running process holds them.
///
/// # Errors
/// If a pin cannot be removed.
pub fn remove_pins(pins: &Path) -> Result<(), Error> {
    remove_pins_but(pins, &[])?;
    let failed = |cause| Error::new(format!("remove {}", pins.display()), cause);
    remove(pins).map_err(failed)
}

/// Removes the pins in a folder, but for those of these pods.
pub(crate) fn remove_pins_but(pins: &Path, kept: &[PathBuf]) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("remove the pins in {}", pins.display()), cause);
    let entries = match std::fs::read_dir(pins) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries.flatten().filter(|it| !kept.contains(&it.path())) {
        remove(&entry.path()).map_err(failed)?;
    }
    Ok(())
}
