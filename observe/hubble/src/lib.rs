//! The Hubble Observer API over the switch's verdicts: `hubble` and other clients of
//! `observer.Observer` work against a node.
//!
//! ```text
//! EventBroker ─ events that match ─▶ thread of a call ─ flows ─▶ HTTP/2 ─▶ client
//! ```
//!
//! - [`messages`]: the messages, generated from `proto/`,
//! - [`flow`], [`reason`]: a verdict as a flow,
//! - [`json`]: flows in the JSON form of protobuf,
//! - [`filter`]: which flows a client wants,
//! - `connection`, `grpc`: gRPC over the project's own HTTP/2,
//! - [`service`]: the methods; `peers`: where other nodes answer,
//! - [`server`]: sockets, TLS, and which clients are let in.
//!
//! gRPC needs little here, messages in one direction with a length before each; tonic would bring a dozen further
//! crates for the rest, and refuses what clients of the C core send to a unix socket.

mod connection;
pub mod filter;
pub mod flow;
mod grpc;
pub mod json;
pub mod messages;
mod peers;
pub mod reason;
pub mod server;
pub mod service;

pub use server::{Endpoint, Server};
pub use service::Observer;
