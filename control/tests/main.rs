//! Tests of the policy pipeline and of its sources, as one program.

mod access;
mod admin_policies;
mod aggregate;
mod api_server;
mod combining;
mod common;
mod domain_names;
mod double;
mod equivalence;
mod explain;
mod external_ips;
mod failures;
mod fuzz;
mod host_services;
mod hostile;
mod hostile_switches;
mod incremental;
mod lease;
mod node_addresses;
mod outages;
mod protobuf;
mod session_rules;
mod staged;
mod unreadable;
