//! The values of the chart and the configuration that they make.

use std::collections::BTreeSet;

use agent::config::{Config, Options, read_file};
use deploy::{folder, values};
use serde_json::{Value, json};

use crate::{kustomization, object};

fn schema() -> Value {
    let path = folder().join("chart/podgate/values.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn validate(values: &Value) -> Result<(), String> {
    deploy::schema::validate(&schema(), values)
}

#[test]
fn the_schema_takes_the_default_values_and_refuses_mistakes() {
    validate(&values()).unwrap();
    type Spoil = fn(&mut Value);
    let mistakes: [(&str, Spoil); 11] = [
        ("a value that does not exist", |values| values["imagge"] = json!({})),
        ("a policy that does not exist", |values| values["image"]["pullPolicy"] = json!("Never!")),
        ("an option that does not exist", |values| values["config"]["dns-ttl"] = json!("1m")),
        ("a time without a unit", |values| values["config"]["dns-min-ttl"] = json!("60")),
        ("an enforcer that does not exist", |values| values["config"]["enforcer"] = json!("nft")),
        ("an option with capitals", |values| values["config"]["RxMode"] = json!("polling")),
        ("a secret that is no name", |values| values["hubble"]["tlsSecret"] = json!("A/b")),
        ("a port that is none", |values| values["apiServer"]["port"] = json!(0)),
        ("a folder that is relative", |values| values["cni"]["pluginFolder"] = json!("bin")),
        ("a name with another ending", |values| {
            values["cni"]["configurationName"] = json!("a.json")
        }),
        ("bandwidth in the chain", |values| {
            values["cni"]["conflist"]["plugins"][1]["type"] = json!("bandwidth");
        }),
    ];
    for (what, spoil) in mistakes {
        let mut values = values();
        spoil(&mut values);
        assert!(validate(&values).is_err(), "{what}");
    }
}

#[test]
fn the_configuration_is_one_that_the_switch_takes() {
    let config = object(&kustomization("base"), "ConfigMap", "podgate");
    let config = config_of(config["data"]["config.yaml"].as_str().unwrap());
    assert_eq!(config.network.uplink.as_deref(), Some("auto"));
}

/// The configuration of a file with this text.
pub(crate) fn config_of(text: &str) -> Config {
    let folder = testkit::TempDir::new("deploy");
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let cores = BTreeSet::from([0]);
    Config::resolve(read_file(&path).unwrap(), "node-a", &cores).unwrap()
}

#[test]
fn the_schema_knows_every_option() {
    let config = Config::resolve(Options::default(), "node-a", &BTreeSet::new()).unwrap();
    let names: BTreeSet<&str> = config.describe().into_iter().map(|(name, _)| name).collect();
    let schema = schema();
    let known = schema["properties"]["config"]["properties"].as_object().unwrap();
    assert_eq!(known.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
}
