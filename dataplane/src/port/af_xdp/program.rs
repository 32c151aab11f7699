//! The XDP program of a port: loading, attaching, and the map of its sockets.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_sys as sys;

use super::{AfXdpError, map};

/// Treatment of frames without a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Dropped: for interfaces that only the switch serves.
    Drop,
    /// Passed to the kernel: for interfaces that the cluster node uses as well.
    Pass,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// In the interface's driver.
    Native,
    /// In the kernel's stack, behind the driver.
    Generic,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const GENERIC_MODE: u32 = 1 << 1;
const DRIVER_MODE: u32 = 1 << 2;

/// A compiled object file, and the name of a program in it.
pub(super) struct Source {
    object: &'static [u8],
    program: &'static CStr,
}

/// The program that redirects every frame to the socket of its queue, by its fallback.
pub(super) const fn everything(fallback: Fallback) -> Source {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
    let program = match fallback {
        Fallback::Drop => c"else_drop",
        Fallback::Pass => c"else_pass",
    };
    Source { object, program }
}

/// The program that redirects the switch's traffic to its sockets and passes the rest.
pub(super) const UPLINK: Source = Source {
    object: include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o")),
    program: c"uplink",
};

/// The names of all programs here, as the kernel reports them.
const OURS: [&CStr; 3] = [c"else_drop", c"else_pass", c"uplink"];

/// A loaded program with its maps. The program itself lives as long as it is attached.
pub(super) struct Program {
    object: NonNull<sys::bpf_object>,
    program: RawFd,
    sockets: RawFd,
}

// SAFETY: the object is used through `&self` only to read descriptors, and closed once.
unsafe impl Send for Program {}
// SAFETY: as above; reading a loaded object changes nothing in it.
unsafe impl Sync for Program {}

impl Program {
    pub(super) fn load(source: &Source) -> Result<Self, AfXdpError> {
        let bytes = source.object;
        // SAFETY: the object file is a static slice; libbpf copies what it needs.
        let object = unsafe {
            sys::bpf_object__open_mem(bytes.as_ptr().cast(), bytes.len() as _, std::ptr::null())
        };
        let object = NonNull::new(object)
            .ok_or_else(|| AfXdpError::last("open the XDP program's object"))?;
        let mut loaded = Self { object, program: -1, sockets: -1 };
        // SAFETY: the object was opened above and is closed by `drop`.
        let error = unsafe { sys::bpf_object__load(object.as_ptr()) };
        if error != 0 {
            let cause = io::Error::from_raw_os_error(-error);
            return Err(AfXdpError::new("load the XDP program", cause));
        }
        loaded.program = loaded.program_named(source.program)?;
        loaded.sockets = loaded.map_named(c"sockets")?;
        Ok(loaded)
    }

    /// Attaches the program in place of any other, in the driver if that is possible.
    pub(super) fn attach(&self, interface: &str, index: u32) -> Result<Attached, AfXdpError> {
        let attach = |flags: u32| {
            // SAFETY: takes plain numbers; the descriptor is open for as long as `self`.
            let error =
                unsafe { sys::bpf_xdp_attach(index as i32, self.program, flags, std::ptr::null()) };
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
        };
        let mode = match attach(DRIVER_MODE) {
            Ok(()) => Attached::Native,
            Err(_) => attach(GENERIC_MODE).map(|()| Attached::Generic).map_err(|cause| {
                AfXdpError::new(format!("attach the XDP program to {interface}"), cause)
            })?,
        };
        known().extend(attached(index));
        Ok(mode)
    }

    /// Sends the frames of a queue to a socket.
    pub(super) fn serve(&self, queue: u32, socket: RawFd) -> Result<(), AfXdpError> {
        map::put(self.sockets, &queue, &(socket as u32))
            .map_err(|cause| AfXdpError::new("enter a socket in its map", cause))
    }

    fn program_named(&self, name: &CStr) -> Result<RawFd, AfXdpError> {
        // SAFETY: the object is open and the name a C string.
        let found = unsafe {
            let program =
                sys::bpf_object__find_program_by_name(self.object.as_ptr(), name.as_ptr());
            if program.is_null() { -1 } else { sys::bpf_program__fd(program) }
        };
        (found >= 0).then_some(found).ok_or_else(|| missing(name))
    }

    /// The descriptor of one of the object's maps; open for as long as `self` is.
    pub(super) fn map_named(&self, name: &CStr) -> Result<RawFd, AfXdpError> {
        // SAFETY: the object is open and the name a C string.
        let found = unsafe {
            let map = sys::bpf_object__find_map_by_name(self.object.as_ptr(), name.as_ptr());
            if map.is_null() { -1 } else { sys::bpf_map__fd(map) }
        };
        (found >= 0).then_some(found).ok_or_else(|| missing(name))
    }
}

fn missing(name: &CStr) -> AfXdpError {
    AfXdpError::new(
        format!("find {} in the XDP program's object", name.to_string_lossy()),
        io::ErrorKind::NotFound.into(),
    )
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: opened in `load`, closed once. An attached program stays with the kernel.
        unsafe { sys::bpf_object__close(self.object.as_ptr()) };
    }
}

/// Detaches any XDP program from an interface.
pub(super) fn detach(interface: &str, index: u32) -> Result<(), AfXdpError> {
    for flags in [DRIVER_MODE, GENERIC_MODE] {
        // SAFETY: takes plain numbers.
        let error = unsafe { sys::bpf_xdp_detach(index as i32, flags, std::ptr::null()) };
        if error != 0 {
            let cause = io::Error::from_raw_os_error(-error);
            let attempt = format!("detach the XDP program from {interface}");
            return Err(AfXdpError::new(attempt, cause));
        }
    }
    Ok(())
}

/// Numbers of programs that are known to be ours. Their names can be read only by a process that
/// may do anything (CAP_SYS_ADMIN), which a running switch may not.
static KNOWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn known() -> MutexGuard<'static, BTreeSet<u32>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes which of the programs on the interfaces with these numbers an earlier process of ours
/// left there.
pub(super) fn recognize(interfaces: impl Iterator<Item = u32>) {
    for program in interfaces.filter_map(attached) {
        let is_ours = name_of(program)
            .is_some_and(|name| OURS.iter().any(|ours| ours.to_bytes() == name.as_bytes()));
        if is_ours {
            known().insert(program);
        }
    }
}

/// The number of the program that is attached to an interface.
fn attached(index: u32) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the number outlives the call.
    let error = unsafe { sys::bpf_xdp_query_id(index as i32, 0, &raw mut id) };
    (error == 0 && id != 0).then_some(id)
}

/// The name of Podgate's XDP program on an interface.
pub(super) fn own(index: u32) -> Option<String> {
    let name = name_of(attached(index)?)?;
    OURS.iter().any(|ours| ours.to_bytes() == name.as_bytes()).then(|| name.into_string())
}

/// The name of another application's XDP program on an interface.
pub(super) fn foreign(index: u32) -> Option<String> {
    let id = attached(index).filter(|id| !known().contains(id))?;
    let name = name_of(id).unwrap_or_else(|| format!("number {id}").into());
    let is_ours = OURS.iter().any(|ours| ours.to_bytes() == name.as_bytes());
    (!is_ours).then(|| name.to_string())
}

fn name_of(program: u32) -> Option<Box<str>> {
    // SAFETY: takes a plain number; a descriptor it returns is new and ours.
    let descriptor = unsafe {
        let descriptor = sys::bpf_prog_get_fd_by_id(program);
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))?
    };
    // SAFETY: zero is a valid value of every field.
    let mut info: sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the structure and its length outlive the call, and the kernel writes no more.
    let error = unsafe {
        let info = (&raw mut info).cast();
        sys::bpf_obj_get_info_by_fd(descriptor.as_raw_fd(), info, &raw mut length)
    };
    let name: Vec<u8> = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    (error == 0).then(|| String::from_utf8_lossy(&name).into())
}
