//! Programs at the ingress of interfaces by tcx (Linux 6.6), without a link.

#![allow(unsafe_code, reason = "system calls with memory that the kernel fills")]

use std::io;
use std::os::fd::RawFd;

use libbpf_sys as sys;

use dataplane::bpf::{OwnPrograms, number_of, result};

/// `BPF_F_BEFORE` and `BPF_F_AFTER` of linux/bpf.h: without another program, the first and the last.
const BEFORE: u32 = 1 << 3;
const AFTER: u32 = 1 << 4;
/// Programs at one place that are looked at.
const MOST: usize = 64;
static OWN: OwnPrograms =
    OwnPrograms::new(&["from_pod", "from_switch", "from_uplink", "to_uplink"]);

/// Notes which programs of an earlier process stand at these interfaces.
pub(crate) fn recognize(interfaces: impl Iterator<Item = u32>) {
    OWN.recognize(interfaces.filter_map(|it| attached(it).ok()).flatten());
}

/// Whether an earlier process left a program of this name at an interface.
pub(crate) fn was_left(name: &str, ifindex: u32) -> bool {
    attached(ifindex).is_ok_and(|there| there.iter().any(|it| OWN.was_left_as(*it, name)))
}

/// Puts a program first at an interface, and removes those of an earlier process.
pub(crate) fn attach(program: RawFd, ifindex: u32) -> io::Result<()> {
    let own = number_of(program)?;
    if attached(ifindex)?.first() == Some(&own) {
        return Ok(());
    }
    let mut options = sys::bpf_prog_attach_opts { flags: BEFORE, ..Default::default() };
    options.sz = size_of_val(&options) as _;
    // SAFETY: takes plain numbers and a structure that outlives the call.
    let error = unsafe {
        let (interface, place) = (ifindex as i32, sys::BPF_TCX_INGRESS);
        sys::bpf_prog_attach_opts(program, interface, place, &raw const options)
    };
    result(error)?;
    remove_known(ifindex, own);
    Ok(())
}

/// Takes programs of ours off an interface, this process's or an earlier one's.
pub(crate) fn detach(ifindex: u32) {
    remove_known(ifindex, 0);
}

/// Removes known programs of ours except `but`. A process that may not open another one's program
/// names it by its neighbour.
fn remove_known(ifindex: u32, but: u32) {
    while let Ok(there) = attached(ifindex)
        && let Some(place) = there.iter().position(|it| *it != but && OWN.know(*it))
    {
        let mut options = sys::bpf_prog_detach_opts { flags: BEFORE, ..Default::default() };
        if let Some(before) = place.checked_sub(1).and_then(|it| there.get(it)) {
            options.flags = AFTER;
            options.relative_id = *before;
        }
        options.sz = size_of_val(&options) as _;
        // SAFETY: takes plain numbers and a structure that outlives the call.
        let error = unsafe {
            let (interface, place) = (ifindex as i32, sys::BPF_TCX_INGRESS);
            sys::bpf_prog_detach_opts(0, interface, place, &raw const options)
        };
        if error != 0 {
            return;
        }
    }
}

/// Notes a program of this process.
pub(crate) fn note(program: RawFd) -> io::Result<()> {
    OWN.note(number_of(program)?);
    Ok(())
}

/// Numbers of the programs at an interface, the first one first. An error if the kernel has no tcx.
pub(crate) fn attached(ifindex: u32) -> io::Result<Vec<u32>> {
    let mut numbers = [0_u32; MOST];
    let mut options =
        sys::bpf_prog_query_opts { prog_ids: numbers.as_mut_ptr(), ..Default::default() };
    options.sz = size_of_val(&options) as _;
    options.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: the array has room for as many numbers as the options say; both outlive the call.
    let error =
        unsafe { sys::bpf_prog_query_opts(ifindex as i32, sys::BPF_TCX_INGRESS, &raw mut options) };
    result(error)?;
    // SAFETY: both fields of the union are the same number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(numbers[..count.min(MOST)].to_vec())
}
