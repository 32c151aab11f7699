//! Documents name files and tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// All files below `folder`, without build products and hidden ones.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, found);
            }
        } else {
            found.push(path.strip_prefix(root()).unwrap().to_owned());
        }
    }
}

/// Path below the root and text of every Rust file.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(root(), &mut found);
    found.retain(|path| path.extension().is_some_and(|it| it == "rs"));
    let read = |path: &PathBuf| fs::read_to_string(root().join(path)).unwrap();
    found.iter().map(|path| (path.display().to_string(), read(path))).collect()
}

/// The source file or script that a piece of inline code names.
fn named_file(code: &str) -> Option<&str> {
    let path = code.split([' ', ':']).next()?;
    let is_plain = path.chars().all(|it| it.is_ascii_alphanumeric() || "/._-".contains(it));
    let is_source = [".rs", ".c", ".h"].iter().any(|ending| path.ends_with(ending));
    let is_file = is_plain && (is_source || path.starts_with("scripts/"));
    // `name.rs` stands for any module.
    (is_file && !path.starts_with("name")).then_some(path)
}

#[test]
fn every_file_that_documents_name_exists() {
    let mut all = Vec::new();
    files(root(), &mut all);
    let is_there =
        |path: &str| all.iter().any(|file| file.ends_with(path)) || root().join(path).exists();
    let (mut missing, mut named) = (Vec::new(), 0);
    for document in all.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(root().join(document)).unwrap();
        // Every other part is a block of code.
        for prose in text.split("```").step_by(2) {
            for path in prose.split('`').skip(1).step_by(2).filter_map(named_file) {
                named += 1;
                if !is_there(path) {
                    missing.push(format!("{}: {path}", document.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(named > 200, "{named} files are named");
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    let root = root();
    let files = sources();
    let is_in = |path: &str, text: &str| {
        let is_meant = |below: &str| below == path || below.ends_with(&format!("/{path}"));
        files.iter().any(|(below, content)| is_meant(below) && content.contains(text))
    };
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let Some(cell) = row.trim_end_matches('|').rsplit('|').next() else { continue };
        let mut file = "";
        for word in cell.split('`').skip(1).step_by(2) {
            let is_there = match word.split_once(": ") {
                Some((path, test)) => {
                    file = path;
                    is_in(path, &format!("fn {test}("))
                }
                // A further test of the same file, a whole file, a fixture, a folder, a script.
                None => {
                    is_in(file, &format!("fn {word}("))
                        || is_in(word, "#[test]")
                        || is_in(word, "#[tokio::test")
                        || root.join("pcap-fixtures").join(word).exists()
                        || root.join(word).exists()
                }
            };
            assert!(is_there, "`{word}` is not there, in\n{row}");
            named += 1;
        }
    }
    assert!(named > 60, "{named} tests are named");
}
