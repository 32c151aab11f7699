//! The control side's fuzz targets on `tests/corpus/`, and on the manifests of `pcap-fixtures/` with
//! bytes changed.
//!
//! `testing/fuzz/` runs the same targets under a coverage-guided fuzzer.

mod manifests;
mod watch;

use std::fs;
use std::path::Path;

use fastrand::Rng;
use testkit::corpus;

#[test]
fn corpus_and_spoiled_manifests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    corpus::replay(root.join("tests/corpus/manifests"), manifests::check);
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

#[test]
fn corpus_and_spoiled_watch_streams() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = corpus::files(root.join("tests/corpus/watch"));
    assert!(paths.len() >= 4, "{paths:?}");
    let mut rng = Rng::with_seed(0x5eed);
    for path in paths {
        let seed = fs::read(path).unwrap();
        watch::check(&seed);
        for _ in 0..200 {
            // The first byte chooses the kind, and protobuf.
            let is_text = seed[0] < 0x80;
            let spoil = if is_text { corpus::spoil_text } else { corpus::spoil_bytes };
            let spoiled = spoil(&mut rng, &seed[1..]);
            watch::check(&[&seed[..1], &spoiled].concat());
        }
    }
}
