//! Verdicts evaluated once per connection, by an L4 stack or proxy.
//!
//! Where a host stack opens and accepts connections itself, one evaluation per connection is
//! enough. There are two scopes:
//!
//! | scope | asked | local end | remote end |
//! |---|---|---|---|
//! | [`Scope::Local`] | when a pod connects | the pod, any port | destination and its port |
//! | [`Scope::Global`] | when a connection arrives | destination and its port | source, any port |
//!
//! The most specific of all matching rules decides: longest remote prefix, then longest local
//! prefix, then fewest remote ports, then fewest local ports. [`linear`] is the reference
//! implementation; [`Table`] gives the same answers faster.
//!
//! Rules name the addresses of pods. [`Services`] says where the node translates a connection to a
//! service, so that its endpoints are asked about, too.
//!
//! A stack is programmed by [`changes`], the difference between its dumped and the wanted rules,
//! deletions first. Rules have unique tags.

mod change;
pub mod linear;
mod rule;
mod service;
mod table;

pub use change::{Change, Error, Installed, Tags, changes};
pub use rule::{Action, Connection, End, Ports, Rule, Scope, Transport};
pub use service::{Service, Services};
pub use table::Table;
