//! HTTP/2 (RFC 9113) and HPACK (RFC 7541), as much as gRPC needs, for both roles.
//!
//! ```text
//!                 ┌──────────────── drive: owns the socket ───────────────┐
//!   socket ──────▶│ Receiver: frames, header blocks, order ──▶ Handler    │
//!          ◀──────│ Link::fill ◀── queues of the streams, in turn         │
//!                 └────────────────────────▲──────────────────────────────┘
//!                    any thread: Link::send, release, reset, finish
//! ```
//!
//! The established crates do not serve, for two reasons: kube-apiserver puts a percent-encoded path
//! into `:authority`, which they refuse, and a proxy decides itself when a window opens. Received
//! bytes go to the [`Handler`] as they arrive; an idle connection holds no buffer.
//!
//! | file | part |
//! |---|---|
//! | `receive/`, `field.rs`, `limits.rs` | frames of the peer: their order, their headers, how many a second |
//! | `link/` | streams, windows and queues |
//! | `drive.rs`, `driven.rs` | the task of a connection; state that wakes it |
//! | `frame.rs`, `hpack/` | encoding |
//!
//! Locks: a [`Link`]'s is taken last and never while a [`Handler`] runs.

mod clock;
mod drive;
mod driven;
mod field;
mod frame;
mod handler;
mod hpack;
mod limits;
mod link;
mod receive;
mod role;

pub use clock::millis;
pub use drive::drive;
pub use driven::Driven;
pub use handler::Handler;
pub use hpack::{Field, encode};
pub use link::{Link, Settings};
pub use receive::Receiver;
pub use role::Role;

/// A fault of the peer that ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("http2: {text}")]
pub struct Fault {
    /// Error code (section 7).
    pub code: u32,
    /// The fault in words.
    pub text: String,
}

impl Fault {
    pub(crate) fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Error codes (section 7).
pub mod code {
    /// Graceful end.
    pub const NO_ERROR: u32 = 0;
    /// Unspecific fault.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// A window was exceeded.
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    /// A frame on a stream that the peer had ended.
    pub const STREAM_CLOSED: u32 = 5;
    /// A frame of the wrong length.
    pub const FRAME_SIZE_ERROR: u32 = 6;
    /// The stream was refused before anything was done.
    pub const REFUSED_STREAM: u32 = 7;
    /// A header block that cannot be decoded.
    pub const COMPRESSION_ERROR: u32 = 9;
    /// Too much of something.
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

#[cfg(test)]
mod tests;
