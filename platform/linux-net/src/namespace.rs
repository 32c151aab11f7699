//! Work inside another network namespace.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::sys;

/// An open network namespace: it stays alive while this handle does, even if
/// its name is removed.
#[derive(Debug)]
pub struct Namespace {
    path: PathBuf,
    file: File,
}

impl Namespace {
    /// Opens the namespace at `path` (`/run/netns/NAME`, `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// Fails if the file cannot be opened. Whether it is a network namespace shows
    /// when it is entered.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path)
            .map_err(|cause| Error::new(format!("open namespace {}", path.display()), cause))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Makes a namespace without a name, with a loopback interface that is off. It ends with this
    /// handle and the sockets that were opened in it.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or if no thread can be started.
    pub fn create() -> Result<Self, Error> {
        let failed = |cause| Error::new("make a network namespace", cause);
        // A thread of its own, which ends: the caller's stays where it is.
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn(|| {
            sys::leave_network_namespace()?;
            File::open("/proc/thread-self/ns/net")
        });
        let file = match thread.map_err(failed)?.join() {
            Ok(file) => file.map_err(failed)?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(Self { path: PathBuf::from("(unnamed)"), file })
    }

    /// The namespace the calling thread is in.
    ///
    /// # Errors
    /// Fails if /proc is not mounted.
    pub fn current() -> Result<Self, Error> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Returns whether this is the namespace the calling thread is in.
    ///
    /// # Errors
    /// Fails if either cannot be looked at.
    pub fn is_current(&self) -> Result<bool, Error> {
        let identity = |one: &Self| match one.file.metadata() {
            Ok(file) => Ok((file.dev(), file.ino())),
            Err(cause) => {
                Err(Error::new(format!("look at namespace {}", one.path.display()), cause))
            }
        };
        Ok(identity(self)? == identity(&Self::current()?)?)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` inside the namespace and returns what it returns.
    ///
    /// A new thread enters the namespace and ends with the work, so no thread of the caller is left
    /// in the wrong namespace. Sockets opened by `work` stay in the namespace.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered (not a network namespace, no
    /// CAP_SYS_ADMIN) or no thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let failed = |cause| Error::new(format!("enter namespace {}", self.path.display()), cause);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("netns".to_owned())
                .spawn_scoped(scope, || {
                    sys::enter_network_namespace(&self.file)?;
                    Ok(work())
                })
                .map_err(failed)?;
            match thread.join() {
                Ok(result) => result.map_err(failed),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` inside the network namespace at `path`; see [`Namespace::run`].
///
/// # Errors
/// Fails if the namespace cannot be opened or entered.
pub fn in_namespace<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    Namespace::open(path)?.run(work)
}
