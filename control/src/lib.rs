//! From Kubernetes objects to compiled policy tables.
//!
//! ```text
//! source → cache → processor → configurator → renderer cache → ACL renderer → publish
//! ```

pub mod api_server;
mod cache;
mod configurator;
mod control;
pub mod explain;
mod fault;
pub mod manifests;
mod membership;
pub mod model;
pub mod objects;
mod peers;
mod render;
mod session_rules;
pub mod state;
mod tables;
mod view;

pub use control::{Control, Figures, Scope};
pub use fault::{Fault, FieldFault};
pub use objects::{Kind, Object, ObjectRef};
pub use view::{ClusterNode, PodGate, PodKey, PodView, View};
