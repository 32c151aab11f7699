//! Standard plugins chained behind `podgate-cni`.

use serde_json::{Value, json};

use crate::cluster_node::{ClusterNode, text};
use crate::pod::Pod;
use crate::requires_the_machine;

/// Calls a plugin as a runtime does for the second plugin of a list.
pub(crate) fn chained(node: &ClusterNode, pod: &Pod<'_>, kind: &str, command: &str, more: &Value) {
    let mut config = json!({"cniVersion": "1.0.0", "name": "pods", "type": kind,
        "prevResult": result(pod)});
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    let program = format!("/usr/lib/cni/{kind}");
    let output = node.call_plugin(program.as_ref(), command, &pod.name, &pod.namespace, &config);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{kind} {command}: {out}{error}");
}

/// The result of `podgate-cni`'s ADD.
fn result(pod: &Pod<'_>) -> Value {
    let address = |ip: &std::net::IpAddr| {
        let length = if ip.is_ipv4() { 32 } else { 128 };
        json!({"address": format!("{ip}/{length}"), "interface": 1})
    };
    let ips: Vec<Value> = pod.addresses.iter().map(address).collect();
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": pod.host_interface},
            {"name": "eth0", "mac": mac(pod), "sandbox": pod.namespace.path()}],
        "ips": ips,
    })
}

fn mac(pod: &Pod<'_>) -> String {
    pod.namespace.exec(["cat", "/sys/class/net/eth0/address"]).trim().to_owned()
}

fn somaxconn(pod: &Pod<'_>) -> String {
    pod.namespace.exec(["cat", "/proc/sys/net/core/somaxconn"]).trim().to_owned()
}

#[test]
fn tuning_sets_sysctls_and_mtu_and_a_changed_mac_cuts_the_pod_off() {
    requires_the_machine!("redis-server", "redis-cli", "/usr/lib/cni/tuning");
    let node = ClusterNode::start(&[]);
    let (db, web) = (node.pod("db", "db"), node.pod("web", "web"));
    let _server = db.serve_redis();
    let own = mac(&web);
    let usual = somaxconn(&web);
    let backups = node.path("tuning");
    let tune = |command: &str, more: Value| {
        let mut config = json!({"dataDir": backups.clone()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chained(&node, &web, "tuning", command, &config);
    };
    let sysctls = json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1300});
    tune("ADD", sysctls.clone());
    assert_ne!(usual, "517");
    assert_eq!(somaxconn(&web), "517");
    let mtu = web.namespace.exec(["cat", "/sys/class/net/eth0/mtu"]);
    assert_eq!((mtu.trim(), mac(&web)), ("1300", own.clone()));
    assert!(web.asks_redis(&db) && web.pings(db.v4()) && db.pings(web.v6()));
    // The runtime checks every plugin of the list.
    tune("CHECK", sysctls.clone());
    let checked = node.plugin_after("CHECK", &web.name, &web.namespace, result(&web));
    assert!(checked.status.success(), "{}", text(&checked.stdout));
    tune("DEL", sysctls);

    let other = json!({"mac": "02:00:00:00:00:17"});
    tune("ADD", other.clone());
    assert_eq!(mac(&web), "02:00:00:00:00:17");
    assert!(web.is_kept_from_redis(&db), "the switch holds the pod to its own address");
    let refused = node.verdicts(&["--verdict", "dropped", "--from-pod", "default/web"]);
    assert!(refused.iter().any(|it| it["reason"] == "spoofed-mac"), "{refused:?}");
    tune("DEL", other);
    assert_eq!(mac(&web), own);
    node.eventually("the way back", || (!web.is_kept_from_redis(&db)).then_some(()));
}
