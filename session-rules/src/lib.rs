//! Verdicts taken once per connection, by an L4 stack or proxy.
//!
//! Where a host stack opens and accepts connections itself, no packet needs to be evaluated: one
//! question per connection is enough. Two scopes are asked, at different moments:
//!
//! | scope | asked | local end | remote end |
//! |---|---|---|---|
//! | [`Scope::Local`] | when a pod connects | the pod, any port | destination and its port |
//! | [`Scope::Global`] | when a connection arrives | destination and its port | source, any port |
//!
//! Of all rules that match, the most specific decides: longest remote prefix, then longest
//! local prefix, then fewest remote ports, then fewest local ports. [`linear`] is that
//! sentence as code; [`Table`] gives the same answers faster.
//!
//! A stack is programmed by [`changes`]: what it dumps is compared with what is wanted, and
//! the difference is applied, deletions first. Rules are distinguished by unique tags.

mod change;
pub mod linear;
mod rule;
mod table;

pub use change::{Change, Error, Installed, Tags, changes};
pub use rule::{Action, Connection, End, Ports, Rule, Scope, Transport};
pub use table::Table;
