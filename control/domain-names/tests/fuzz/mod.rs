//! The fuzz target on `tests/corpus/`, and on its messages with bytes changed.
//!
//! `testing/fuzz/` runs the same target under a coverage-guided fuzzer.

mod answers;

use std::fs;
use std::path::Path;

use fastrand::Rng;
use testkit::corpus;

#[test]
fn corpus_and_spoiled_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/answers");
    let paths = corpus::files(folder);
    assert!(paths.len() >= 3, "{paths:?}");
    let mut rng = Rng::with_seed(0x5eed);
    for path in paths {
        let seed = fs::read(path).unwrap();
        answers::check(&seed);
        for _ in 0..2000 {
            answers::check(&corpus::spoil_bytes(&mut rng, &seed));
        }
    }
}
