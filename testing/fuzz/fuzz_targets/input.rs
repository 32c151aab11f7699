//! Any bytes as configuration, the plugin's configuration, or a request to the running switch.

#![no_main]

#[path = "../../../agent/tests/fuzz/input.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
