//! Sessions in a file in memory, as `podgate run` keeps them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dataplane::session::{Sessions, Timeouts};

/// A file of sessions, removed with this value.
#[derive(Debug)]
pub struct SessionFile(PathBuf);

/// A tmpfs on every Linux; `/run`, where the switch's own file is, may be a disk on a machine for
/// builds.
const FOLDER: &str = "/dev/shm";

impl SessionFile {
    /// An empty table of this capacity in a new file.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn sessions(
        capacity: u32,
        ports: u16,
        timeouts: Timeouts,
    ) -> io::Result<(Self, Arc<Sessions>)> {
        let file = Self(Path::new(FOLDER).join(testkit::unique_name("sessions")));
        let sessions = Sessions::in_file(&file.0, capacity, ports, timeouts)?;
        Ok((file, sessions))
    }
}

impl Drop for SessionFile {
    fn drop(&mut self) {
        // The mapping stays for as long as the sessions do.
        let _ = std::fs::remove_file(&self.0);
    }
}
