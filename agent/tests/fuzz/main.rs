//! The agent's fuzz target, and what it has been fed so far.
//!
//! `fuzz/` feeds it with a coverage-guided fuzzer; here it replays `tests/corpus/`, as it is and
//! with bytes changed.

mod input;

#[test]
fn corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 2, "{paths:?}");
    let mut state = 0x5eed_u64;
    let mut below = |count: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % count.max(1)
    };
    for path in paths {
        let seed = std::fs::read(&path).unwrap();
        input::check(&seed);
        for _ in 0..200 {
            let mut bytes = seed.clone();
            for _ in 0..1 + below(4) {
                let at = 1 + below(bytes.len() - 1);
                match below(3) {
                    0 => bytes[at] = b"{}[]:-,#&*!|>'\"%@`\n\t 0"[below(22)],
                    1 => bytes[at] ^= 1 << below(8),
                    _ => bytes.truncate(at + 1),
                }
            }
            input::check(&bytes);
        }
    }
    input::clean_up();
}
