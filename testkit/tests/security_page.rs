//! `docs/security.md` names a test for each promise; all of them exist.

use std::fs;
use std::path::Path;

/// Path below the root and text of every Rust file.
fn sources(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(root, &path, found);
            }
        } else if name.ends_with(".rs") {
            let below = path.strip_prefix(root).unwrap().display().to_string();
            found.push((below, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(root, root, &mut files);
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
