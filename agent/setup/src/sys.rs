//! Programs attached by tcx: probes the kernel for them, lists and detaches them.

#![allow(unsafe_code, reason = "the only file of this crate that calls the C library")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_sys as bpf;
use rustix::io::Errno;

/// The programs of flow offload, which stay without a process.
const OURS: [&[u8]; 4] = [b"from_pod", b"from_switch", b"from_uplink", b"to_uplink"];
/// Programs that are looked at, of one interface and direction.
const MOST: usize = 64;

/// Returns whether programs can be attached by tcx: the kernel lists those of the loopback interface.
///
/// # Errors
/// Fails if the kernel does not let this process ask.
pub(crate) fn has_tcx() -> io::Result<bool> {
    const LOOPBACK: i32 = 1;
    let (mut flags, mut count) = (0, 0);
    // SAFETY: the numbers outlive the call; no room for program numbers is offered.
    let error = unsafe {
        bpf::bpf_prog_query(
            LOOPBACK,
            bpf::BPF_TCX_INGRESS,
            0,
            &raw mut flags,
            std::ptr::null_mut(),
            &raw mut count,
        )
    };
    match -error {
        0 => Ok(true),
        code if code == Errno::INVAL.raw_os_error() => Ok(false),
        // There are programs, and no room for their numbers.
        code if code == Errno::NOSPC.raw_os_error() => Ok(true),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Takes Podgate's programs off an interface and returns their names; `dry_run` leaves them. A
/// kernel without tcx has none.
///
/// # Errors
/// Fails if the kernel does not detach one.
pub(crate) fn detach_tcx(index: u32, dry_run: bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for kind in [bpf::BPF_TCX_INGRESS, bpf::BPF_TCX_EGRESS] {
        let (mut ids, mut count, mut flags) = ([0; MOST], MOST as u32, 0);
        // SAFETY: the array has room for as many numbers as `count` says, and outlives the call.
        let error = unsafe {
            bpf::bpf_prog_query(
                index as i32,
                kind,
                0,
                &raw mut flags,
                ids.as_mut_ptr(),
                &raw mut count,
            )
        };
        if error != 0 {
            continue;
        }
        for id in ids.into_iter().take(count as usize) {
            let Some((program, name)) = program(id) else { continue };
            if !OURS.contains(&name.as_bytes()) {
                continue;
            }
            if !dry_run {
                // SAFETY: takes plain numbers; the descriptor is open.
                let error = unsafe {
                    bpf::bpf_prog_detach_opts(
                        program.as_raw_fd(),
                        index as i32,
                        kind,
                        std::ptr::null(),
                    )
                };
                if error != 0 {
                    return Err(io::Error::from_raw_os_error(-error));
                }
            }
            names.push(name);
        }
    }
    Ok(names)
}

fn program(id: u32) -> Option<(OwnedFd, String)> {
    // SAFETY: takes a plain number; a descriptor it returns is new and ours.
    let descriptor = unsafe {
        let descriptor = bpf::bpf_prog_get_fd_by_id(id);
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))?
    };
    // SAFETY: zero is a valid value of every field.
    let mut info: bpf::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the structure and its length outlive the call, and the kernel writes no more.
    let error = unsafe {
        bpf::bpf_obj_get_info_by_fd(descriptor.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
    };
    let name: Vec<u8> = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    (error == 0).then(|| (descriptor, String::from_utf8_lossy(&name).into_owned()))
}
