//! Settings under `/proc/sys/net`, most of them of one interface, of the calling thread's
//! network namespace.
//!
//! In a container whose `/proc/sys` is read-only the same folder of the host is used, where it is
//! mounted at `/host/proc/sys`: its content is that of the network namespace which the process is in.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::error::Error;

/// The address family a setting belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `net/ipv4/conf/…`
    V4,
    /// `net/ipv6/conf/…`
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Writes one setting of one interface, for instance `(V6, "eth0", "accept_ra", "0")`.
///
/// # Errors
/// Names the file; [`Error::is_not_found`] if the interface is gone or the
/// kernel has no such setting (an IPv6 one where IPv6 is not built in).
pub fn set(family: Family, interface: &str, setting: &str, value: &str) -> Result<(), Error> {
    write(&path(family, interface, setting), value)
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    let written = fs::write(path, value).or_else(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => fs::write(on_host(path), value).map_err(|_| error),
        _ => Err(error),
    });
    written.map_err(|cause| Error::new(format!("write '{value}' to {}", path.display()), cause))
}

/// Lets connection tracking translate TCP segments outside of the window as well, if it is there:
/// the kernel would answer those with resets under the node's address, which end the connections of
/// pods that it masquerades.
///
/// # Errors
/// Names the file.
pub(crate) fn track_segments_outside_of_windows() -> Result<(), Error> {
    let path = Path::new("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal");
    let is_strict = fs::read_to_string(path).is_ok_and(|text| text.trim() == "0");
    if is_strict { write(path, "1") } else { Ok(()) }
}

/// Like [`set`], but a setting that does not exist is as good as switched off.
///
/// # Errors
/// Names the file.
pub fn set_if_present(
    family: Family,
    interface: &str,
    setting: &str,
    value: &str,
) -> Result<(), Error> {
    match set(family, interface, setting, value) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// Reads one setting of one interface.
///
/// # Errors
/// As for [`set`].
pub fn read(family: Family, interface: &str, setting: &str) -> Result<String, Error> {
    let path = path(family, interface, setting);
    fs::read_to_string(&path)
        .map(|text| text.trim().to_owned())
        .map_err(|cause| Error::new(format!("read {}", path.display()), cause))
}

/// Enables forwarding of a family in the kernel, unless it is enabled: enabling it overrides the
/// settings of each interface.
///
/// # Errors
/// Names the file.
pub(crate) fn switch_forwarding_on(family: Family) -> Result<(), Error> {
    if read(family, "all", "forwarding")? == "1" {
        return Ok(());
    }
    if family == Family::V6 {
        // Interfaces that learn their addresses from routers would stop learning: a 1 means "not
        // while forwarding", a 2 means "always".
        for interface in interfaces() {
            if read(family, &interface, "accept_ra").is_ok_and(|value| value == "1") {
                set_if_present(family, &interface, "accept_ra", "2")?;
            }
        }
    }
    set(family, "all", "forwarding", "1")
}

/// Everything that has IPv6 settings.
fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The same file by the mount of the host's folder.
fn on_host(path: &Path) -> PathBuf {
    Path::new("/host").join(path.strip_prefix("/").unwrap_or(path))
}

fn path(family: Family, interface: &str, setting: &str) -> PathBuf {
    // An interface's name holds no '/', so it is one part of the path, dots and all.
    let family = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{setting}"))
}
