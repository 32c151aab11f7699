//! Operations on interfaces, and their completions.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use dataplane::PortId;
use dataplane::port::Tag;
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::wire::Mac;
use flow_offload::Offload;
use local_api::{Answer, AttachPod, Attachment};

use super::error::KernelError;
use super::interfaces::Opened;
use crate::run::encryption::Encryption;

/// An operation on interfaces.
pub(in crate::run) enum Operation {
    /// Opens a port.
    Open {
        /// Names the request in its completion.
        ticket: u64,
        interface: String,
        /// The number that the interface must have, if it is known.
        expected: Option<u32>,
        way: Way,
    },
    /// Closes a port that is not served. The kernel may wait for all processors here.
    Close(Opened),
    /// Makes and opens the punt link of flow offload, with this number of queues, and loads the
    /// programs, with this number of entries.
    OpenPuntLink { queues: u32, entries: u32 },
    /// Looks up the number of an interface.
    Find { interface: String, purpose: Purpose },
    /// Switches an interface on, with the program of flow offload at it if it has one: its port is in
    /// force.
    BringUp { interface: String, program: Option<Program>, purpose: BringUpFor },
    /// Switches an interface off.
    BringDown { interface: String },
    /// Reads the kernel's own addresses.
    ReadAddresses,
    /// Sets the uplink's filter.
    SetUplinkFilter(UplinkFilter),
    /// Returns the uplink to the kernel.
    ReleaseUplink,
    /// Lets flow offload forward what the node's kernel sends by its end of the host port.
    OffloadHost { offload: Arc<Offload>, kernel_end: u32 },
    /// Detaches the switch's program from the host port's interface.
    ReleaseHostPort { interface: String },
}

/// The program of flow offload at a port's interface.
pub(in crate::run) struct Program {
    pub(in crate::run) offload: Arc<Offload>,
    pub(in crate::run) id: PortId,
    pub(in crate::run) index: u32,
}

/// The use of an interface that is switched on.
pub(in crate::run) enum BringUpFor {
    /// An attachment that waits for it.
    Attachment(Attachment),
    /// A port that is served.
    Served(PortId),
    /// None that waits for it.
    Others,
}

/// The way in which a port opens.
pub(in crate::run) enum Way {
    /// With sockets of its own.
    Sockets,
    /// On an interface that the kernel uses as well.
    Uplink,
    /// On such an interface, by a link of its own: programs of flow offload steer its packets.
    SteeredUplink { offload: Arc<Offload>, encryption: Option<Arc<Encryption>> },
    /// Behind a program of flow offload, which punts frames with this tag. The interface gets it when it
    /// is switched on.
    Program { offload: Arc<Offload>, id: PortId, tag: Tag, mac: Mac },
}

/// The use of an interface's number.
pub(crate) enum Purpose {
    /// A request about an attachment that is known: its interface may be a new one.
    Attach(AttachPod, Sender<Answer>),
    /// An event about the interface of an open port.
    Served(PortId),
    /// The port of an attachment is lost.
    Lost(Attachment),
}

/// The result of an operation.
pub(crate) enum Completion {
    /// Completes [`Operation::Open`]; the MAC address is that of an uplink.
    Opened { ticket: u64, result: Result<(Opened, Option<Mac>), OpenError> },
    /// Completes [`Operation::OpenPuntLink`].
    PuntLinkOpened(Result<(Opened, flow_offload::Kernel), KernelError>),
    /// Completes [`Operation::Find`]; the number is `None` if there is no such interface.
    Found { index: Result<Option<u32>, KernelError>, purpose: Purpose },
    /// Completes [`Operation::BringUp`].
    BroughtUp { attachment: Attachment, result: Result<(), KernelError> },
    /// Failure of [`Operation::BringUp`] for a port that is served.
    NotBroughtUp { id: PortId, why: KernelError },
    /// Completes [`Operation::ReadAddresses`].
    Addresses(Result<Vec<IpAddr>, KernelError>),
    /// Completes [`Operation::SetUplinkFilter`].
    UplinkFilterSet(Result<(), KernelError>),
}

/// Why a port did not open.
pub(crate) struct OpenError {
    pub(in crate::run) why: KernelError,
    /// Whether the interface does not exist any more.
    pub(in crate::run) is_gone: bool,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { interface, .. } => write!(f, "open {interface}"),
            Self::Close(_) => write!(f, "close a port"),
            Self::OpenPuntLink { .. } => write!(f, "open the punt link"),
            Self::Find { interface, .. } => write!(f, "find {interface}"),
            Self::BringUp { interface, .. } => write!(f, "switch on {interface}"),
            Self::BringDown { interface } => write!(f, "switch off {interface}"),
            Self::ReadAddresses => write!(f, "read the addresses"),
            Self::SetUplinkFilter(_) => write!(f, "set the uplink's filter"),
            Self::ReleaseUplink => write!(f, "release the uplink"),
            Self::OffloadHost { .. } => write!(f, "offload the node's own packets"),
            Self::ReleaseHostPort { interface } => write!(f, "release {interface}"),
        }
    }
}
