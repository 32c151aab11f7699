//! Manifests, chart and kustomization agree with each other and with the code.

mod chart;
mod rights;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use control::Kind;
use deploy::{documents, folder, render, values};
use rights::grants;
use schema::validate;
use serde_json::{Value, json};

const IMAGE: &str = "localhost/podgate:0.1.0";

/// The objects of a kustomization: its resources with the image's name, as `kubectl kustomize`
/// makes them.
fn kustomization(name: &str) -> Vec<Value> {
    let folder = folder().join("kustomize").join(name);
    let kustomization = documents(&folder.join("kustomization.yaml")).remove(0);
    let image = &kustomization["images"][0];
    if !image.is_null() {
        let given = |field: &str| image[field].as_str().unwrap().to_owned();
        assert_eq!(format!("{}:{}", given("newName"), given("newTag")), IMAGE);
    }
    let mut objects = Vec::new();
    for resource in kustomization["resources"].as_array().unwrap() {
        match resource.as_str().unwrap() {
            // The chart has them in a folder of its own.
            "../crds" => assert!(!kustomization_crds().is_empty()),
            "../base" => objects.extend(self::kustomization("base")),
            file => objects.extend(documents(&folder.join(file))),
        }
    }
    for patch in kustomization["patches"].as_array().into_iter().flatten() {
        let patch = documents(&folder.join(patch["path"].as_str().unwrap())).remove(0);
        let is_meant = |it: &&mut Value| {
            it["kind"] == patch["kind"] && it["metadata"]["name"] == patch["metadata"]["name"]
        };
        merge(objects.iter_mut().find(is_meant).unwrap(), &patch);
    }
    for object in &mut objects {
        each_container(object, |container| container["image"] = json!(IMAGE));
    }
    objects
}

/// A strategic merge, as far as lists of things with names or mount paths, and of texts, go.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (field, value) in patch {
                match value {
                    Value::Null => drop(into.remove(field)),
                    value => merge(into.entry(field).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(into), Value::Array(patch)) if patch.iter().all(Value::is_object) => {
            for item in patch {
                let key = if item.get("name").is_some() { "name" } else { "mountPath" };
                let known = into.iter().position(|it| it[key] == item[key]);
                match known {
                    Some(at) if item["$patch"] == "delete" => drop(into.remove(at)),
                    Some(at) => merge(&mut into[at], item),
                    None => into.push(item.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn kustomization_crds() -> Vec<Value> {
    let folder = folder().join("kustomize/crds");
    let kustomization = documents(&folder.join("kustomization.yaml")).remove(0);
    let files = kustomization["resources"].as_array().unwrap().clone();
    files.iter().flat_map(|file| documents(&folder.join(file.as_str().unwrap()))).collect()
}

fn each_container(object: &mut Value, mut change: impl FnMut(&mut Value)) {
    for list in ["initContainers", "containers"] {
        let containers = object.pointer_mut(&format!("/spec/template/spec/{list}"));
        for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
            change(container);
        }
    }
}

/// By kind and name; what a ConfigMap's files say counts, not how they are written.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let entry = |mut object: Value| {
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        for (_, text) in object["data"].as_object_mut().into_iter().flatten() {
            *text = serde_saphyr::from_str(text.as_str().unwrap()).unwrap();
        }
        (name, object)
    };
    objects.into_iter().map(entry).collect()
}

fn object(objects: &[Value], kind: &str, name: &str) -> Value {
    let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}")).clone()
}

#[test]
fn the_chart_makes_what_the_kustomization_makes() {
    assert_eq!(by_name(render(&values(), "kube-system")), by_name(kustomization("base")));
}

#[test]
fn the_chart_with_konnectivity_makes_both_kustomizations() {
    let mut values = values();
    values["konnectivity"]["enabled"] = json!(true);
    let mut both = kustomization("base");
    both.extend(kustomization("konnectivity"));
    assert_eq!(by_name(render(&values, "kube-system")), by_name(both));
}

#[test]
fn the_chart_with_admission_makes_both_kustomizations() {
    let mut values = values();
    values["admission"]["enabled"] = json!(true);
    let mut both = kustomization("base");
    both.extend(kustomization("admission"));
    assert_eq!(by_name(render(&values, "kube-system")), by_name(both));

    let statements = "- {from: any-pod, to: internet, port: '*', expect: deny}\n";
    let own = [
        ("mode", "deny"),
        ("failurePolicy", "Fail"),
        ("tlsSecret", "own-tls"),
        ("caBundle", "Y2E="),
        ("invariants", statements),
    ];
    own.into_iter().for_each(|(name, value)| values["admission"][name] = json!(value));
    validate(&values).unwrap();
    let objects = render(&values, "network");
    let webhook = object(&objects, "ValidatingWebhookConfiguration", "podgate-admission");
    assert_eq!(webhook["metadata"]["annotations"], Value::Null);
    let webhook = &webhook["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Fail");
    assert_eq!(webhook["clientConfig"]["caBundle"], "Y2E=");
    assert_eq!(webhook["clientConfig"]["service"]["namespace"], "network");
    let deployment = object(&objects, "Deployment", "podgate-admission");
    let pod = &deployment["spec"]["template"]["spec"];
    assert!(pod["containers"][0]["args"].to_string().contains("--mode=deny"));
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "own-tls");
    let given = object(&objects, "ConfigMap", "podgate-admission")["data"].clone();
    assert_eq!(given["invariants.yaml"], statements);
}

#[test]
fn the_chart_with_metrics_makes_the_overlay() {
    let mut values = values();
    values["metrics"]["enabled"] = json!(true);
    assert_eq!(by_name(render(&values, "kube-system")), by_name(kustomization("metrics")));
}

#[test]
fn the_chart_with_node_readiness_makes_the_overlay() {
    let mut values = values();
    values["nodeReadiness"]["enabled"] = json!(true);
    assert_eq!(by_name(render(&values, "kube-system")), by_name(kustomization("node-readiness")));
}

#[test]
fn the_chart_with_an_aggregate_makes_the_overlay() {
    let mut values = values();
    values["aggregate"]["enabled"] = json!(true);
    validate(&values).unwrap();
    let mut overlay = kustomization("aggregate");
    let verbs = ["list", "watch", "create", "update", "delete"];
    let wanted = verbs.map(|verb| format!("podgate.io podgateaddresses {verb}"));
    assert_eq!(grants(&overlay, "ClusterRole", "podgate-aggregate"), wanted.into());
    overlay.retain(|object| object["kind"] != "CustomResourceDefinition");
    assert_eq!(by_name(render(&values, "kube-system")), by_name(overlay));
}

#[test]
fn the_chart_with_hubble_makes_the_overlay() {
    let mut values = values();
    values["hubble"]["enabled"] = json!(true);
    assert_eq!(by_name(render(&values, "kube-system")), by_name(kustomization("hubble")));
    let rules =
        object(&kustomization("hubble"), "ClusterRole", "podgate-hubble-reader")["rules"].clone();
    let paths = ["/observer.Observer/*", "/peer.Peer/*", "/grpc.health.v1.Health/Check"];
    assert_eq!(rules, json!([{"nonResourceURLs": paths, "verbs": ["get"]}]));
}

#[test]
fn the_charts_firewalls_are_the_examples() {
    let mut values = values();
    values["firewalls"] = json!({ "metadata": true, "nodes": true });
    validate(&values).unwrap();
    let objects = render(&values, "kube-system");
    for file in ["metadata.yaml", "nodes-but-for-dns.yaml"] {
        let example = documents(&folder().join("examples/firewalls").join(file)).remove(0);
        let name = example["metadata"]["name"].as_str().expect("a name");
        assert_eq!(object(&objects, "ClusterEgressFirewall", name), example);
    }
}

#[test]
fn the_charts_kinds_are_the_kustomizations() {
    let chart = folder().join("chart/podgate/crds");
    let names = |folder: &std::path::Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name());
        entries.filter(|name| name != "kustomization.yaml").collect::<BTreeSet<_>>()
    };
    let kustomize = folder().join("kustomize/crds");
    assert_eq!(names(&chart), names(&kustomize));
    for name in names(&chart) {
        let read = |folder: &std::path::Path| std::fs::read(folder.join(&name)).unwrap();
        assert!(read(&chart) == read(&kustomize), "{name:?} differs");
    }
}

#[test]
fn the_cni_configuration_can_be_completed() {
    let config = object(&kustomization("base"), "ConfigMap", "podgate");
    let template = config["data"]["cni.conflist"].as_str().unwrap();
    let networks = ["10.1.4.0/24".parse().unwrap()];
    let done = setup::install::complete(template, &networks, Some(1450)).unwrap();
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!(done["plugins"][0]["mtu"], 1450);
    let ours: Value = serde_json::from_str(setup::install::DEFAULT_TEMPLATE).unwrap();
    assert_eq!(serde_json::from_str::<Value>(template).unwrap(), ours);
}

#[test]
fn containers_call_the_commands_as_they_are() {
    use clap::Parser;
    let server = documents(&folder().join("konnectivity-server/konnectivity-server.yaml"));
    let mut all = kustomization("base");
    all.extend(kustomization("konnectivity"));
    all.extend(kustomization("nftables"));
    all.extend(kustomization("admission"));
    all.extend(server);
    let mut seen = 0;
    for object in &mut all {
        // A pod's containers stand where a template's pod has them.
        if object["kind"] == "Pod" {
            *object = json!({"spec": {"template": {"spec": object["spec"]}}});
        }
        each_container(object, |container| {
            let arguments = container["args"].as_array().unwrap().iter();
            let arguments = arguments.map(|it| it.as_str().unwrap().to_owned());
            let line = std::iter::once("podgate".to_owned()).chain(arguments);
            let parsed = cli::commands::Cli::try_parse_from(line);
            assert!(parsed.is_ok(), "{container}: {}", parsed.unwrap_err());
            seen += 1;
        });
    }
    assert_eq!(seen, 7);
}

#[test]
fn every_kind_that_may_be_absent_can_be_installed() {
    let definitions = kustomization_crds();
    // Clusters that use these have them; new ones are better off with ClusterNetworkPolicy.
    let is_former =
        |kind: &Kind| matches!(kind, Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy);
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.may_be_absent() && !is_former(kind));
    for kind in kinds {
        let (group, version) = kind.api_version().split_once('/').unwrap();
        let name = format!("{}.{group}", kind.plural());
        let spec = object(&definitions, "CustomResourceDefinition", &name)["spec"].clone();
        assert_eq!(spec["group"], group);
        assert_eq!(spec["names"]["kind"], kind.name());
        assert_eq!(spec["names"]["plural"], kind.plural());
        assert_eq!(spec["scope"], "Cluster");
        assert_eq!(spec["versions"][0]["name"], version);
        let has_status = spec["versions"][0]["subresources"]["status"].is_object();
        assert_eq!(has_status, kind.is_cluster_policy(), "{name}");
    }
}

/// The fields of `spec` that the schema of a ClusterNetworkPolicy knows, as paths.
#[test]
fn the_kind_cluster_network_policy_is_whole() {
    let definitions = kustomization_crds();
    let name = "clusternetworkpolicies.policy.networking.k8s.io";
    let definition = object(&definitions, "CustomResourceDefinition", name);
    let spec =
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let peers = |rules: &str, end: &str| {
        let path = format!("/properties/{rules}/items/properties/{end}/items/properties");
        let peers = spec.pointer(&path).unwrap().as_object().unwrap();
        peers.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(peers("ingress", "from"), ["namespaces", "pods"]);
    assert_eq!(peers("egress", "to"), ["domainNames", "namespaces", "networks", "nodes", "pods"]);
    let text = definition.to_string();
    assert_eq!(text.matches("isCIDR(self)").count(), 1);
    assert_eq!(text.matches("self.start < self.end").count(), 6);
    assert!(text.contains("has(protocol.destinationNamedPort)"));
}
