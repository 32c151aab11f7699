//! Saved objects that an earlier version wrote, and files that are none.

use std::path::{Path, PathBuf};

use control::state::{ObjectSnapshot, checksum, load, save};
use control::{Control, Kind, Object, Scope};
use serde_json::Value;
use testkit::TempDir;

use crate::common::object;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/state").join(name)
}

/// Objects of every kind, with every field that is kept.
fn objects() -> Vec<Object> {
    let text = std::fs::read_to_string(corpus("objects.json")).unwrap();
    let values: Vec<Value> = serde_json::from_str(&text).unwrap();
    values.into_iter().map(object).collect()
}

fn control(objects: Vec<Object>) -> Control {
    let mut control = Control::new(Scope::All);
    control.resync(objects);
    control
}

/// The files are named by the commits whose `save` wrote these objects.
#[test]
fn what_an_earlier_version_saved_is_read_whole() {
    let known = control(objects());
    assert_eq!(known.counts().len(), Kind::ALL.len(), "{:?}", known.counts());
    for version in ["d1e75823"] {
        let saved = load(&corpus(version)).unwrap();
        for object in known.objects() {
            assert!(saved.contains(&object), "{version}: {object:#?}");
        }
        assert!(control(saved).objects().eq(known.objects()), "{version}");
    }
}

/// A file with these lines, whole by its number of objects and its checksum.
fn whole(lines: &[&str]) -> String {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let sum = checksum(text.trim_end_matches('\n').as_bytes());
    format!("podgate-state 1\n{text}{} {sum:016x}\n", lines.len())
}

/// A part of a cluster would be open where the rest has policies.
#[test]
fn what_no_version_has_saved_is_refused_with_its_place() {
    let folder = TempDir::new("state-unknown");
    let path = folder.path().join("cluster-state");
    save(&ObjectSnapshot::of(&control(objects())), &path).unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let objects = &lines[1..lines.len() - 1];
    std::fs::write(&path, whole(objects)).unwrap();
    assert_eq!(load(&path).unwrap().len(), objects.len());
    let at = objects.iter().position(|it| it.contains(r#""NetworkPolicy""#)).unwrap();
    let line = format!("line {}: ", at + 2);
    let with = |replaced: &str| {
        let mut objects = objects.to_vec();
        objects[at] = replaced;
        whole(&objects)
    };
    let policy = objects[at];
    for (text, says) in [
        (good.replace("podgate-state 1", "podgate-state 2"), r#"begin with "podgate-state 1""#),
        (String::new(), r#"begin with "podgate-state 1""#),
        ("\0\0\0\0".to_owned(), r#"begin with "podgate-state 1""#),
        (with(&policy.replace("NetworkPolicy", "PacketPolicy")), line.as_str()),
        (with(&policy.replace("\"ingress\"", "\"inbound\"")), line.as_str()),
        (with(r#"{"NetworkPolicy":null}"#), line.as_str()),
        (with("{"), line.as_str()),
        (with("[]"), "checksum"),
        (good.replacen("web", "wob", 1), "checksum"),
        (lines[..lines.len() - 1].join("\n"), "cut off"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        let error = error.to_string();
        assert!(error.contains("cluster-state") && error.contains(says), "{says}: {error}");
    }
}
