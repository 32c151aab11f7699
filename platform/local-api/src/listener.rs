//! Unix sockets that have their mode from the first moment, independent of the umask.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Listens at a path that does not exist yet. The file has `mode` from its first moment on.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if there is a file; if the path cannot be used.
pub fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets this mode, less what the umask takes.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket.into())
}
