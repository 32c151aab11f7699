//! Capabilities of the switch, and its rights at the API server.

use std::collections::{BTreeMap, BTreeSet};

use control::Kind;
use serde_json::{Value, json};

use crate::{by_name, each_container, kustomization, object};

#[test]
fn the_switch_gets_the_capabilities_that_it_uses_and_no_others() {
    let daemonset = object(&kustomization("base"), "DaemonSet", "podgate");
    let mut added = BTreeMap::new();
    let mut daemonset = daemonset;
    each_container(&mut daemonset, |container| {
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{container}");
        let name = container["name"].as_str().unwrap().to_owned();
        added.insert(name, context["capabilities"]["add"].clone());
    });
    assert_eq!(added["plugin"], Value::Null);
    assert_eq!(added["cni"], Value::Null);
    let names: Vec<&str> =
        added["podgate"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let kept = confine::capabilities::SWITCH.bits().count_ones() as usize;
    assert_eq!(names[..kept], ["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"]);
    assert_eq!(names[kept..], ["SYS_ADMIN", "SETPCAP"], "for the start");
}

/// Permissions that the roles of a kustomization grant, as `GROUP RESOURCE VERB`.
pub(crate) fn grants(objects: &[Value], kind: &str, role: &str) -> BTreeSet<String> {
    let role = object(objects, kind, role);
    let mut grants = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let list = |field: &str| {
            let list = rule[field].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
            list.map(str::to_owned).collect::<Vec<_>>()
        };
        for group in list("apiGroups") {
            for resource in list("resources") {
                grants
                    .extend(list("verbs").iter().map(|verb| format!("{group} {resource} {verb}")));
            }
        }
    }
    grants
}

#[test]
fn the_role_grants_what_the_switch_asks_for_and_nothing_else() {
    let mut wanted = BTreeSet::new();
    for kind in Kind::ALL {
        let group = kind.api_version().split_once('/').map_or("", |(group, _)| group);
        let resource = kind.plural();
        wanted.extend(["list", "watch"].map(|verb| format!("{group} {resource} {verb}")));
        // Read right before an Event about it is written.
        if kind.closes() {
            wanted.insert(format!("{group} {resource} get"));
        }
        // The status of a cluster-wide policy says what is enforced.
        if kind.is_cluster_policy() {
            wanted.insert(format!("{group} {resource}/status patch"));
        }
        // Each switch applies the object of its node.
        if kind == Kind::NodeAddresses {
            wanted.extend(["create", "patch"].map(|verb| format!("{group} {resource} {verb}")));
        }
    }
    // So does the state in force, which the writer of statuses lists.
    let verbs = ["list", "create", "patch"];
    wanted.extend(verbs.map(|verb| format!("podgate.io nodepolicies {verb}")));
    wanted.extend(["create", "patch"].map(|verb| format!(" events {verb}")));
    assert_eq!(grants(&kustomization("base"), "ClusterRole", "podgate"), wanted);
}

#[test]
fn the_lease_of_the_status_writer_may_be_held_and_no_other_changed() {
    let base = kustomization("base");
    let wanted = ["create", "get", "update"].map(|it| format!("coordination.k8s.io leases {it}"));
    assert_eq!(grants(&base, "Role", "podgate"), wanted.into());
    let role = object(&base, "Role", "podgate");
    assert_eq!(role["metadata"]["namespace"], "kube-system");
    assert_eq!(role["rules"][0]["resourceNames"], json!(["podgate-status"]));
}

/// The roles of an account: what the API server's authorizer evaluates
/// (<https://kubernetes.io/docs/reference/access-authn-authz/rbac/>).
struct Rights {
    /// The namespace in which each counts; `None` in all of them.
    rules: Vec<(Option<String>, Value)>,
}

impl Rights {
    fn of(objects: &[Value], account: &str) -> Self {
        let is_bound = |binding: &&Value| {
            let kind = binding["kind"].as_str().unwrap();
            let mut subjects = binding["subjects"].as_array().into_iter().flatten();
            kind.ends_with("RoleBinding") && subjects.any(|it| it["name"] == account)
        };
        let rules = objects.iter().filter(is_bound).flat_map(|binding| {
            let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
            let role = object(objects, kind.as_str().unwrap(), name.as_str().unwrap());
            let within = binding["metadata"]["namespace"].as_str();
            let namespace = within.filter(|_| binding["kind"] == "RoleBinding").map(str::to_owned);
            let rules = role["rules"].as_array().unwrap().clone();
            rules.into_iter().map(move |rule| (namespace.clone(), rule))
        });
        Self { rules: rules.collect() }
    }

    /// Whether a request is allowed: `VERB GROUP/RESOURCE [NAMESPACE/]NAME`, with `core` for the
    /// group without a name, `*` for a request that names no object, or `get PATH`.
    fn allow(&self, request: &str) -> bool {
        let [verb, what, rest @ ..] = &request.split(' ').collect::<Vec<_>>()[..] else { panic!() };
        let has = |list: &Value, wanted: &str| {
            list.as_array().into_iter().flatten().any(|it| {
                let it = it.as_str().unwrap();
                it == "*"
                    || it == wanted
                    || it.strip_suffix('*').is_some_and(|it| wanted.starts_with(it))
            })
        };
        let is_path = what.starts_with('/');
        self.rules.iter().any(|(within, rule)| {
            if is_path {
                return has(&rule["nonResourceURLs"], what) && has(&rule["verbs"], verb);
            }
            let (group, resource) = what.split_once('/').unwrap();
            let group = if group == "core" { "" } else { group };
            let (namespace, name) = match rest[0].split_once('/') {
                Some((namespace, name)) => (Some(namespace), name),
                None => (None, rest[0]),
            };
            within.as_deref().is_none_or(|it| Some(it) == namespace)
                && has(&rule["apiGroups"], group)
                && has(&rule["resources"], resource)
                && has(&rule["verbs"], verb)
                && (rule["resourceNames"].is_null()
                    || name != "*" && has(&rule["resourceNames"], name))
        })
    }
}

/// Requests that a node which was taken over would like to make, with every kustomization applied.
#[test]
fn what_a_node_that_was_taken_over_may_ask_for_is_little() {
    let overlays = ["aggregate", "node-readiness", "metrics", "hubble", "nftables"];
    let mut objects = kustomization("base");
    for overlay in overlays {
        objects.extend(kustomization(overlay));
    }
    let objects: Vec<Value> = by_name(objects).into_values().collect();
    let switch = Rights::of(&objects, "podgate");
    let viewer = Rights::of(&objects, "podgate-viewer");
    let refused = [
        "get core/secrets kube-system/podgate-admission-tls",
        "list core/secrets default/*",
        "watch core/secrets *",
        "list core/configmaps kube-system/*",
        "get core/configmaps kube-system/kubeadm-config",
        "update core/configmaps kube-system/podgate",
        "create core/pods default/*",
        "delete core/pods default/web",
        "patch core/pods default/web",
        "update core/pods/status default/web",
        "create core/pods/exec default/web",
        "create core/pods/eviction default/web",
        "create core/pods/binding default/web",
        "get core/pods/proxy kube-system/podgate-x",
        "create core/serviceaccounts/token kube-system/podgate",
        "create core/serviceaccounts/token kube-system/podgate-viewer",
        "impersonate core/users admin",
        "create core/nodes *",
        "update core/nodes n2",
        "delete core/nodes n2",
        "get core/nodes/proxy n2",
        "create core/services default/*",
        "patch core/services default/web",
        "update core/services/status default/web",
        "create core/endpoints default/*",
        "create discovery.k8s.io/endpointslices default/*",
        "patch discovery.k8s.io/endpointslices default/web-1",
        "create networking.k8s.io/networkpolicies default/*",
        "patch networking.k8s.io/networkpolicies default/db",
        "delete networking.k8s.io/networkpolicies default/db",
        "update policy.networking.k8s.io/clusternetworkpolicies all",
        "patch policy.networking.k8s.io/clusternetworkpolicies all",
        "delete podgate.io/clusteregressfirewalls outside",
        "patch podgate.io/clusterhostfirewalls nodes",
        "create podgate.io/clusterhostfirewalls *",
        "update podgate.io/nodeaddresses n2",
        "delete podgate.io/nodeaddresses n2",
        "delete podgate.io/nodepolicies n2",
        "patch core/namespaces default",
        "create core/namespaces *",
        "create coordination.k8s.io/leases kube-system/*",
        "create coordination.k8s.io/leases kube-system/kube-controller-manager",
        "update coordination.k8s.io/leases kube-system/kube-scheduler",
        "delete coordination.k8s.io/leases kube-system/podgate-status",
        "update coordination.k8s.io/leases kube-node-lease/n2",
        "get coordination.k8s.io/leases kube-node-lease/n2",
        "create rbac.authorization.k8s.io/clusterrolebindings *",
        "create certificates.k8s.io/certificatesigningrequests *",
        "update admissionregistration.k8s.io/validatingadmissionpolicies podgate-node-restriction",
        "delete admissionregistration.k8s.io/validatingadmissionpolicybindings podgate-node-restriction",
        "patch apps/daemonsets kube-system/podgate",
        "get /podgate/v1/status",
        "get /metrics",
    ];
    for request in refused {
        assert!(!switch.allow(request), "podgate: {request}");
    }
    for request in refused.iter().filter(|it| !it.starts_with("get /podgate")) {
        assert!(!viewer.allow(request), "podgate-viewer: {request}");
    }
    // What it does ask for: the test refuses nothing that nobody could ask.
    let allowed = [
        "watch core/pods *",
        "patch podgate.io/nodeaddresses n1",
        "create coordination.k8s.io/leases kube-system/podgate-status",
        "update coordination.k8s.io/leases kube-system/podgate-addresses",
        "patch core/nodes/status n1",
        "create authentication.k8s.io/tokenreviews *",
    ];
    for request in allowed {
        assert!(switch.allow(request), "{request}");
    }
    assert!(viewer.allow("get /podgate/v1/status"));
}
