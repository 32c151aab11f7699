//! One fuzz target, and what it has been fed so far.
//!
//! [`check`] takes any bytes for a rule set, peer sets, changes and keys, and holds every
//! compiled form to its definition. `testing/fuzz/` feeds it with a coverage-guided fuzzer; here it
//! replays `tests/corpus/` and some hundred pseudo-random inputs in every test run.

mod target;

use fastrand::Rng;
use target::check;

#[test]
fn corpus() {
    testkit::corpus::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus"), check);
}

#[test]
fn random_inputs() {
    let mut rng = Rng::with_seed(0x5eed);
    for length in 0..200_usize {
        let mut bytes = vec![0; length * 3 % 500];
        rng.fill(&mut bytes);
        check(&bytes);
    }
}
