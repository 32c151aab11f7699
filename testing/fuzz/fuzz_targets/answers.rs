//! Any bytes as the answers of a resolver.

#![no_main]

#[path = "../../../control/domain-names/tests/fuzz/answers.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
