//! Capabilities of the switch, and its rights at the API server.

use std::collections::{BTreeMap, BTreeSet};

use control::Kind;
use serde_json::{Value, json};

use crate::{each_container, kustomization, object};

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

/// `create` cannot be limited to a name.
#[test]
fn the_lease_of_the_status_writer_may_be_held_and_no_other_changed() {
    let base = kustomization("base");
    let wanted = ["create", "get", "update"].map(|it| format!("coordination.k8s.io leases {it}"));
    assert_eq!(grants(&base, "Role", "podgate"), wanted.into());
    let role = object(&base, "Role", "podgate");
    assert_eq!(role["metadata"]["namespace"], "kube-system");
    assert_eq!(role["rules"][1]["resourceNames"], json!(["podgate-status"]));
}
