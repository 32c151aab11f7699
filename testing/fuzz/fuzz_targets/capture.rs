//! Any bytes as a capture file.

#![no_main]

#[path = "../../../dataplane/tests/fuzz/capture.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
