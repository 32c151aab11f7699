//! Errors of operations on the kernel's configuration.

use dataplane::port::af_xdp::AfXdpError;

use crate::run::error::StartError;

/// Why an operation on an interface or on the node's network failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel refused a request over netlink.
    #[error(transparent)]
    Netlink(#[from] linux_net::Error),
    /// The kernel refused a socket of AF_XDP or its program.
    #[error(transparent)]
    Port(#[from] AfXdpError),
    /// The kernel refused a program of flow offload.
    #[error(transparent)]
    FlowOffload(#[from] flow_offload::Error),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] StartError),
    /// Any of these, with the operation that it ended.
    #[error("{what}: {cause}")]
    Operation {
        /// The operation, with its object: `switch on eth0`.
        what: String,
        /// The cause.
        #[source]
        cause: Box<Self>,
    },
    /// The state of the node or of the switch does not permit the operation.
    #[error("{0}")]
    State(String),
}

impl KernelError {
    /// Names the operation that failed.
    pub(in crate::run) fn during(self, what: impl Into<String>) -> Self {
        Self::Operation { what: what.into(), cause: Box::new(self) }
    }
}

impl From<String> for KernelError {
    fn from(text: String) -> Self {
        Self::State(text)
    }
}

impl From<&str> for KernelError {
    fn from(text: &str) -> Self {
        Self::State(text.to_owned())
    }
}
