//! Any bytes as a file of manifests.

#![no_main]

#[path = "../../../control/tests/fuzz/manifests.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
