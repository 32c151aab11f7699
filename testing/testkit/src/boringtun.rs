//! boringtun in the place of the kernel's WireGuard.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::{Namespace, Process, eventually};

/// The program, which `scripts/setup` installs.
pub const BORINGTUN: &str = "boringtun-cli";

/// A WireGuard device that boringtun serves; both end with this value.
#[derive(Debug)]
pub struct Boringtun {
    socket: PathBuf,
    process: Process,
}

impl Boringtun {
    /// Makes the device `name` in a namespace, with its socket in the folder of all.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn start(namespace: &Namespace, name: &str) -> Self {
        let script =
            format!("exec {BORINGTUN} --disable-drop-privileges --foreground --threads 1 {name}");
        Self::run(namespace, name, &script, Path::new("/run/wireguard"))
    }

    /// The same with its socket in `folder`, which takes the place of that of all in the mount namespace of the
    /// program. A switch sees it by [`mounting`].
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn start_in(namespace: &Namespace, name: &str, folder: &Path) -> Self {
        let command =
            format!("{BORINGTUN} --disable-drop-privileges --foreground --threads 1 {name}");
        Self::run(namespace, name, &mounting(folder, &command), folder)
    }

    fn run(namespace: &Namespace, name: &str, script: &str, folder: &Path) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        // Left by a program that was killed.
        let _absent = std::fs::remove_file(&socket);
        let process = namespace.spawn(["unshare", "--mount", "sh", "-c", script]);
        eventually("boringtun's socket", || UnixStream::connect(&socket).ok().map(drop));
        Self { socket, process }
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

impl Drop for Boringtun {
    fn drop(&mut self) {
        let _absent = std::fs::remove_file(&self.socket);
    }
}

/// A shell script that runs a command for which `folder` is the folder of WireGuard's sockets. It needs a mount
/// namespace of its own.
pub fn mounting(folder: &Path, command: &str) -> String {
    let folder = folder.display();
    format!("mkdir -p /run/wireguard && mount --bind {folder} /run/wireguard && exec {command}")
}
