//! Tests of the network proxy, as one program.

mod agents;
mod around;
mod common;
mod connect;
mod finding;
mod flow;
mod grpc;
mod high_availability;
mod hostile;
mod services;
mod session_rules;
mod unauthenticated;
