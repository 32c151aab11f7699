//! Any bytes against what a server of the API server network proxy reads.

#![no_main]

#[path = "../../../konnectivity/tests/fuzz/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
