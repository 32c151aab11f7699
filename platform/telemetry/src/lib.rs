//! Observability of a process: `/healthz`, `/readyz` and `/metrics` over HTTP ([`Server`]), pages for remote clients
//! over HTTPS ([`Guard`]), and the log ([`log`]).
//!
//! Metrics are the [`prometheus`] crate's. The newer `prometheus-client` cannot write the
//! proxy's metrics as its original names them: it appends `_total` to each counter's name and a
//! full stop to each HELP text.

mod background;
mod body;
mod connections;
pub mod grpc;
pub mod log;
mod metrics;
mod page;
pub mod pem;
mod process;
mod reload;
mod secure;
mod server;

pub use background::Background;
pub use connections::{Admitted, Connections, accepted};
pub use metrics::{Scrape, Text};
pub use page::{Feed, Lines, Page, Pages, Post};
pub use process::process_metrics;
pub use prometheus;
pub use reload::Reloaded;
pub use secure::{
    Access, Answer, Authorize, Credential, FORWARDED, Identity, TlsOptions, credential,
};
pub use server::{Guard, Server};
