//! Inputs for fuzz targets in an ordinary test run: a corpus replayed, and seeds with bytes changed.

use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;

/// Files below `folder`, in order, those of its folders included.
///
/// # Panics
/// If the folder cannot be read.
pub fn files(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let folder = folder.as_ref();
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.expect("a folder is listed to its end").path();
        match path.is_dir() {
            true => found.extend(files(path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Hands each file below `folder` to `check`.
///
/// # Panics
/// If there is none.
pub fn replay(folder: impl AsRef<Path>, check: impl Fn(&[u8])) {
    let paths = files(&folder);
    assert!(!paths.is_empty(), "nothing in {}", folder.as_ref().display());
    for path in paths {
        check(&fs::read(path).expect("a file of the corpus is readable"));
    }
}

/// Text with one to four changes: a bit flipped, a byte replaced by punctuation, removed, or a piece
/// repeated elsewhere.
pub fn spoil_text(rng: &mut Rng, text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for _ in 0..rng.usize(1..=4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(..bytes.len());
        match rng.u8(..4) {
            0 => bytes[at] = *rng.choice(b"{}[]:-,#&*!|>'\"%@`\n\t 0").expect("not empty"),
            1 => bytes[at] ^= 1 << rng.u8(..8),
            2 => drop(bytes.remove(at)),
            _ => {
                let end = (at + rng.usize(..60)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = rng.usize(..bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

/// Binary data with up to four bytes changed, and cut short once in eight times.
pub fn spoil_bytes(rng: &mut Rng, data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for _ in 0..rng.usize(..5) {
        let at = rng.usize(..bytes.len());
        bytes[at] = match rng.u8(..3) {
            0 => *rng.choice(&[0, 1, 0x7f, 0x80, 0xff]).expect("not empty"),
            1 => bytes[at] ^ 1 << rng.u8(..8),
            _ => rng.u8(..),
        };
    }
    if rng.u8(..8) == 0 {
        bytes.truncate(rng.usize(..=bytes.len()));
    }
    bytes
}
