//! Generates the enforced manifest of a staged policy.

use control::model::{Stage, Staging};
use serde_json::{Map, Value};

use super::input::Input;
use crate::input::Manifests;

/// A policy among manifests.
#[derive(Debug, clap::Args)]
pub struct Wanted {
    /// The policy
    #[arg(value_name = "[NS/]NAME")]
    name: String,
    #[command(flatten)]
    input: Input,
}

/// A staged policy.
#[derive(Debug)]
pub struct StagedPolicy {
    kind: String,
    namespace: Option<String>,
    name: String,
    value: Value,
}

/// Fields of `metadata` that the API server writes.
const OF_SERVER: [&str; 6] =
    ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"];
/// Annotation in which kubectl keeps the manifest that was applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Wanted {
    /// Reads the manifests and finds the policy.
    ///
    /// # Errors
    /// Faults of the manifests, or that none or several policies of them have the name.
    pub fn find(&self) -> Result<StagedPolicy, Vec<String>> {
        find(&self.input.load()?, &self.name).map_err(|problem| vec![problem])
    }
}

/// The one policy of this name, with or without its namespace.
fn find(manifests: &Manifests, wanted: &str) -> Result<StagedPolicy, String> {
    let mut found: Vec<StagedPolicy> = Vec::new();
    for value in &manifests.sources {
        let policy = StagedPolicy::new(value);
        if policy.kind != "Namespace" && (policy.place() == wanted || policy.name == wanted) {
            // The last of several objects with the same name counts.
            found.retain(|it| it.title() != policy.title());
            found.push(policy);
        }
    }
    match found.len() {
        0 => Err(format!("the manifests have no policy {wanted}")),
        1 => Ok(found.remove(0)),
        _ => {
            let titles: Vec<String> = found.iter().map(StagedPolicy::title).collect();
            Err(format!("{wanted} is the name of several policies: {}", titles.join(", ")))
        }
    }
}

impl StagedPolicy {
    /// Reads the policy from an object.
    pub fn new(value: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = text(&value["kind"]).unwrap_or_default();
        let namespace = (!crate::input::is_of_cluster(&kind))
            .then(|| text(&value["metadata"]["namespace"]).unwrap_or_else(|| "default".to_owned()));
        let name = text(&value["metadata"]["name"]).unwrap_or_default();
        Self { kind, namespace, name, value: value.clone() }
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Its name, behind its namespace if it has one.
    pub fn place(&self) -> String {
        let namespace = self.namespace.iter().map(|namespace| format!("{namespace}/"));
        namespace.collect::<String>() + &self.name
    }

    /// Kind and name, as verdicts have them.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.place())
    }

    /// The policy that this one replaces once it is enforced.
    pub fn replaces(&self) -> Option<&str> {
        self.value["metadata"]["annotations"][Staging::REPLACES].as_str()
    }

    /// Returns the manifest without its staging, under the name of the policy that it replaces. `default` is the stage
    /// without an annotation: if that is staged, an annotation enforces it.
    pub fn promoted(&self, default: Stage) -> String {
        let mut value = self.value.clone();
        if let Some(name) = self.replaces() {
            value["metadata"]["name"] = name.into();
        }
        if let Some(fields) = value.as_object_mut() {
            fields.remove("status");
        }
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.retain(|field, _| !OF_SERVER.contains(&field.as_str()));
            let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
            if !annotations.is_object() {
                *annotations = Map::new().into();
            }
            if let Some(annotations) = annotations.as_object_mut() {
                let staging = [Stage::ANNOTATION, Staging::REPLACES, LAST_APPLIED];
                annotations.retain(|name, _| !staging.contains(&name.as_str()));
                if default == Stage::Staged {
                    annotations.insert(Stage::ANNOTATION.to_owned(), "enforced".into());
                }
                if annotations.is_empty() {
                    metadata.remove("annotations");
                }
            }
        }
        crate::yaml::document(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(name: &str, namespace: &str, annotations: Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations,
                "uid": "1", "resourceVersion": "7", "labels": {"team": "on"}},
            "spec": {"podSelector": {"matchLabels": {"role": "db"}}}, "status": {}})
    }

    fn manifests(sources: Vec<Value>) -> Manifests {
        Manifests { sources, ..Manifests::default() }
    }

    #[test]
    fn what_stages_a_policy_is_left_out_and_nothing_else() {
        let annotations = json!({"podgate.io/stage": "staged", "owner": "ann",
            "kubectl.kubernetes.io/last-applied-configuration": "{}"});
        let all = manifests(vec![policy("db", "shop", annotations)]);
        let found = find(&all, "shop/db").unwrap();
        assert_eq!((found.title().as_str(), found.replaces()), ("NetworkPolicy shop/db", None));
        let expected = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  \
                        annotations:\n    owner: ann\n  labels:\n    team: \"on\"\n  name: db\n  \
                        namespace: shop\nspec:\n  podSelector:\n    matchLabels:\n      role: db\n";
        assert_eq!(found.promoted(Stage::Enforced), expected);
        // Where everything else is staged, an annotation enforces it.
        let enforced = expected.replace("owner: ann", "owner: ann\n    podgate.io/stage: enforced");
        assert_eq!(found.promoted(Stage::Staged), enforced);
    }

    #[test]
    fn the_next_version_gets_the_name_of_the_policy_that_it_replaces() {
        let all = manifests(vec![policy("db-next", "shop", json!({"podgate.io/stages": "db"}))]);
        let found = find(&all, "db-next").unwrap();
        assert_eq!(found.replaces(), Some("db"));
        let text = found.promoted(Stage::Enforced);
        assert!(text.contains("  name: db\n") && !text.contains("annotations"), "{text}");
    }

    #[test]
    fn a_name_of_none_or_several_is_refused() {
        let all =
            manifests(vec![policy("db", "shop", json!({})), policy("db", "other", json!({}))]);
        let several = find(&all, "db").unwrap_err();
        assert!(several.ends_with("NetworkPolicy shop/db, NetworkPolicy other/db"), "{several}");
        assert_eq!(find(&all, "other/db").unwrap().place(), "other/db");
        assert_eq!(find(&all, "web").unwrap_err(), "the manifests have no policy web");
    }
}
