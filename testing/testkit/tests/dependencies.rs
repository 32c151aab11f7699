//! Dependencies keep to `deny.toml`: licences, versions, sources.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// The registry that every dependency comes from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The packages that are built for Linux: name, version, licence, source.
fn packages() -> Vec<[String; 4]> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let built: BTreeSet<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["id"].as_str())
        .collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let packages = packages.filter(|it| it["id"].as_str().is_some_and(|id| built.contains(id)));
    let field = |package: &Value, name: &str| package[name].as_str().unwrap_or_default().to_owned();
    packages
        .map(|it| ["name", "version", "license", "source"].map(|name| field(it, name)))
        .collect()
}

/// The strings of a list in `deny.toml`: every text in quotes up to the closing bracket.
fn list(name: &str) -> Vec<&'static str> {
    let (_, rest) =
        include_str!("../../../deny.toml").split_once(&format!("\n{name} = [")).unwrap();
    let (list, _) = rest.split_once("\n]").unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

/// Returns whether a licence expression (SPDX 2, or with the `/` of before) can be met by `allowed` ones.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = &words[..];
    any(&mut rest, allowed) && rest.is_empty()
}

fn any(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = all(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[&str]) -> bool {
    match **words {
        ["(", ref rest @ ..] => {
            *words = rest;
            let met = any(words, allowed);
            *words = words.strip_prefix(&[")"]).expect("a closing parenthesis");
            met
        }
        [licence, "WITH", exception, ref rest @ ..] => {
            *words = rest;
            allowed.contains(&format!("{licence} WITH {exception}").as_str())
        }
        [licence, ref rest @ ..] => {
            *words = rest;
            allowed.contains(&licence)
        }
        [] => false,
    }
}

#[test]
fn licences_are_allowed_ones() {
    let allowed = list("allow");
    let others: Vec<_> =
        packages().into_iter().filter(|[_, _, licence, _]| !is_met(licence, &allowed)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(is_met("(MIT OR X) AND ISC", &allowed) && is_met("X/MIT", &allowed));
    assert!(!is_met("MIT AND X", &allowed) && !is_met("GPL-3.0 WITH LLVM-exception", &allowed));
    assert!(!is_met("", &allowed));
}

#[test]
fn nothing_is_built_in_two_versions_but_what_is_listed() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for [name, version, ..] in packages() {
        versions.entry(name).or_default().insert(version);
    }
    // Each entry is `"CRATE@VERSION"`, followed by its reason.
    for skipped in list("skip").into_iter().step_by(2) {
        let (name, version) = skipped.split_once('@').unwrap();
        let of_name = versions.get_mut(name).unwrap();
        let before = of_name.len();
        of_name.retain(|it| !it.starts_with(&format!("{version}.")));
        assert!(before > 1 && of_name.len() == before - 1, "{skipped} need not be listed");
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "{versions:?}");
}

#[test]
fn dependencies_come_from_the_registry() {
    let others =
        packages().into_iter().filter(|[.., source]| !source.is_empty() && source != REGISTRY);
    assert_eq!(others.collect::<Vec<_>>(), Vec::<[String; 4]>::new());
}
