//! Tests of the local API, as one program.

mod client;
mod listener;
mod versions;
