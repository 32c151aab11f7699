//! Bytes that were of interest before, and those next to them.

#[path = "fuzz/target.rs"]
mod target;

#[test]
fn the_corpus_and_its_neighbours() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        files += 1;
        target::check(&bytes);
        for at in 0..bytes.len() {
            target::check(&bytes[..at]);
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                target::check(&changed);
            }
        }
    }
    assert!(files >= 4, "{folder} has {files} files");
}
