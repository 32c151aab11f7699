//! Any bytes as frames through the whole graph.

#![no_main]

#[path = "../../../dataplane/tests/fuzz/graph.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
