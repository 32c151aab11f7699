//! The XDP program of a port: loading, attaching, and the map of its sockets.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use libbpf_sys as sys;
use linux_net::{Link, Netlink};

use super::AfXdpError;
use crate::bpf::{Map, Object, OwnPrograms, name_of, number_of, result};

/// Treatment of frames without a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Dropped: for interfaces that only the switch serves.
    Drop,
    /// Passed to the kernel: for interfaces that the node uses as well.
    Pass,
}

/// Attach mode of an XDP program.
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

/// All programs here.
static OWN: OwnPrograms = OwnPrograms::new(&["else_drop", "else_pass", "uplink"]);

/// A loaded program with its maps. The program itself lives as long as it is attached.
pub(super) struct Program {
    program: RawFd,
    /// Its number.
    number: u32,
    sockets: Map<u32, u32>,
    object: Arc<Object>,
}

impl Program {
    pub(super) fn load(source: &Source) -> Result<Self, AfXdpError> {
        let load = || {
            let object = Arc::new(Object::load(source.object, &[])?);
            let (program, sockets) = (object.program(source.program)?, object.map(c"sockets")?);
            Ok(Self { program, number: number_of(program)?, sockets, object })
        };
        load().map_err(not_loaded)
    }

    /// The program's object file, for as long as `self` is there.
    pub(super) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Attaches the program in place of any other, in the driver if that is possible.
    pub(super) fn attach(&self, interface: &str, index: u32) -> Result<Attached, AfXdpError> {
        let attach = |flags: u32| {
            // SAFETY: takes plain numbers; the descriptor is open for as long as `self`.
            let error =
                unsafe { sys::bpf_xdp_attach(index as i32, self.program, flags, std::ptr::null()) };
            result(error)
        };
        let mode = match attach(DRIVER_MODE) {
            Ok(()) => Attached::Native,
            Err(_) => attach(GENERIC_MODE).map(|()| Attached::Generic).map_err(|cause| {
                AfXdpError::new(format!("attach the XDP program to {interface}"), cause)
            })?,
        };
        OWN.note(self.number);
        Ok(mode)
    }

    /// Sends the frames of a queue to a socket.
    pub(super) fn serve(&self, queue: u32, socket: RawFd) -> Result<(), AfXdpError> {
        self.sockets
            .put(&queue, &(socket as u32))
            .map_err(|cause| AfXdpError::new("enter a socket in its map", cause))
    }
}

/// An object that could not be loaded, or lacks what it should have.
pub(super) fn not_loaded(cause: io::Error) -> AfXdpError {
    AfXdpError::new("load the XDP program", cause)
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

/// Notes which of the programs on these interfaces an earlier process of ours left there.
pub(super) fn recognize(links: &[Link]) {
    let programs: BTreeSet<u32> = links.iter().filter_map(|link| link.xdp_program).collect();
    OWN.recognize(programs);
}

/// Whether an earlier process of ours left the uplink's program on an interface.
pub(super) fn was_left_as_uplink(link: &Link) -> bool {
    link.xdp_program.is_some_and(|number| OWN.was_left_as(number, "uplink"))
}

/// The number of the program that is attached to an interface. (libbpf reads all interfaces for it.)
fn attached(index: u32) -> Option<u32> {
    Netlink::open().and_then(|mut netlink| netlink.link_of(index)).ok()?.xdp_program
}

/// The name of Podgate's XDP program on an interface.
pub(super) fn own(index: u32) -> Option<String> {
    name_of(attached(index)?).filter(|name| OWN.have_name(name))
}

/// The name of another application's XDP program on an interface.
pub(super) fn foreign(index: u32) -> Option<String> {
    let number = attached(index).filter(|number| !OWN.know(*number))?;
    let name = name_of(number).unwrap_or_else(|| format!("number {number}"));
    (!OWN.have_name(&name)).then_some(name)
}
