//! The control side's fuzz target on `tests/corpus/`, and on the manifests of `pcap-fixtures/` with
//! bytes changed.
//!
//! `fuzz/` runs the same target under a coverage-guided fuzzer.

mod manifests;

use std::fs;
use std::path::Path;

use fastrand::Rng;
use testkit::corpus;

#[test]
fn corpus_and_spoiled_manifests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    corpus::replay(root.join("tests/corpus"), manifests::check);
    let mut seeds = corpus::files(root.join("../pcap-fixtures"));
    seeds.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    assert!(seeds.len() > 20, "{seeds:?}");
    let mut rng = Rng::with_seed(0x5eed);
    for path in seeds {
        let seed = fs::read(path).unwrap();
        for _ in 0..8 {
            manifests::check(&corpus::spoil_text(&mut rng, &seed));
        }
    }
    manifests::clean_up();
}
