//! From Kubernetes objects to compiled policy tables.
//!
//! ```text
//!  api_server ─┐
//!              ├─► objects ─► cache ─► processor ─► configurator ─► renderers ─► publish
//!  manifests ──┘   (parse)             affected    basic rules      tables,      one View,
//!                                      pods                         session      swapped
//!                                                                   rules        whole
//! ```
//!
//! | stage | where |
//! |---|---|
//! | source | [`api_server`], [`manifests`]; [`state`] for a start without either, [`history`] for questions about the past |
//! | parsing, which is validating | [`objects`] to [`model`] |
//! | cache | `cache/mod.rs` |
//! | processor: the pods that a change affects, before and after it | `control.rs`, `membership/` |
//! | configurator: policies to basic rules, tiers, port names | `configurator.rs` |
//! | renderer cache: equal rules share a table | `tables.rs` |
//! | renderers | `render.rs`, `session_rules.rs` |
//! | services and their endpoints | `services.rs`, `external_ips.rs` |
//! | publish | `publish.rs`, [`View`] |
//! | policies and rules in words | [`explain`] |
//!
//! A pod has two tables: one for ingress, one for egress. A connection opens if the initiator's
//! egress table and the responder's ingress table both permit it. That equals combining every
//! sender's rules into every receiver's table, but a change at one pod leaves the tables of all
//! others alone. Tables name peers by *peer set*, so a pod that enters or leaves known sets changes
//! only the address map.

mod addresses;
pub mod api_server;
mod blocks;
mod cache;
mod compact;
mod configurator;
mod control;
pub mod explain;
mod external_ips;
mod failsafe;
mod fault;
mod file;
pub mod history;
mod intervals;
pub mod manifests;
mod membership;
pub mod model;
pub mod objects;
mod peers;
mod publish;
mod render;
mod services;
mod session_rules;
pub mod state;
mod tables;
mod union;
mod view;

pub use control::{
    Control, Figures, PodChange, PolicyChange, PolicyEvent, ResolvedRule, Scope, Uids,
};
pub use external_ips::RefusedIp;
pub use failsafe::Failsafe;
pub use fault::{Fault, FieldFault, Position};
pub use file::{Durability, open_regular, read_bounded, read_regular, replace_file};
pub use membership::{Members, PeerSets};
pub use model::{Kind, Object, ObjectRef, PodKey};
pub use services::{ServiceEndpoint, ServiceView};
pub use session_rules::SessionRules;
pub use view::{ClusterNode, HostAcl, HostFirewall, HostPod, HostSockets, PodAcl, PodView, View};
