//! Any bytes as a frame against the parsers and what rewrites packets.

#![no_main]

#[path = "../../../dataplane/tests/fuzz/packet.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::check(bytes));
