//! From Kubernetes objects to compiled policy tables.
//!
//! ```text
//! source → cache → processor → configurator → renderer cache → ACL renderer → publish
//! ```

mod cache;
mod configurator;
mod control;
mod fault;
pub mod manifests;
pub mod model;
pub mod objects;
mod peers;
mod view;

pub use control::{Control, Scope};
pub use fault::{Fault, FieldFault};
pub use objects::{Kind, Object, ObjectRef};
pub use view::{ClusterNode, PodGate, PodKey, PodView, View};
