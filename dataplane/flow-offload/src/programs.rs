//! Programs that are loaded while the process may do so.
//!
//! The verifier takes programs that read the kernel's structures from a process with CAP_PERFMON or CAP_SYS_ADMIN, and
//! the switch gives both up. A punt link that is lost needs other programs, with maps of their own.

use std::io;
use std::thread::{self, JoinHandle};

use crate::{Error, Kernel};

/// Loaded programs, and spare ones.
pub struct Programs {
    tested: Option<Result<Kernel, Error>>,
    spare: Option<JoinHandle<Result<Kernel, Error>>>,
}

impl Programs {
    /// Loads and tests programs with room for so many entries. Spare ones are loaded meanwhile, by a thread that ends
    /// then.
    pub fn load(entries: u32) -> Self {
        let load = move || Kernel::load(entries);
        let spare = thread::Builder::new().name("programs".to_owned()).spawn(load).ok();
        let test = |kernel: Kernel| kernel.self_test().map(|()| kernel);
        Self { tested: Some(Kernel::load(entries).and_then(test)), spare }
    }

    /// Returns whether the kernel takes the programs, and they do there what they must.
    pub fn are_usable(&self) -> bool {
        self.tested.as_ref().is_none_or(Result::is_ok)
    }

    /// Takes the tested programs, then the spare ones.
    ///
    /// # Errors
    /// If the kernel refused them, a test failed, or all are taken.
    pub fn take(&mut self) -> Result<Kernel, Error> {
        if let Some(tested) = self.tested.take() {
            if tested.is_err() {
                self.spare = None;
            }
            return tested;
        }
        let Some(spare) = self.spare.take() else {
            let why = "no programs are left that were loaded at the start";
            return Err(Error::new("load the programs of flow offload", io::Error::other(why)));
        };
        spare.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
