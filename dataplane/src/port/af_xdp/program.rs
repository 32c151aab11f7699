//! The XDP program of a port: loading, attaching, and the map of its sockets.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use libbpf_sys as sys;

use super::AfXdpError;

/// What becomes of frames while no socket is there to take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// They are dropped: for interfaces that only the switch may serve.
    Drop,
    /// They go on to the kernel: for interfaces that the cluster node uses as well.
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

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));

/// A loaded program with its map of sockets. The program itself lives as long as it is attached.
pub(super) struct Program {
    object: NonNull<sys::bpf_object>,
    program: RawFd,
    sockets: RawFd,
}

// SAFETY: the object is used through `&self` only to read descriptors, and closed once.
unsafe impl Send for Program {}

impl Program {
    pub(super) fn load(fallback: Fallback) -> Result<Self, AfXdpError> {
        let name = match fallback {
            Fallback::Drop => c"else_drop",
            Fallback::Pass => c"else_pass",
        };
        // SAFETY: the object file is a static slice; libbpf copies what it needs.
        let object = unsafe {
            sys::bpf_object__open_mem(OBJECT.as_ptr().cast(), OBJECT.len() as _, std::ptr::null())
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
        loaded.program = loaded.program_named(name)?;
        loaded.sockets = loaded.map_named(c"sockets")?;
        Ok(loaded)
    }

    /// Attaches the program in place of any that was there, in the driver if that is possible.
    pub(super) fn attach(&self, interface: &str, index: u32) -> Result<Attached, AfXdpError> {
        let attach = |flags: u32| {
            // SAFETY: takes plain numbers; the descriptor is open for as long as `self`.
            let error =
                unsafe { sys::bpf_xdp_attach(index as i32, self.program, flags, std::ptr::null()) };
            if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
        };
        if attach(DRIVER_MODE).is_ok() {
            return Ok(Attached::Native);
        }
        attach(GENERIC_MODE).map(|()| Attached::Generic).map_err(|cause| {
            AfXdpError::new(format!("attach the XDP program to {interface}"), cause)
        })
    }

    /// Sends the frames of a queue to a socket.
    pub(super) fn serve(&self, queue: u32, socket: RawFd) -> Result<(), AfXdpError> {
        let (queue, socket) = (queue, socket as u32);
        // SAFETY: key and value are 32-bit numbers, as the map's are, and outlive the call.
        let error = unsafe {
            sys::bpf_map_update_elem(
                self.sockets,
                std::ptr::from_ref(&queue).cast(),
                std::ptr::from_ref(&socket).cast(),
                0,
            )
        };
        let cause = io::Error::from_raw_os_error(-error);
        if error == 0 { Ok(()) } else { Err(AfXdpError::new("enter a socket in its map", cause)) }
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

    fn map_named(&self, name: &CStr) -> Result<RawFd, AfXdpError> {
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

/// Takes whatever XDP program is attached off an interface.
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
