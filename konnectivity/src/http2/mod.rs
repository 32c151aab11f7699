//! HTTP/2 (RFC 9113), as much as gRPC needs, for both roles.
//!
//! ```text
//!                 ┌──────────────── drive: owns the socket ───────────────┐
//!   socket ──────▶│ Receiver: frames, header blocks, order ──▶ Handler    │
//!          ◀──────│ Link::fill ◀── queues of the streams, in turn         │
//!                 └────────────────────────▲──────────────────────────────┘
//!                        anybody: Link::send, release, reset, finish
//! ```
//!
//! Why not one that exists: kube-apiserver puts a percent-encoded path into `:authority`, which
//! the well-kept crates refuse, and a proxy wants to decide itself when a window opens. What
//! arrives is handed on as it comes; an idle connection holds no buffer at all.
//!
//! Locks: a [`Link`]'s is taken last and never while a [`Handler`] runs.

mod drive;
mod frame;
mod hpack;
mod link;
mod receive;

pub(crate) use drive::{Handler, drive};
pub(crate) use hpack::Field;
pub(crate) use hpack::encode;
pub(crate) use link::{Link, Windows};
pub(crate) use receive::{Receiver, Role};

/// A fault of the other side that ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("http2: {text}")]
pub(crate) struct Fault {
    /// Section 7.
    pub(crate) code: u32,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Error codes (section 7).
pub(crate) mod code {
    pub(crate) const NO_ERROR: u32 = 0;
    pub(crate) const PROTOCOL_ERROR: u32 = 1;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
    pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
    pub(crate) const REFUSED_STREAM: u32 = 7;
    pub(crate) const CANCEL: u32 = 8;
    pub(crate) const COMPRESSION_ERROR: u32 = 9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
    pub(crate) const INADEQUATE_SECURITY: u32 = 12;
}

#[cfg(test)]
mod tests;
