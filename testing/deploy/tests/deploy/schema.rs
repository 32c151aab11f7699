//! The values of the chart and the configuration that they make.

use std::any::TypeId;
use std::collections::BTreeSet;

use agent::config::{Bytes, Config, Cores, Options, PortSpan, Span, read_file};
use clap::Args;
use deploy::{folder, values};
use serde_json::{Map, Value, json};

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
    let mistakes: [(&str, Spoil); 13] = [
        ("a value that does not exist", |values| values["imagge"] = json!({})),
        ("a policy that does not exist", |values| values["image"]["pullPolicy"] = json!("Never!")),
        ("an option that does not exist", |values| values["config"]["dns-ttl"] = json!("1m")),
        ("a time without a unit", |values| values["config"]["dns-min-ttl"] = json!("60")),
        ("an enforcer that does not exist", |values| values["config"]["enforcer"] = json!("nft")),
        ("an option with capitals", |values| values["config"]["RxMode"] = json!("polling")),
        ("a secret that is not a name", |values| values["hubble"]["tlsSecret"] = json!("A/b")),
        ("a port that is none", |values| values["apiServer"]["port"] = json!(0)),
        ("a folder that is relative", |values| values["cni"]["pluginFolder"] = json!("bin")),
        ("a name with another ending", |values| {
            values["cni"]["configurationName"] = json!("a.json")
        }),
        ("encryption whose keys any node may write", |values| {
            values["config"]["encryption"] = json!("wireguard");
        }),
        ("nodes that any node may write", |values| {
            values["nodeReadiness"]["enabled"] = json!(true);
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
    let mut restricted = values();
    restricted["config"]["encryption"] = json!("wireguard");
    restricted["nodeReadiness"]["enabled"] = json!(true);
    restricted["nodeRestriction"]["enabled"] = json!(true);
    validate(&restricted).unwrap();
}

#[test]
fn the_configuration_is_one_that_the_switch_takes() {
    let config = object(&kustomization("base"), "ConfigMap", "podgate");
    let config = config_of(config["data"]["config.yaml"].as_str().unwrap());
    assert_eq!(config.network.uplink.as_deref(), Some("auto"));
}

/// The configuration of a file with this text.
pub(crate) fn config_of(text: &str) -> Config {
    let cores = BTreeSet::from([0]);
    Config::resolve(options_of(text).unwrap(), "node-a", &cores).unwrap()
}

/// The options of a file with this text, if they can be read.
fn options_of(text: &str) -> Option<Options> {
    let folder = testkit::TempDir::new("deploy");
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    read_file(&path).ok()
}

/// `UPDATE=1 cargo test -p deploy` writes the schema's part for the options.
#[test]
fn the_schema_has_every_option_as_the_switch_takes_it() {
    let wanted = of_options();
    let schema = schema();
    if schema["properties"]["config"] == wanted {
        return;
    }
    assert!(std::env::var_os("UPDATE").is_some(), "run UPDATE=1 cargo test -p deploy");
    let path = folder().join("chart/podgate/values.schema.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("\n    \"config\": {").unwrap();
    let (_, after) = rest.split_once("\n    },").unwrap();
    let part = serde_json::to_string_pretty(&wanted).unwrap().replace('\n', "\n    ");
    std::fs::write(&path, format!("{before}\n    \"config\": {part},{after}")).unwrap();
}

/// The schema of all options, from their definitions.
fn of_options() -> Value {
    let command = Options::augment_args(clap::Command::new("podgate"));
    let property = |argument: &clap::Arg| {
        let name = argument.get_long().unwrap().to_owned();
        let property = of_option(&name, argument);
        (name, property)
    };
    let properties: Map<String, Value> = command.get_arguments().map(property).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn of_option(name: &str, argument: &clap::Arg) -> Value {
    let kind = argument.get_value_parser().type_id();
    let named = argument.get_value_names().unwrap_or_default().first().map_or("", |it| it.as_str());
    let is_word = |it: &str| it.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let mut words: Vec<Value> =
        argument.get_possible_values().iter().map(|it| it.get_name().into()).collect();
    if words.is_empty() && named.split('|').all(is_word) {
        words = named.split('|').map(Value::from).collect();
    }
    // Without quotes both are truth values in YAML.
    if words.contains(&"on".into()) {
        words.extend([true.into(), false.into()]);
    }
    // No term is a filter, too.
    let text = json!({"type": "string", "minLength": u8::from(named != "TERMS")});
    let with = |pattern: &str| json!({"type": "string", "pattern": pattern});
    if !words.is_empty() {
        json!({"enum": words})
    } else if matches!(argument.get_action(), clap::ArgAction::Append) {
        json!({"type": "array", "items": text})
    } else if [TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<usize>()]
        .iter()
        .any(|it| kind == *it)
    {
        let (least, most) = range(name);
        json!({"type": "integer", "minimum": least, "maximum": most})
    } else if kind == TypeId::of::<Span>() {
        with("^[0-9]+(ms|s|m|h|d)$")
    } else if kind == TypeId::of::<Bytes>() {
        with("^[0-9]+([KMG]i?B)?$")
    } else if kind == TypeId::of::<PortSpan>() {
        with("^[0-9]+-[0-9]+$")
    } else if kind == TypeId::of::<Cores>() {
        json!({"anyOf": [{"type": "integer", "minimum": 0}, with("^[0-9, -]+$")]})
    } else {
        text
    }
}

/// The bounds that the switch names when it refuses a number.
fn range(name: &str) -> (u64, u64) {
    let bounds = |value: u32| {
        let options = options_of(&format!("{name}: {value}"))?;
        let error = Config::resolve(options, "node-a", &BTreeSet::new()).err()?.to_string();
        let line =
            error.lines().find(|line| line.starts_with(&format!("{name}: {value} is not")))?;
        let (least, most) = line.split_once(" between ")?.1.split_once(" and ")?;
        Some((least.parse().unwrap(), most.parse().unwrap()))
    };
    bounds(0).or_else(|| bounds(u32::MAX)).unwrap_or((0, u32::MAX.into()))
}
