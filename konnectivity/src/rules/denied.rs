//! Reasons of denied dials. Clients see the text.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use session_rules::Rule;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// A rule denies the target.
    #[error("dial tcp {0}: denied by session rule {1}")]
    Rule(SocketAddr, Rule),
    /// The rules of the switch at this socket have not arrived.
    #[error("dial tcp {0}: denied: {1}")]
    Unknown(SocketAddr, Unknown),
    /// The service at the target does not admit this source.
    #[error("dial tcp {0}: denied: {1} is not in the loadBalancerSourceRanges of the service")]
    Source(SocketAddr, IpAddr),
    /// The endpoint of a service is the address of another one, and a connection is translated once.
    #[error("dial tcp {0}: denied: the endpoint is a service")]
    Service(SocketAddr),
}

/// The rules of the switch at this socket have not arrived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session rules of the switch at {} are not known", .0.display())]
pub(crate) struct Unknown(pub(super) PathBuf);
