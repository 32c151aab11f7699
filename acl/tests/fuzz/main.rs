//! One fuzz target, and what it has been fed so far.
//!
//! [`check`] takes any bytes for a rule set, peer sets, changes and keys, and holds every
//! compiled form to its definition. `fuzz/` feeds it with a coverage-guided fuzzer; here it
//! replays `tests/corpus/` and some hundred pseudo-random inputs in every test run.

mod target;

use target::check;

#[test]
fn corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        check(&std::fs::read(&path).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "nothing in {folder}");
}

#[test]
fn random_inputs() {
    let mut state = 0x5eed_u64;
    for length in 0..200_usize {
        let bytes: Vec<u8> = (0..length * 3 % 500)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        check(&bytes);
    }
}
