//! The agent's fuzz target on `tests/corpus/`, as it is and with bytes changed.
//!
//! `testing/fuzz/` runs the same target under a coverage-guided fuzzer.

mod input;

use fastrand::Rng;
use testkit::corpus;

#[test]
fn corpus() {
    let paths = corpus::files(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus"));
    assert!(paths.len() > 2, "{paths:?}");
    let mut rng = Rng::with_seed(0x5eed);
    for path in paths {
        let seed = std::fs::read(&path).unwrap();
        input::check(&seed);
        for _ in 0..200 {
            // The first byte chooses the parser.
            let spoiled = corpus::spoil_text(&mut rng, &seed[1..]);
            input::check(&[&seed[..1], &spoiled].concat());
        }
    }
    input::clean_up();
}
