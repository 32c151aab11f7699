//! Cluster-wide policies and domain names in each of the commands of `podgate policy`.

use std::fs;

use serde_json::{Value, json};

use crate::policy::{Folder, SHOP};

#[test]
fn help_of_probe_names_cluster_wide_policies() {
    let folder = Folder::new(&[("shop.yaml", SHOP)]);
    for flag in ["-h", "--help"] {
        let (_, help, _) = folder.run(&format!("probe {flag}"));
        assert!(help.contains("clusternetworkpolicy,clusteregressfirewall"), "{help}");
    }
}

#[test]
fn names_are_asked_about_with_the_addresses_that_are_given() {
    let names = SHOP.to_owned()
        + "---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: outside}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress:
  - action: Accept
    to: [{domainNames: [api.example.com]}]
    protocols: [{tcp: {destinationPort: {number: 443}}}]
  - action: Deny
    to: [{networks: [0.0.0.0/0]}]
";
    let cases = "- {from: shop/app=web, to: api.example.com, port: 443, expect: allow}\n\
                 - {from: shop/app=web, to: api.example.com, port: 80, expect: deny}\n";
    let folder = Folder::new(&[("shop.yaml", &names), ("cases.yaml", cases)]);
    let resolve = "--resolve api.example.com=192.0.2.7 --resolve api.example.com=192.0.2.8";
    let explain = |arguments: &str| {
        folder.run(&format!("explain shop/web api.example.com --manifests shop.yaml {arguments}"))
    };
    let (code, out, _) = explain(&format!("--port 443 {resolve}"));
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("by ClusterNetworkPolicy outside egress[0]"), "{out}");
    assert!(out.contains("192.0.2.8: allow"), "{out}");
    assert_eq!(explain(&format!("--port 80 {resolve}")).0, 1);
    let (code, _, said) = explain("--port 443");
    assert_eq!(code, 2);
    assert!(said.contains("api.example.com has no address"), "{said}");
    assert_eq!(explain("--port 443 --resolve api.example.com=nowhere").0, 2);
    let (code, out, _) = folder.run(&format!("test --manifests shop.yaml cases.yaml {resolve}"));
    assert_eq!(code, 0, "{out}");
    let probe = format!("probe --manifests shop.yaml --cases - -o json {resolve}");
    fs::write(
        folder.0.path().join("question"),
        r#"{"from": "shop/web", "to": "api.example.com", "protocol": "TCP", "port": 443, "expect": "allow"}"#,
    )
    .unwrap();
    let (code, out, _) = folder.run_on("question", &probe);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["reason"]), (0, &json!("policy-allowed")), "{out}");
    let own = "explain shop/web api.example.com --manifests shop.yaml --port 443 \
               --resolve api.example.com=169.254.169.254";
    let (code, _, said) = folder.run(own);
    assert_eq!(code, 1);
    assert!(said.contains("169.254.169.254: an address of the cluster or a special one"), "{said}");
}

#[test]
fn the_kinds_of_v1alpha1_count_in_every_offline_command() {
    let policies = SHOP.to_owned()
        + "---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: monitoring}
spec:
  priority: 10
  subject: {namespaces: {}}
  ingress:
  - name: metrics
    action: Allow
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
    ports: [{portNumber: {protocol: TCP, port: 9187}}]
  - action: Pass
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]
    ports: [{portRange: {protocol: TCP, start: 5000, end: 6000}}]
  - action: Deny
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]
    ports: [{portRange: {start: 9000, end: 10000}}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress:
  - action: Deny
    from: [{namespaces: {}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: scraper, namespace: monitoring}
spec: {template: {metadata: {labels: {app: scraper}}}}
";
    let cases = "\
- {from: monitoring/app=scraper, to: shop/app=db, port: 9187, expect: allow}
- {from: monitoring/app=scraper, to: shop/app=db, port: 5432, expect: deny}
- {from: shop/app=web, to: shop/app=db, port: 5432, expect: allow}
- {from: shop/app=web, to: shop/app=db, port: 5433, expect: deny}
- {from: shop/app=db, to: shop/app=web, port: 9000, expect: deny}
- {from: shop/app=db, to: shop/app=web, port: 80, expect: deny}
- {from: internet, to: shop/app=web, port: 80, expect: allow}
- {from: any-pod, to: shop/app=web, port: 80, expect: deny}
";
    let statements = "- {name: no pod reaches the web, from: any-pod, to: shop/app=web, protocol: TCP, \
                      port: 80, expect: deny}\n";
    let folder = Folder::new(&[
        ("shop.yaml", SHOP),
        ("all.yaml", &policies),
        ("cases.yaml", cases),
        ("statements.yaml", statements),
    ]);
    let (code, out, errors) = folder.run("test --manifests all.yaml cases.yaml");
    assert_eq!(code, 0, "{out}{errors}");
    let by = |connection: &str| {
        let (_, out, errors) =
            folder.run(&format!("explain {connection} --manifests all.yaml -o json"));
        let answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}"));
        answer["by"].clone()
    };
    let admin = by("monitoring/scraper shop/db --port 9187");
    assert_eq!(admin, json!(["AdminNetworkPolicy monitoring ingress[0]"]));
    let base = by("shop/db shop/web --port 80");
    assert_eq!(base, json!(["BaselineAdminNetworkPolicy default ingress[0]"]));
    let (code, out, errors) = folder.run("prove --manifests all.yaml statements.yaml");
    assert_eq!(code, 0, "{out}{errors}");
    let (code, out, errors) = folder.run("diff all.yaml shop.yaml");
    assert_eq!(code, 1, "{out}{errors}");
    assert!(out.contains("BaselineAdminNetworkPolicy default ingress[0]"), "{out}");
    let (code, out, errors) = folder.run("lint all.yaml --strict");
    assert_eq!(code, 0, "{out}{errors}");
    // What the schema forbids makes the set unusable, as with a ClusterNetworkPolicy.
    let wrong = policies.replace("action: Allow", "action: Accept");
    fs::write(folder.0.path().join("all.yaml"), wrong).unwrap();
    let (code, _, errors) = folder.run("test --manifests all.yaml cases.yaml");
    assert_eq!(code, 2);
    let fault = "(AdminNetworkPolicy monitoring): spec.ingress[0].action: is none of";
    assert!(errors.contains(fault), "{errors}");
}
