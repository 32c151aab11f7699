//! Any bytes as the answer to a watch of the API server.

#![no_main]

#[path = "../../../control/tests/fuzz/watch.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
