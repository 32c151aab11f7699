//! The files in the repository are those that the scenarios make.

use std::collections::BTreeSet;
use std::fs;

use dataplane::capture::Reader;
use pcap_fixtures::{Fixture, all_files, all_scenarios, root};

#[test]
fn files_are_as_made_anew() {
    let files = all_files().expect("memory does not fail");
    let stale: Vec<_> = files
        .iter()
        .filter(|file| fs::read(root().join(&file.path)).ok().as_ref() != Some(&file.bytes))
        .map(|file| file.path.display().to_string())
        .collect();
    assert!(stale.is_empty(), "run `cargo run -p pcap-fixtures --bin make-captures`: {stale:?}");
}

#[test]
fn every_scenario_has_its_folder_and_manifests() {
    let names: BTreeSet<_> = all_scenarios().iter().map(|s| s.name.to_string()).collect();
    assert_eq!(names.len(), all_scenarios().len(), "names are used once");
    let fixtures = Fixture::all().expect("folders are complete");
    let folders: BTreeSet<_> = fixtures.iter().map(|fixture| fixture.name.clone()).collect();
    assert_eq!(folders, names, "a folder for each scenario and none beside them");
    for fixture in fixtures {
        assert!(fixture.manifests.is_dir(), "{} has no manifests", fixture.name);
    }
}

#[test]
fn captures_are_read_back_whole() {
    let scenarios = all_scenarios();
    for fixture in Fixture::all().expect("folders are complete") {
        let scenario = scenarios.iter().find(|s| s.name == fixture.name).expect("a scenario");
        let records: Result<Vec<_>, _> =
            Reader::open(&fixture.capture).expect("a capture").collect();
        let records = records.expect("a whole capture");
        assert_eq!(records.len(), scenario.expected().len(), "{}", fixture.name);
        assert!(records.is_sorted_by_key(|record| record.time), "{}", fixture.name);
    }
}
