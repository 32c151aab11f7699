//! `scripts/cluster`: what is granted and installed is what is asked for.

use std::path::Path;

use control::Kind;
use serde_json::Value;

fn documents(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cluster").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    text.split("\n---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

fn group(kind: Kind) -> &'static str {
    kind.api_version().split_once('/').map_or("", |(group, _)| group)
}

#[test]
fn every_kind_may_be_listed_and_watched_and_statuses_written() {
    let documents = documents("rbac.yaml");
    let role = documents.iter().find(|it| it["kind"] == "ClusterRole").unwrap();
    let grants = |group: &str, resource: &str, verb: &str| {
        let has = |rule: &Value, field: &str, wanted: &str| {
            rule[field].as_array().unwrap().iter().any(|it| it == wanted)
        };
        role["rules"].as_array().unwrap().iter().any(|rule| {
            has(rule, "apiGroups", group)
                && has(rule, "resources", resource)
                && has(rule, "verbs", verb)
        })
    };
    for kind in Kind::ALL {
        for verb in ["list", "watch"] {
            assert!(grants(group(kind), kind.plural(), verb), "{verb} {}", kind.name());
        }
        let status = format!("{}/status", kind.plural());
        assert_eq!(grants(group(kind), &status, "patch"), kind.may_be_absent(), "{}", kind.name());
    }
}

#[test]
fn every_kind_that_may_be_absent_can_be_installed() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.may_be_absent()) {
        let file = format!("{}.yaml", kind.name().to_lowercase());
        let definition = documents(&file).remove(0);
        let spec = &definition["spec"];
        assert_eq!(definition["kind"], "CustomResourceDefinition", "{file}");
        assert_eq!(definition["metadata"]["name"], format!("{}.{}", kind.plural(), group(kind)));
        assert_eq!(spec["group"], group(kind));
        assert_eq!(spec["names"]["kind"], kind.name());
        assert_eq!(spec["names"]["plural"], kind.plural());
        assert_eq!(spec["scope"], "Cluster");
        let version = &spec["versions"][0];
        assert_eq!(
            format!("{}/{}", group(kind), version["name"].as_str().unwrap()),
            kind.api_version()
        );
        assert!(version["subresources"]["status"].is_object(), "{file}");
    }
}
