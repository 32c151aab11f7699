//! The system calls that no safe crate in our tree offers: entering a network
//! namespace, the ethtool ioctl, waiting on a file descriptor, packet sockets.

#![allow(unsafe_code, reason = "the only file of this crate that calls the C library")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::Duration;

/// Moves the calling thread (and no other one) into the network namespace that
/// `namespace` refers to; see setns(2). Needs CAP_SYS_ADMIN.
pub(super) fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, which `namespace` keeps open, and flags; it touches no
    // memory of ours.
    result(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Moves the calling thread (and no other one) into a new network namespace; see unshare(2). Needs
/// CAP_SYS_ADMIN.
pub(super) fn leave_network_namespace() -> io::Result<()> {
    // SAFETY: unshare takes flags and touches no memory of ours; descriptors stay shared.
    result(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// The names of the features a network device can have, by their bit number.
/// They are the same for all devices of one kernel.
pub(super) fn feature_names(socket: BorrowedFd<'_>, interface: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: command, reserved, u64 mask of string sets, then a count a set.
    let mut info = [GSSET_INFO, 0, 0, 0, 0];
    let mask = (1u64 << FEATURES_STRING_SET).to_ne_bytes();
    info[2] = u32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]);
    info[3] = u32::from_ne_bytes([mask[4], mask[5], mask[6], mask[7]]);
    ethtool(socket, interface, &mut info)?;
    let count = info[4];
    if count > MOST_FEATURES {
        let text = format!("the kernel has {count} device features, expected {MOST_FEATURES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // struct ethtool_gstrings: command, string set, count, then 32 bytes a string. The kernel
    // writes as many as it has; there is room for all that the count above could have been.
    let mut strings = vec![0; 3 + MOST_FEATURES as usize * STRING_WORDS];
    strings[..3].copy_from_slice(&[GSTRINGS, FEATURES_STRING_SET, count]);
    ethtool(socket, interface, &mut strings)?;
    let name = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    };
    Ok(strings[3..].chunks(STRING_WORDS).take(count as usize).map(name).collect())
}

/// The features of an interface that are on, a bit each, 32 a word.
pub(super) fn active_features(
    socket: BorrowedFd<'_>,
    interface: &str,
    words: usize,
) -> io::Result<Vec<u32>> {
    // struct ethtool_gfeatures: command, count of blocks, then the blocks: available,
    // requested, active, never changed. The kernel writes at most the count given.
    let mut request = vec![0; 2 + words * 4];
    request[..2].copy_from_slice(&[GFEATURES, words as u32]);
    ethtool(socket, interface, &mut request)?;
    Ok(request[2..].chunks(4).map(|block| block[2]).collect())
}

/// Switches the features in `chosen` (bits as above) on or off, except for those that the driver
/// fixes.
pub(super) fn switch_features(
    socket: BorrowedFd<'_>,
    interface: &str,
    chosen: &[u32],
    on: bool,
) -> io::Result<()> {
    // struct ethtool_sfeatures: command, count of blocks, then the blocks: valid, requested.
    let mut request = vec![SFEATURES, chosen.len() as u32];
    request.extend(chosen.iter().flat_map(|valid| [*valid, if on { *valid } else { 0 }]));
    ethtool(socket, interface, &mut request)
}

/// The queues that an interface uses: those that receive, those that send, and those that do both.
pub(super) fn channels(socket: BorrowedFd<'_>, interface: &str) -> io::Result<[u32; 3]> {
    // struct ethtool_channels: command, then most of receiving, sending, other and combined ones, then
    // their counts.
    let mut request = [GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    ethtool(socket, interface, &mut request)?;
    let [.., receiving, sending, _, combined] = request;
    Ok([receiving, sending, combined])
}

// Commands and numbers of linux/ethtool.h.
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const SFEATURES: u32 = 0x3b;
const FEATURES_STRING_SET: u32 = 4;
/// `ETH_GSTRING_LEN` is 32 bytes.
const STRING_WORDS: usize = 8;
/// The kernel keeps features in one 64-bit word; the room is for four of them.
const MOST_FEATURES: u32 = 256;

/// Runs one ethtool command on the interface called `interface`, in the namespace `socket` belongs to. Private to this
/// file, because the first word of `request` decides how much the kernel writes behind it.
fn ethtool(socket: BorrowedFd<'_>, interface: &str, request: &mut [u32]) -> io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() || interface.bytes().any(|byte| byte == 0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (slot, byte) in name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    let ifru_data = request.as_mut_ptr().cast();
    let mut ifreq =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data } };
    // SAFETY: SIOCETHTOOL reads `ifreq`, whose name ends in a zero byte, and reads and writes the
    // command's structure behind `ifru_data`. Both outlive the call, and each caller above gives
    // its command's structure the length its comment derives.
    result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut ifreq) })
}

/// Opens a packet socket that receives what comes in by one interface; each frame has a `struct virtio_net_hdr` in
/// front, in both directions (packet(7)).
pub(super) fn packet_socket(ifindex: u32) -> io::Result<File> {
    // SAFETY: socket takes integers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    result(socket)?;
    // SAFETY: the descriptor was opened above, and nothing else owns it.
    let socket = unsafe { File::from_raw_fd(socket) };
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
        let on: libc::c_int = 1;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        let value = (&raw const on).cast();
        // SAFETY: the kernel reads one int, which outlives the call.
        result(unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, length)
        })?;
    }
    // SAFETY: a structure of integers, for each of which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex as i32;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads the address, which has the length given and outlives the call.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// Waits until `descriptor` can be read; `false` when `timeout` ran out first.
/// `None` waits for ever. A signal ends the wait early with `false`.
pub(super) fn readable(descriptor: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let milliseconds = match timeout {
        None => -1,
        // Rounded up, so that a short wait is not a busy one.
        Some(wait) => i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    };
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: poll reads and writes the one pollfd given, which outlives the call.
    let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// A descriptor on which ioctls about interfaces can be made.
pub(super) fn control_socket() -> io::Result<impl AsFd> {
    std::os::unix::net::UnixDatagram::unbound()
}

fn result(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
