//! Manifests, chart and kustomization agree with each other and with the code.

mod rights;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use agent::config::Enforcer;
use control::Kind;
use deploy::{documents, folder, render, values};
use rights::grants;
use schema::{config_of, validate};
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

/// It is asked about every kind that denies connections, and reads what it watches.
#[test]
fn the_webhook_is_asked_about_every_policy_and_reads_what_it_judges_by() {
    let objects = kustomization("admission");
    let webhook = object(&objects, "ValidatingWebhookConfiguration", "podgate-admission");
    let rules = webhook["webhooks"][0]["rules"].as_array().unwrap();
    let texts = |value: &Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    for kind in Kind::ALL.into_iter().filter(|kind| kind.closes()) {
        let (group, version) = kind.api_version().split_once('/').unwrap();
        let asks = |rule: &&Value| {
            rule["apiGroups"] == json!([group])
                && texts(&rule["apiVersions"]).contains(version)
                && texts(&rule["resources"]).contains(kind.plural())
                && texts(&rule["operations"]).len() == 3
        };
        assert!(rules.iter().any(|rule| asks(&rule)), "{kind:?}");
    }
    let wanted = policy_tools::admission::KINDS.into_iter().flat_map(|kind| {
        let group = kind.api_version().split_once('/').map_or("", |(group, _)| group);
        ["list", "watch"].map(|verb| format!("{group} {} {verb}", kind.plural()))
    });
    assert_eq!(grants(&objects, "ClusterRole", "podgate-admission"), wanted.collect());
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

/// The policy is about the account of the switches, and about every object of a node that it may write.
#[test]
fn a_node_writes_about_itself_alone_where_that_is_asked_for() {
    let mut values = values();
    values["nodeRestriction"]["enabled"] = json!(true);
    values["nodeReadiness"]["enabled"] = json!(true);
    validate(&values).unwrap();
    let (kind, name) = ("ValidatingAdmissionPolicy", "podgate-node-restriction");
    for namespace in ["kube-system", "network"] {
        let objects = render(&values, namespace);
        let policy = object(&objects, kind, name);
        let binding = object(&objects, &format!("{kind}Binding"), name)["spec"].clone();
        assert_eq!(binding, json!({"policyName": name, "validationActions": ["Deny"]}));
        if namespace == "kube-system" {
            let written = kustomization("node-restriction");
            let names = [name, "podgate-addresses-restriction", "podgate-leases-restriction"];
            let kinds = [kind.to_owned(), format!("{kind}Binding")];
            let rendered =
                names.iter().flat_map(|name| kinds.each_ref().map(|it| object(&objects, it, name)));
            assert_eq!(by_name(written), by_name(rendered.collect()));
        }
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let account = &object(&objects, "DaemonSet", "podgate")["spec"]["template"]["spec"];
        let account = account["serviceAccountName"].as_str().unwrap();
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let condition = format!("request.userInfo.username == '{user}'");
        assert_eq!(spec["matchConditions"][0]["expression"], condition);
        assert_eq!(spec["matchConditions"].as_array().unwrap().len(), 1);
        // What the token says, and the object's name.
        let node =
            "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')";
        assert_eq!(spec["variables"], json!([{"name": "node", "expression": node}]));
        let expressions = |list: &Value| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|it| it["expression"].clone()).collect()
        };
        let wanted = ["variables.node != ''", "variables.node == object.metadata.name"];
        assert_eq!(expressions(&spec["validations"]), wanted);
        // Every right to write an object that is named as a node is.
        let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap();
        let covers = |group: &str, resource: &str, verb: &str| {
            let operation = if verb == "create" { "CREATE" } else { "UPDATE" };
            rules.iter().any(|rule| {
                let has =
                    |field: &str, it: &str| rule[field].as_array().unwrap().contains(&json!(it));
                has("apiGroups", group)
                    && has("resources", resource)
                    && has("operations", operation)
            })
        };
        let mut written = BTreeSet::new();
        for role in objects.iter().filter(|it| it["kind"] == "ClusterRole") {
            for rule in role["rules"].as_array().unwrap() {
                let texts = |field: &str| -> Vec<String> {
                    let list = rule[field].as_array().into_iter().flatten();
                    list.map(|it| it.as_str().unwrap().to_owned()).collect()
                };
                for resource in texts("resources") {
                    let is_a_nodes = resource.starts_with("node");
                    for verb in texts("verbs").iter().filter(|_| is_a_nodes) {
                        if !["get", "list", "watch"].contains(&verb.as_str()) {
                            let group = &texts("apiGroups")[0];
                            assert!(covers(group, &resource, verb), "{verb} {resource}");
                            written.insert(resource.clone());
                        }
                    }
                }
            }
        }
        let kinds = ["nodeaddresses", "nodepolicies", "nodes", "nodes/status"];
        assert_eq!(written, kinds.map(str::to_owned).into());
    }
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
fn hubble_takes_its_certificates_from_a_secret() {
    let mut values = values();
    values["hubble"] = json!({"enabled": true, "address": "[::]", "port": 4244,
        "tlsSecret": "hubble-certs"});
    // Both at once.
    values["metrics"]["enabled"] = json!(true);
    validate(&values).unwrap();
    let objects = render(&values, "network");
    let pod = object(&objects, "DaemonSet", "podgate")["spec"]["template"]["spec"].clone();
    let switch = &pod["containers"][0];
    let named = |list: &Value, name: &str| {
        let found = list.as_array().unwrap().iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}")).clone()
    };
    for (name, value) in [
        ("PODGATE_HUBBLE_LISTEN", "[::]:4244"),
        ("PODGATE_HUBBLE_CERT_FILE", "/etc/podgate-hubble/tls.crt"),
        ("PODGATE_HUBBLE_KEY_FILE", "/etc/podgate-hubble/tls.key"),
        ("PODGATE_HUBBLE_CLIENT_CA_FILE", "/etc/podgate-hubble/ca.crt"),
    ] {
        assert_eq!(named(&switch["env"], name)["value"], value);
    }
    assert_eq!(named(&switch["volumeMounts"], "hubble")["mountPath"], "/etc/podgate-hubble");
    assert_eq!(named(&pod["volumes"], "hubble")["secret"]["secretName"], "hubble-certs");
    assert_eq!(objects.iter().filter(|it| it["metadata"]["name"] == "podgate-reviews").count(), 2);
}

#[test]
fn programs_at_cgroups_get_the_folders_of_the_node() {
    for (enforcer, closed) in [("afxdp", false), ("nftables", true)] {
        let mut values = values();
        values["config"]["enforcer"] = json!(enforcer);
        values["sockets"] = json!({"enabled": true, "closed": closed});
        validate(&values).unwrap();
        let objects = render(&values, "network");
        let pod = object(&objects, "DaemonSet", "podgate")["spec"]["template"]["spec"].clone();
        let switch = &pod["containers"][0];
        let named = |list: &Value, name: &str| {
            let found = list.as_array().unwrap().iter().find(|it| it["name"] == name);
            found.unwrap_or_else(|| panic!("no {name}")).clone()
        };
        let policies = named(&switch["env"], "PODGATE_SOCKET_POLICIES");
        assert_eq!(policies["value"], if closed { "closed" } else { "on" });
        for (volume, variable, path) in [
            ("cgroups", "PODGATE_CGROUP_ROOT", "/sys/fs/cgroup"),
            ("bpf", "PODGATE_BPF_FS", "/sys/fs/bpf"),
        ] {
            let mount = named(&switch["volumeMounts"], volume);
            assert_eq!(mount["mountPath"], format!("/host{path}"));
            assert_eq!(mount["readOnly"] == true, volume == "cgroups");
            assert_eq!(named(&switch["env"], variable)["value"], mount["mountPath"]);
            assert_eq!(named(&pod["volumes"], volume)["hostPath"]["path"], path);
        }
        let capabilities = switch["securityContext"]["capabilities"]["add"].as_array().unwrap();
        assert!(["BPF", "SYS_ADMIN", "SETPCAP"].iter().all(|it| capabilities.contains(&json!(it))));
    }
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

/// A declared port is a host port here, and keeps a second pod off the node.
#[test]
fn the_next_switch_can_start_beside_the_running_one() {
    for name in ["base", "metrics", "hubble"] {
        let daemonset = object(&kustomization(name), "DaemonSet", "podgate");
        let update = &daemonset["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(update, &json!({"maxSurge": 1, "maxUnavailable": 0}));
        let containers = &daemonset["spec"]["template"]["spec"]["containers"];
        for container in containers.as_array().unwrap() {
            assert_eq!(container["ports"], Value::Null, "{name}: {container}");
        }
        let variables = containers[0]["env"].as_array().unwrap();
        let wait = variables.iter().find(|it| it["name"] == "PODGATE_TAKEOVER_WAIT").unwrap();
        wait["value"].as_str().unwrap().parse::<cli_runtime::Span>().unwrap();
    }
}

#[test]
fn clients_elsewhere_get_what_they_need_and_nothing_else() {
    let overlay = kustomization("metrics");
    let reviews =
        ["authentication.k8s.io tokenreviews", "authorization.k8s.io subjectaccessreviews"];
    let reviews = reviews.map(|it| format!("{it} create"));
    assert_eq!(grants(&overlay, "ClusterRole", "podgate-reviews"), reviews.into());
    let view = [" pods list", " pods/proxy get", " serviceaccounts/token create"];
    assert_eq!(grants(&overlay, "Role", "podgate-view"), view.map(str::to_owned).into());
    let rules = object(&overlay, "Role", "podgate-view")["rules"].clone();
    assert_eq!(rules[2]["resourceNames"], json!(["podgate-viewer"]));
    for (role, path) in [("podgate-metrics-reader", "/metrics"), ("podgate-pages", "/podgate/v1/*")]
    {
        let rules = object(&overlay, "ClusterRole", role)["rules"].clone();
        assert_eq!(rules, json!([{"nonResourceURLs": [path], "verbs": ["get"]}]));
    }
    let pages = object(&overlay, "ClusterRoleBinding", "podgate-pages")["subjects"].clone();
    assert_eq!(pages[0]["name"], "podgate-viewer");
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
fn every_value_reaches_an_object() {
    let mut values = values();
    values["image"] = json!({"repository": "r.example/p", "tag": "9", "pullPolicy": "Always"});
    values["apiServer"] = json!({"host": "192.0.2.1", "port": 8443});
    values["cni"]["pluginFolder"] = json!("/usr/lib/cni");
    values["cni"]["configurationFolder"] = json!("/var/cni");
    values["cni"]["configurationName"] = json!("00-p.conflist");
    values["resources"] = json!({"requests": {"cpu": "7"}});
    values["priorityClassName"] = json!("urgent");
    values["nodeSelector"] = json!({"zone": "a"});
    values["tolerations"] = json!([{"key": "only", "operator": "Exists"}]);
    values["maxSurge"] = json!(0);
    values["maxUnavailable"] = json!("10%");
    values["podAnnotations"] = json!({"note": "yes"});
    values["seLinuxOptions"] = json!({"type": "other_t"});
    values["config"]["rx-mode"] = json!("polling");
    values["config"]["dns-min-ttl"] = json!("2m");
    validate(&values).unwrap();
    let objects = render(&values, "network");
    let daemonset = object(&objects, "DaemonSet", "podgate").to_string();
    for expected in [
        "r.example/p:9",
        "Always",
        "192.0.2.1",
        "\"8443\"",
        "/usr/lib/cni",
        "/var/cni",
        "00-p.conflist",
        "\"cpu\":\"7\"",
        "urgent",
        "\"zone\":\"a\"",
        "only",
        "10%",
        "\"note\":\"yes\"",
        "other_t",
    ] {
        assert!(daemonset.contains(expected), "{expected}: {daemonset}");
    }
    let config = object(&objects, "ConfigMap", "podgate");
    let config = config["data"]["config.yaml"].as_str().unwrap();
    assert!(config.contains("polling") && config.contains("dns-min-ttl"), "{config}");
    for object in &objects {
        let namespace = &object["metadata"]["namespace"];
        // The lease of the status writer has one place, wherever Podgate is installed.
        let is_lease = object["kind"] == "Role" || object["kind"] == "RoleBinding";
        let wanted = if is_lease { "kube-system" } else { "network" };
        assert!(namespace.is_null() || namespace == wanted, "{object}");
    }
}

#[test]
fn beside_another_cni_plugin_nothing_is_installed_for_the_runtime() {
    let mut values = values();
    values["config"]["enforcer"] = json!("nftables");
    validate(&values).unwrap();
    let objects = render(&values, "kube-system");
    let mut overlay = kustomization("nftables");
    // Kustomize leaves an empty list where the chart has none.
    let pod = "/spec/template/spec";
    let daemonset = overlay.iter_mut().find(|it| it["kind"] == "DaemonSet").unwrap();
    let spec = daemonset.pointer_mut(pod).unwrap().as_object_mut().unwrap();
    assert_eq!(spec.remove("initContainers"), Some(json!([])));
    assert_eq!(by_name(objects.clone()), by_name(overlay));

    let mut daemonset = object(&objects, "DaemonSet", "podgate");
    let mut containers = Vec::new();
    each_container(&mut daemonset, |it| containers.push(it.clone()));
    assert_eq!(containers.len(), 1);
    let privileges = &containers[0]["securityContext"]["capabilities"];
    assert_eq!(*privileges, json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}));
    assert_eq!(confine::capabilities::NFTABLES.bits().count_ones(), 2);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&containers[0]["volumeMounts"]), ["config", "run"]);
    assert_eq!(names(&daemonset.pointer(pod).unwrap()["volumes"]), ["config", "run"]);
    let data = object(&objects, "ConfigMap", "podgate")["data"].clone();
    assert_eq!(data.as_object().unwrap().len(), 1, "{data}");
    let config = config_of(data["config.yaml"].as_str().unwrap());
    assert_eq!(config.enforcer, Enforcer::Nftables);
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
