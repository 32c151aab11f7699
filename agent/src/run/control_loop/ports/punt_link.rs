//! The state of the punt link.

use std::sync::Arc;

use dataplane::PortId;
use flow_offload::Offload;

/// The punt link, over which the kernel sends the frames that it does not forward itself.
#[derive(Default)]
pub(in crate::run::control_loop) enum PuntLink {
    /// There is none: each pod gets sockets of its own.
    #[default]
    Off,
    /// It is requested; requests for pods' ports wait for it.
    Starting(Vec<u64>),
    On {
        /// The port of the punt link's frames, whatever pod's they are.
        trunk: PortId,
        offload: Arc<Offload>,
    },
}

impl PuntLink {
    /// The port of its frames, and what forwards the others.
    pub(super) fn running(&self) -> Option<(PortId, Arc<Offload>)> {
        match self {
            Self::On { trunk, offload } => Some((*trunk, Arc::clone(offload))),
            Self::Off | Self::Starting(_) => None,
        }
    }
}
