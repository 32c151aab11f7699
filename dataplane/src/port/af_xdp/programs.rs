//! The XDP programs of ports and of the uplink, each loaded once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::AfXdpError;
use super::dispatcher::Dispatcher;
use super::program::{Fallback, Program, UPLINK, not_loaded};
use super::uplink::{UplinkFilter, UplinkMaps};
use crate::bpf::{Counts, Object};

/// The programs, loaded by [`load`](Self::load), or else each for the first port that needs it.
///
/// A process loads them before it gives up CAP_PERFMON and CAP_SYS_ADMIN, without which older
/// kernels verify more strictly and refuse some. What is loaded can be attached again and again.
#[derive(Default)]
pub struct Programs {
    /// By fallback.
    dispatchers: Mutex<[Option<Arc<Dispatcher>>; 2]>,
    /// That of the uplink, while no uplink has it.
    uplink: Mutex<Option<UplinkProgram>>,
}

/// The program of an uplink, and its maps.
struct UplinkProgram {
    maps: UplinkMaps,
    program: Program,
}

/// The program of an uplink that is open. The next one gets it when this is dropped.
pub(super) struct OpenUplink {
    uplink: Option<UplinkProgram>,
    programs: Arc<Programs>,
}

/// The number of packets that a program handed to the socket of a queue, whether it got them or
/// not.
pub(super) struct Handed {
    counts: Counts,
    queue: u32,
    /// Keeps them open.
    _object: Arc<Object>,
}

impl Handed {
    pub(super) fn count(&self) -> u64 {
        self.counts.sum(self.queue)
    }
}

impl Programs {
    /// Loads those of ports and of the uplink.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub fn load() -> Result<Self, AfXdpError> {
        let this = Self::default();
        this.dispatcher(Fallback::Drop)?;
        *lock(&this.uplink) = Some(UplinkProgram::load()?);
        Ok(this)
    }

    /// The program of ports with this fallback.
    pub(super) fn dispatcher(&self, fallback: Fallback) -> Result<Arc<Dispatcher>, AfXdpError> {
        let dispatcher = &mut lock(&self.dispatchers)[usize::from(fallback == Fallback::Drop)];
        match dispatcher {
            Some(dispatcher) => Ok(Arc::clone(dispatcher)),
            None => Ok(Arc::clone(dispatcher.insert(Dispatcher::open(fallback)?))),
        }
    }

    /// Takes the program for an uplink. It passes everything to the kernel.
    pub(super) fn open_uplink(self: &Arc<Self>) -> Result<OpenUplink, AfXdpError> {
        let kept = lock(&self.uplink).take();
        let uplink = Some(kept.map_or_else(UplinkProgram::load, Ok)?);
        let mut open = OpenUplink { uplink, programs: Arc::clone(self) };
        open.maps().set(&UplinkFilter::default())?;
        Ok(open)
    }
}

impl OpenUplink {
    pub(super) fn program(&self) -> &Program {
        &self.uplink.as_ref().expect(HERE).program
    }

    /// The counter of the packets that the program handed to the socket of a queue.
    pub(super) fn handed(&self, queue: u32) -> Result<Handed, AfXdpError> {
        let object = Arc::clone(self.program().object());
        let counts = object.counts(c"handed").map_err(not_loaded)?;
        Ok(Handed { counts, queue, _object: object })
    }

    pub(super) fn maps(&mut self) -> &mut UplinkMaps {
        &mut self.uplink.as_mut().expect(HERE).maps
    }
}

impl Drop for OpenUplink {
    fn drop(&mut self) {
        *lock(&self.programs.uplink) = self.uplink.take();
    }
}

const HERE: &str = "it is taken when this is dropped";

impl UplinkProgram {
    fn load() -> Result<Self, AfXdpError> {
        let program = Program::load(&UPLINK)?;
        let maps = UplinkMaps::find(program.object()).map_err(not_loaded)?;
        Ok(Self { maps, program })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
