//! Unix sockets that the switch listens on.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::state_dir::make_folder;

/// Mode of the sockets.
const MODE: u32 = 0o600;

/// Listens at `socket`, for its owner only. A stale socket is replaced, a missing folder made.
///
/// # Errors
/// If another process listens there, or the path cannot be used.
pub(super) fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder)?;
    }
    match local_api::listen(socket, MODE) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(socket).is_ok() {
                let text = "another podgate answers there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            fs::remove_file(socket)?;
            local_api::listen(socket, MODE)
        }
        other => other,
    }
}
