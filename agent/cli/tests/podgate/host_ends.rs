//! Nodes with host firewalls, and pods on the host network, in the answers of `podgate policy`.

use serde_json::{Value, json};

use crate::policy::Folder;

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {role: edge}}
status: {addresses: [{type: InternalIP, address: 172.31.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 172.31.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.1.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n2, hostNetwork: true, containers: [{name: c}]}
status: {podIP: 172.31.0.2}
";

const FIREWALL: &str = "
apiVersion: podgate.io/v1alpha1
kind: ClusterHostFirewall
metadata: {name: edge}
spec:
  nodes: {matchLabels: {role: edge}}
  ingress:
  - action: Allow
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]
    protocols: [{tcp: {destinationPort: {number: 9100}}}]
  - {action: Deny, from: [{networks: [0.0.0.0/0]}]}
  egress:
  - {action: Deny, to: [{networks: [10.1.0.0/16, 192.0.2.0/24]}]}
";

const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
";

/// A service in front of the node itself, and one in front of a host outside.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: own, namespace: shop}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: own, namespace: shop, labels: {kubernetes.io/service-name: own}}
endpoints: [{addresses: [172.31.0.1]}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec: {clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: outside, namespace: shop, labels: {kubernetes.io/service-name: outside}}
endpoints: [{addresses: [192.0.2.9]}]
ports: [{port: 8080}]
";

fn folder() -> Folder {
    let guarded = format!("{CLUSTER}---{FIREWALL}");
    // The kernel sees the switch's address in the place of the client's.
    let switch = FIREWALL.replace("10.1.0.0/16, ", "").replace("0.0.0.0/0", "192.0.2.0/24");
    let closed = FIREWALL.replace("spec:\n", "spec:\n  failsafePorts: Closed\n");
    assert_ne!(closed, FIREWALL);
    Folder::new(&[
        ("shop.yaml", CLUSTER),
        ("guarded.yaml", &guarded),
        ("services.yaml", &format!("{CLUSTER}---{SERVICES}---{switch}")),
        ("closed.yaml", &format!("{CLUSTER}---{closed}")),
        ("host.yaml", &format!("{CLUSTER}---{POLICY}")),
    ])
}

fn explain(arguments: &str, manifests: &str) -> (i32, Value) {
    let arguments = format!("explain {arguments} --manifests {manifests} -o json");
    let (code, out, errors) = folder().run(&arguments);
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}")))
}

#[test]
fn explain_and_probe_ask_the_host_firewalls_of_both_nodes() {
    let denied = [
        ("192.0.2.7 node/n1 --port 80", "ingress", "ingress[1]"),
        ("node/n2 node/n1 --port 80", "ingress", "ingress[1]"),
        ("shop/web 172.31.0.1 --port 80", "ingress", "ingress[1]"),
        ("node/n1 192.0.2.7 --port 80", "egress", "egress[0]"),
        // Its own pods too.
        ("node/n1 shop/web --port 80", "egress", "egress[0]"),
    ];
    for (ends, direction, rule) in denied {
        let (code, answer) = explain(ends, "guarded.yaml");
        let by = format!("ClusterHostFirewall edge {rule}");
        assert_eq!((code, &answer["verdict"]), (1, &json!("deny")), "{ends}: {answer}");
        assert_eq!((&answer["reason"], &answer["by"]), (&json!("policy-denied"), &json!([by])));
        let end = &answer[direction];
        assert_eq!(end["pod"], "node/n1", "{ends}: {answer}");
        assert_eq!(end["selecting"], json!(["ClusterHostFirewall edge"]));
        assert_eq!((&end["permits"], &end["by"]), (&json!(false), &json!(by)));
        assert_eq!(explain(ends, "shop.yaml").0, 0, "{ends}");
    }
    // By a service that leads to the node, or that its processes open.
    for (ends, direction, rule) in [
        ("192.0.2.7 172.31.0.1 --port 30080", "ingress", "ingress[1]"),
        ("node/n1 service/shop/outside --port 80", "egress", "egress[0]"),
    ] {
        let (code, answer) = explain(ends, "services.yaml");
        let by = json!(format!("ClusterHostFirewall edge {rule}"));
        assert_eq!((code, &answer["by"][0]), (1, &by), "{ends}: {answer}");
        let end = &answer[direction];
        assert_eq!((&end["pod"], &end["by"]), (&json!("node/n1"), &by), "{ends}: {answer}");
    }
    let allowed = [
        ("shop/web node/n1 --port 9100", json!(["ClusterHostFirewall edge ingress[0]"])),
        ("192.0.2.7 node/n1 --port 22", json!(["failsafe-port"])),
        ("192.0.2.7 node/n2 --port 80", json!([])),
        ("node/n1 node/n1 --port 80", json!([])),
        ("192.0.2.7 shop/web --port 80", json!(["default-allow"])),
    ];
    for (ends, by) in allowed {
        let (code, answer) = explain(ends, "guarded.yaml");
        assert_eq!((code, &answer["by"]), (0, &by), "{ends}: {answer}");
    }
    assert_eq!(explain("192.0.2.7 node/n1 --port 22", "closed.yaml").0, 1);
    let cases = "[{from: shop/web, to: node/n1, port: 80, protocol: TCP, expect: deny}]";
    let folder = Folder::new(&[
        ("shop.yaml", &format!("{CLUSTER}---{FIREWALL}")),
        ("cases.yaml", cases),
        ("suite.yaml", "- {from: '*', to: node/n1, port: 80, expect: deny}\n"),
    ]);
    let (code, out, errors) = folder.run("probe --manifests shop.yaml --cases cases.yaml");
    assert_eq!(code, 0, "{out}{errors}");
    let (code, out, errors) = folder.run("test --manifests shop.yaml suite.yaml");
    assert!(code == 0 && out.ends_with("1 case, 0 failed\n"), "{out}{errors}");
}

#[test]
fn diff_compares_host_firewalls_for_nodes_of_the_files_and_for_others() {
    let opened = FIREWALL.replace("{number: 9100}", "{number: 9101}");
    let folder = Folder::new(&[
        ("shop.yaml", CLUSTER),
        ("guarded.yaml", &format!("{CLUSTER}---{FIREWALL}")),
        ("opened.yaml", &format!("{CLUSTER}---{opened}")),
        ("old.yaml", FIREWALL),
        ("new.yaml", &opened),
    ]);
    let (code, out, _) = folder.run("diff guarded.yaml shop.yaml");
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("node/n1 TCP 1-21 from"), "{out}");
    assert!(out.contains("before: ClusterHostFirewall edge ingress[1]"), "{out}");
    assert!(out.contains("shop/web TCP 1-6442 from node/n1"), "{out}");
    assert_eq!(folder.run("diff guarded.yaml guarded.yaml").0, 0);
    assert_eq!(folder.run("diff shop.yaml guarded.yaml").0, 0, "closes");
    let (code, out, _) = folder.run("diff guarded.yaml opened.yaml");
    let words = "  node/n1 TCP 9101 from any pod with app=web of any other namespace (none in these \
                 files), shop/web";
    assert!(code == 1 && out.contains(words), "{out}");
    // No file has a node.
    let (code, out, _) = folder.run("diff old.yaml new.yaml");
    let words =
        "  any node with role=edge (none in these files) TCP 9101 from any pod with app=web";
    assert!(code == 1 && out.contains(words), "{out}");
}

#[test]
fn prove_knows_what_reaches_nodes() {
    let statements = "
- {name: closed, from: internet, to: node/n1, protocol: TCP, port: 80, expect: deny}
- {name: failsafe, from: internet, to: node/n1, protocol: TCP, port: '*', expect: deny}
- {name: open, from: internet, to: node/n2, protocol: TCP, port: 80, expect: deny}
- {name: own pod, from: node/n1, to: shop/web, protocol: TCP, port: 80, expect: deny}
";
    // A node may have addresses of both families, whatever the files say; the pod too.
    let firewall = FIREWALL.replace("[0.0.0.0/0]", "[0.0.0.0/0, '::/0']");
    let firewall = firewall.replace("[10.1.0.0/16, ", "[10.1.0.0/16, '::/0', ");
    let folder = Folder::new(&[
        ("shop.yaml", &format!("{CLUSTER}---{firewall}")),
        ("statements.yaml", statements),
    ]);
    let (code, out, errors) = folder.run("prove --manifests shop.yaml statements.yaml -o json");
    assert_eq!(code, 1, "{out}{errors}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let proved: Vec<bool> = lines.iter().map(|line| line["proved"] == true).collect();
    assert_eq!(proved, [true, false, false, true], "{out}");
    let found = &lines[1]["counterexample"];
    let [to, port] = [&found["to"], &found["port"]];
    assert_eq!((to, port), (&json!("node/n1"), &json!(22)), "{out}");
}

#[test]
fn explain_says_that_an_end_is_on_the_host_network() {
    let (code, out, _) = folder().run("explain shop/web shop/db --port 5432 --manifests host.yaml");
    assert_eq!(code, 0, "{out}");
    let note = "note: shop/db is on the host network: policies see it as node n2";
    assert!(out.contains(note), "{out}");
    let (_, answer) = explain("shop/db shop/web", "host.yaml");
    assert_eq!(answer["notes"].as_array().map(Vec::len), Some(1), "{answer}");
    let (_, answer) = explain("192.0.2.7 shop/web", "host.yaml");
    assert_eq!(answer["notes"], json!([]), "{answer}");
}

#[test]
fn lint_warns_of_policies_for_pods_on_the_host_network_and_for_nothing() {
    let peer = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]
";
    let elsewhere = FIREWALL.replace("{role: edge}", "{role: egde}");
    let all = [CLUSTER, POLICY, peer, &elsewhere].join("---");
    let folder = Folder::new(&[("shop.yaml", &all)]);
    let (code, out, _) = folder.run("lint shop.yaml --strict -o json");
    assert_eq!(code, 1, "{out}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<(&str, &str)> = lines
        .iter()
        .filter(|it| it["severity"] == "warning")
        .map(|it| (it["object"].as_str().unwrap(), it["code"].as_str().unwrap()))
        .collect();
    let expected = [
        ("NetworkPolicy shop/db", "selects-only-host-network"),
        ("NetworkPolicy shop/web", "peer-selects-only-host-network"),
        ("ClusterHostFirewall edge", "selects-no-node"),
    ];
    assert_eq!(found, expected, "{out}");
    let none = POLICY.replace("app: db", "app: cache");
    let folder = Folder::new(&[("shop.yaml", &[CLUSTER, &none].join("---"))]);
    let (_, out, _) = folder.run("lint shop.yaml");
    assert!(
        out.contains(
            "selects no pod of namespace shop, so it does nothing; correct its labels, or say"
        ),
        "{out}"
    );
}
