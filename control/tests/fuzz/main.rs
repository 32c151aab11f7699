//! The control side's fuzz target, and what it has been fed so far.
//!
//! `fuzz/` feeds it with a coverage-guided fuzzer; here it replays `tests/corpus/`, and the
//! manifests of `pcap-fixtures/` with bytes changed.

mod manifests;

use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn corpus_and_spoiled_manifests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut corpus, mut seeds) = (Vec::new(), Vec::new());
    files(&root.join("tests/corpus"), &mut corpus);
    files(&root.join("../pcap-fixtures"), &mut seeds);
    seeds.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    seeds.sort();
    assert!(!corpus.is_empty() && seeds.len() > 20, "{corpus:?} {seeds:?}");
    for path in corpus {
        manifests::check(&fs::read(path).unwrap());
    }
    let mut state = 0x5eed_u64;
    let mut below = |count: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % count.max(1)
    };
    for path in seeds {
        let seed = fs::read(path).unwrap();
        for _ in 0..8 {
            let mut bytes = seed.clone();
            for _ in 0..1 + below(4) {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes[at] = b"{}[]:-,#&*!|>'\"%@`\n\t 0"[below(22)],
                    1 => bytes[at] ^= 1 << below(8),
                    2 => drop(bytes.remove(at)),
                    _ => {
                        let end = (at + below(60)).min(bytes.len());
                        let piece = bytes[at..end].to_vec();
                        let to = below(bytes.len());
                        bytes.splice(to..to, piece);
                    }
                }
            }
            manifests::check(&bytes);
        }
    }
    manifests::clean_up();
}
