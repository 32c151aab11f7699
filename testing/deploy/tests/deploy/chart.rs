//! Values of the chart: the objects that each one changes.

use std::collections::BTreeSet;

use agent::config::Enforcer;
use control::Kind;
use deploy::{render, values};
use serde_json::{Value, json};

use crate::rights::grants;
use crate::schema::{config_of, validate};
use crate::{by_name, each_container, kustomization, object};

/// The webhook covers every kind that denies connections, and may read the kinds that it watches.
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
    let own = "admissionregistration.k8s.io validatingwebhookconfigurations get".to_owned();
    let wanted = wanted.chain([own]).collect();
    assert_eq!(grants(&objects, "ClusterRole", "podgate-admission"), wanted);
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
            let names = [
                name,
                "podgate-node-object",
                "podgate-addresses-restriction",
                "podgate-leases-restriction",
            ];
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
        // The token's claim, and the object's name.
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
    values["podLabels"] = json!({"team": "network"});
    values["affinity"] = json!({"nodeAffinity": {"note": "near"}});
    values["imagePullSecrets"] = json!([{"name": "registry"}]);
    values["extraVolumes"] = json!([{"name": "more", "emptyDir": {}}]);
    values["extraVolumeMounts"] = json!([{"name": "more", "mountPath": "/more"}]);
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
        "\"team\":\"network\"",
        "near",
        "registry",
        "emptyDir",
        "\"/more\"",
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
    assert_eq!(names(&containers[0]["volumeMounts"]), ["config", "run", "journal"]);
    assert_eq!(names(&daemonset.pointer(pod).unwrap()["volumes"]), ["config", "run", "journal"]);
    let data = object(&objects, "ConfigMap", "podgate")["data"].clone();
    assert_eq!(data.as_object().unwrap().len(), 1, "{data}");
    let config = config_of(data["config.yaml"].as_str().unwrap());
    assert_eq!(config.enforcer, Enforcer::Nftables);
}

#[test]
fn a_pod_monitor_scrapes_each_switch_by_its_address() {
    let mut values = values();
    values["metrics"]["podMonitor"]["enabled"] = json!(true);
    values["metrics"]["podMonitor"]["labels"] = json!({"release": "p"});
    validate(&values).unwrap();
    let monitor = object(&render(&values, "network"), "PodMonitor", "podgate");
    assert_eq!(monitor["metadata"]["labels"], json!({"release": "p"}));
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["honorLabels"], true);
    assert_eq!(endpoint["authorization"]["credentials"]["name"], "podgate-scraper");
    let relabelings = endpoint["relabelings"].as_array().unwrap();
    assert!(relabelings.iter().any(|it| it["replacement"] == "$1:9471"), "{relabelings:?}");
}
