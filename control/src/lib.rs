//! From Kubernetes objects to compiled policy tables.
//!
//! ```text
//! source → cache → processor → configurator → renderer cache → ACL renderer → publish
//! ```

mod view;

pub use view::{ClusterNode, PodGate, PodKey, PodView, View};
