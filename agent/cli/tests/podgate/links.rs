//! Links between documents lead to files, and to headings that are there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use testkit::documents::repository;

/// The documents below a folder, without those of build folders.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
            documents(&path, found);
        } else if path.extension() == Some("md".as_ref()) {
            found.push(path);
        }
    }
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// The targets of links: what stands in the parentheses after a text in brackets.
fn targets(text: &str) -> Vec<&str> {
    let parts = text.split("](").skip(1);
    parts.filter_map(|part| Some(part.split_once(')')?.0)).collect()
}

/// The anchors of headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    let anchor = |heading: &str| -> String {
        let lower = heading.trim().to_lowercase();
        let kept = lower.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        kept.map(|it| if it == ' ' { '-' } else { it }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (mut pages, mut failures, mut count) = (Vec::new(), String::new(), 0);
    documents(&repository(), &mut pages);
    for page in pages {
        let text = prose(&std::fs::read_to_string(&page).expect("text"));
        for target in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            let is_there = match (path.exists(), anchor) {
                (false, _) => false,
                (true, "") => true,
                (true, anchor) => {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    anchors(&prose(&text)).contains(anchor)
                }
            };
            if !is_there {
                // Writing to a string does not fail.
                let _ = writeln!(failures, "{}: {target}", page.display());
            }
        }
    }
    assert!(failures.is_empty(), "broken links:\n{failures}");
    assert!(count >= 100, "{count} links");
}

#[test]
fn a_broken_link_is_found() {
    let text = "See [this](a.md#b-c) and [that](x.md).\n```\n[no](link)\n```\n";
    assert_eq!(targets(&prose(text)), ["a.md#b-c", "x.md"]);
    assert!(anchors("## B, `C`\n").contains("b-c"));
    assert!(!anchors("# Other\n").contains("b-c"));
}
