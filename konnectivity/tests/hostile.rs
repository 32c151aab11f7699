//! Bytes that were of interest before, and those next to them.

#[path = "fuzz/rules.rs"]
mod rules;
#[path = "fuzz/target.rs"]
mod target;

/// Replays a corpus, each prefix of its files, and each file with one bit changed.
fn replay(corpus: &str, least: usize, check: impl Fn(&[u8])) {
    let folder = format!("{}/tests/corpus/{corpus}", env!("CARGO_MANIFEST_DIR"));
    let files = testkit::corpus::files(&folder);
    assert!(files.len() >= least, "{folder} has {} files", files.len());
    for path in files {
        let bytes = std::fs::read(path).unwrap();
        check(&bytes);
        for at in 0..bytes.len() {
            check(&bytes[..at]);
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                check(&changed);
            }
        }
    }
}

#[test]
fn the_corpus_and_its_neighbours() {
    replay("server", 4, target::check);
}

#[test]
fn rule_files_and_their_neighbours() {
    replay("rules", 2, rules::check);
}
