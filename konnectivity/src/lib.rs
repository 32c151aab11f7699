//! The API server network proxy.
//!
//! ```text
//!   kube-apiserver ──gRPC or CONNECT──▶ server ◀══one long stream══ agent ──TCP──▶ target
//! ```
//!
//! The agent, in the node network, opens the stream; the API server's connections to that network
//! travel over it. Both roles speak the protocol of kubernetes-sigs/apiserver-network-proxy and can
//! stand on either side of its own.
//!
//! - [`packet`]: the messages,
//! - `grpc`, over the crate `http2`: their transport,
//! - [`server`]: frontends for the API server, agents to choose from,
//! - [`agent`]: connections to servers and to targets,
//! - [`client`]: the API server's side, for tests and benchmarks,
//! - [`commands`]: the command lines of both roles,
//! - [`rules`], [`audit`], [`kubernetes`]: parts that both roles use.

mod accept;
pub mod agent;
pub mod audit;
pub mod client;
mod clock;
pub mod commands;
pub mod egress;
mod file;
mod grpc;
mod identifiers;
pub mod kubernetes;
mod memory;
mod metrics;
pub mod packet;
mod raw;
pub mod rules;
pub mod server;
pub mod survey;
mod tls;
mod window;

pub use identifiers::Identifiers;
pub use tls::{TlsFiles, TlsPolicy, cipher_names};
