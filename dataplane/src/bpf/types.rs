//! Type information of a kernel (BTF, <https://docs.kernel.org/bpf/btf.html>).

#![allow(unsafe_code, reason = "calls of libbpf")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_sys as sys;

/// The types that a file describes.
pub struct KernelTypes(NonNull<sys::btf>);

// SAFETY: the types are only read through `&self`, and freed once.
unsafe impl Send for KernelTypes {}
// SAFETY: as above.
unsafe impl Sync for KernelTypes {}

/// The low half of `btf_type.info`: the number of members.
const MEMBERS: u32 = 0xffff;

impl KernelTypes {
    /// The file in which the running kernel describes itself.
    pub const RUNNING: &str = "/sys/kernel/btf/vmlinux";

    /// Reads a file with BTF, raw or in an ELF section.
    ///
    /// # Errors
    /// If there is no such file, or it is none with BTF.
    pub fn read(path: &Path) -> io::Result<Self> {
        // libbpf would print a line to stderr about a file that it cannot read.
        if std::fs::metadata(path)?.len() == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path is a C string that outlives the call.
        let types = unsafe { sys::btf__parse(path.as_ptr(), std::ptr::null_mut()) };
        NonNull::new(types).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// Returns whether there is a structure of this name.
    pub fn has_struct(&self, name: &CStr) -> bool {
        self.find(name).is_some()
    }

    /// Returns whether there is a structure of this name with such a member.
    pub fn has_member(&self, name: &CStr, member: &CStr) -> bool {
        let Some(found) = self.find(name) else { return false };
        // SAFETY: `found` is the number of a structure in these types; its members, as many as its
        // `info` says, follow it in memory that lives as long as `self`.
        let members = unsafe {
            let found = sys::btf__type_by_id(self.0.as_ptr(), found);
            let count = ((*found).info & MEMBERS) as usize;
            std::slice::from_raw_parts(found.add(1).cast::<sys::btf_member>(), count)
        };
        members.iter().any(|it| self.text(it.name_off) == Some(member))
    }

    fn find(&self, name: &CStr) -> Option<u32> {
        // SAFETY: the name is a C string that outlives the call.
        let found = unsafe {
            sys::btf__find_by_name_kind(self.0.as_ptr(), name.as_ptr(), sys::BTF_KIND_STRUCT)
        };
        u32::try_from(found).ok()
    }

    fn text(&self, offset: u32) -> Option<&CStr> {
        // SAFETY: a text that is found ends with a zero and lives as long as `self`.
        unsafe {
            let text = sys::btf__name_by_offset(self.0.as_ptr(), offset);
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        // SAFETY: read by `read`, freed once.
        unsafe { sys::btf__free(self.0.as_ptr()) };
    }
}
