//! Any bytes as a file of session rules.

#![no_main]

#[path = "../../../konnectivity/tests/fuzz/rules.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
