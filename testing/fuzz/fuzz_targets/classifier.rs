//! Any bytes against the classifier and its definitions.

#![no_main]

#[path = "../../../acl/tests/fuzz/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
