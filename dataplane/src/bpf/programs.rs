//! Loaded programs by their numbers, and those among them that are ours.

#![allow(unsafe_code, reason = "calls of libbpf")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_sys as sys;

use super::result;

/// Numbers of programs that are known to be ours. Names can be read only by a process that may do
/// anything (CAP_SYS_ADMIN), which a running switch may not.
#[derive(Debug)]
pub struct OwnPrograms {
    names: &'static [&'static str],
    /// With the names of those that an earlier process left.
    known: Mutex<BTreeMap<u32, Option<String>>>,
}

impl OwnPrograms {
    /// Programs of ours have one of these names, as the kernel reports them.
    pub const fn new(names: &'static [&'static str]) -> Self {
        Self { names, known: Mutex::new(BTreeMap::new()) }
    }

    /// Whether our programs have this name.
    pub fn have_name(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Notes programs that an earlier process of ours left.
    pub fn recognize(&self, programs: impl IntoIterator<Item = u32>) {
        let named = |number| (number, name_of(number).filter(|name| self.have_name(name)));
        self.known().extend(programs.into_iter().map(named).filter(|(_, name)| name.is_some()));
    }

    /// Notes a program of this process.
    pub fn note(&self, number: u32) {
        self.known().insert(number, None);
    }

    /// Whether a program is known to be ours.
    pub fn know(&self, number: u32) -> bool {
        self.known().contains_key(&number)
    }

    /// Whether an earlier process left a program, under this name.
    pub fn was_left_as(&self, number: u32, name: &str) -> bool {
        self.known().get(&number).is_some_and(|known| known.as_deref() == Some(name))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Option<String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a program.
///
/// # Errors
/// If it is none.
pub fn number_of(program: RawFd) -> io::Result<u32> {
    info(program).map(|info| info.id)
}

/// The name of a program; `None` if there is none of this number, or the process may not read it.
pub fn name_of(number: u32) -> Option<String> {
    // SAFETY: takes a plain number; a descriptor it returns is new and ours.
    let descriptor = unsafe {
        let descriptor = sys::bpf_prog_get_fd_by_id(number);
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))?
    };
    let name = info(descriptor.as_raw_fd()).ok()?.name;
    let name: Vec<u8> = name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Some(String::from_utf8_lossy(&name).into_owned())
}

fn info(program: RawFd) -> io::Result<sys::bpf_prog_info> {
    // SAFETY: zero is a valid value of every field.
    let mut info: sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the structure and its length outlive the call, and the kernel writes no more.
    let error =
        unsafe { sys::bpf_obj_get_info_by_fd(program, (&raw mut info).cast(), &raw mut length) };
    result(error).map(|()| info)
}
