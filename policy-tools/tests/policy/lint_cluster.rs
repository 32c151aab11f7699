//! Mistakes that services, containers, DNS and tiers show, and findings that are left out.

use std::fs;

use policy_tools::policy::lint::{CHECKS, Finding, Ignored, LintOptions, lint};
use testkit::TempDir;

use super::{deployment, policy};

fn with(text: &str, options: &LintOptions<'_>) -> Vec<Finding> {
    let folder = TempDir::new("lint-cluster");
    fs::write(folder.path().join("all.yaml"), text).unwrap();
    let found = lint(&[folder.path().to_path_buf()], options);
    found.unwrap_or_else(|faults| panic!("{faults:?}")).findings
}

/// `CODE OBJECT: MESSAGE` of each finding.
fn said(text: &str) -> Vec<String> {
    words(&with(text, &LintOptions::default()))
}

fn words(found: &[Finding]) -> Vec<String> {
    found.iter().map(|it| format!("{} {}: {}", it.code, it.object, it.message)).collect()
}

/// A shop whose web listens on 8080 and whose service leads there from 80.
fn shop() -> String {
    deployment("shop", "web", ", ports: [{name: http, containerPort: 8080}]")
        + &deployment("shop", "db", ", ports: [{containerPort: 5432}]")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
           spec: {clusterIP: 10.96.7.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n"
}

fn web(rest: &str) -> String {
    shop() + &policy("shop", "web", &format!("podSelector: {{matchLabels: {{app: web}}}}, {rest}"))
}

#[test]
fn the_port_of_a_service_is_not_that_of_its_pods() {
    let ingress = |port: &str| said(&web(&format!("ingress: [{{ports: [{{port: {port}}}]}}]")));
    assert_eq!(
        ingress("80"),
        [
            "service-port NetworkPolicy shop/web: 80 is a port of service shop/web, which leads to 8080 of \
          the pods: policies are about the pods' port, so write 8080"
        ]
    );
    assert_eq!(
        ingress("9090"),
        [
            "port-of-no-container NetworkPolicy shop/web: no container of the selected pod has TCP port \
          9090, only TCP 8080: write the one that is meant, or declare it as a containerPort"
        ]
    );
    for sound in ["8080", "http", "8000, endPort: 8999", "15020"] {
        assert_eq!(ingress(sound), [""; 0], "{sound}");
    }
    let to_db = "policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: \
                 [{port: 5433}]}, {ports: [{port: 53, protocol: UDP}]}]";
    assert_eq!(
        said(&web(to_db)),
        [
            "port-of-no-container NetworkPolicy shop/web: no container of the pod that the peers select has \
          TCP port 5433, only TCP 5432: write the one that is meant, or declare it as a containerPort"
        ]
    );
    // Containers need not declare their ports.
    let silent = deployment("shop", "web", "")
        + &policy("shop", "web", "podSelector: {}, ingress: [{ports: [{port: 9090}]}]");
    assert_eq!(said(&silent), [""; 0]);
}

#[test]
fn a_port_is_one_of_pods_where_a_service_or_a_probe_leads_there() {
    let pod = "ports: [{containerPort: 15090}], readinessProbe: {httpGet: {port: 8000}}";
    let ports = "ingress: [{ports: [{port: 443}, {port: 8000}, {port: 15001}, {port: 15053, protocol: UDP}]}]";
    let text = deployment("istio-system", "gateway", &format!(", {pod}"))
        + &policy("istio-system", "gateway", &format!("podSelector: {{}}, {ports}"));
    let found = said(&text);
    assert!(found.len() == 1 && found[0].contains("has TCP port 443, only TCP 8000"), "{found:?}");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: gateway, namespace: istio-system}\n\
                   spec: {selector: {app: gateway}, ports: [{port: 443, targetPort: 443}]}\n";
    assert_eq!(said(&(text + service)), [""; 0]);
}

#[test]
fn a_label_that_is_suggested_is_spelt_like_the_one_that_is_there() {
    let name = "podSelector: {matchLabels: {app.kubernetes.io/name: argocd-server}}";
    let labelled = |key: &str, value: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: shop, labels: {{{key}: {value}}}}}\n\
             spec: {{containers: [{{name: c}}]}}\n"
        )
    };
    let controllers = name.replace("server", "notifications-controller");
    let other = labelled("app.kubernetes.io/name", "argocd-application-controller");
    let found = said(&(other + &policy("shop", "server", &controllers))).remove(0);
    assert!(found.contains("; correct its labels"), "{found}");
    let hint = |pod: String| said(&(pod + &policy("shop", "server", name))).remove(0);
    assert!(
        hint(labelled("app.kubernetes.io/name", "argocd-redis")).contains("; correct its labels")
    );
    assert!(
        hint(labelled("app.kubernetes.io/name", "argocd-sever")).ends_with("name=argocd-sever?")
    );
    assert!(
        hint(labelled("app.kubernetes.io/nam", "argocd-server")).ends_with("nam=argocd-server?")
    );
}

#[test]
fn pods_that_may_open_connections_have_to_ask_for_names() {
    let db = "{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}";
    let egress = |rules: &str| said(&web(&format!("policyTypes: [Egress], egress: [{rules}]")));
    assert_eq!(
        egress(db),
        [
            "egress-without-dns NetworkPolicy shop/web: lets pods such as shop/web open connections, but no \
          policy lets them ask DNS: allow UDP and TCP 53 to kube-system"
        ]
    );
    assert_eq!(
        egress(&format!("{db}, {{ports: [{{port: 53}}]}}")),
        [
            "dns-over-tcp-only NetworkPolicy shop/web: opens DNS over TCP only, and resolvers ask over UDP \
          first: add {protocol: UDP, port: 53}"
        ]
    );
    let dns =
        "{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]}";
    let sound = [
        String::new(),
        "{}".into(),
        format!("{db}, {{ports: [{{port: 53, protocol: UDP}}]}}"),
        format!("{db}, {{to: [{{namespaceSelector: {{}}}}]}}"),
        "{to: [{ipBlock: {cidr: 198.51.100.7/32}}], ports: [{port: 443}]}".into(),
    ];
    for rules in sound {
        assert_eq!(egress(&rules), [""; 0], "{rules}");
    }
    let elsewhere = format!("{db}, {dns}");
    let found = egress(&elsewhere);
    assert!(!found.iter().any(|it| it.contains("dns")), "{found:?}");
    // Another policy may let the same pods ask.
    let other = web(&format!("policyTypes: [Egress], egress: [{db}]"))
        + &policy(
            "shop",
            "dns",
            "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 53, \
                                  protocol: UDP}]}]",
        );
    assert_eq!(said(&other), [""; 0]);
}

#[test]
fn networks_of_the_cluster_are_no_peers() {
    let from =
        |cidr: &str| said(&web(&format!("ingress: [{{from: [{{ipBlock: {{cidr: {cidr}}}}}]}}]")));
    assert_eq!(
        from("10.96.7.7/32"),
        [
            "block-of-service NetworkPolicy shop/web: 10.96.7.7/32 holds an address of service shop/web, which \
          no policy sees: connections to it are judged by the pods behind it; select these"
        ]
    );
    assert_eq!(from("10.0.0.0/8"), [""; 0]);
    assert_eq!(from("198.51.100.0/24"), [""; 0]);
    let node =
        "---\napiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.7.0.0/16]}\n";
    let text = web("ingress: [{from: [{ipBlock: {cidr: 10.7.3.0/24}}]}]") + node;
    assert_eq!(
        said(&text),
        [
            "block-of-pods NetworkPolicy shop/web: 10.7.3.0/24 holds addresses of pods, of 10.7.0.0/16: pods \
          change their addresses; select them by labels with podSelector"
        ]
    );
}

#[test]
fn a_rule_of_a_tier_that_earlier_ones_hide() {
    let options = LintOptions { workloads_elsewhere: true, ..LintOptions::default() };
    let elsewhere = |text: &str| words(&with(text, &options));
    let policy = |name: &str, priority: u16, rules: &str| {
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: \
             {{name: {name}}}\nspec:\n  tier: Admin\n  priority: {priority}\n  subject: {{namespaces: \
             {{}}}}\n  ingress: [{rules}]\n"
        )
    };
    let of = |action: &str, peer: &str| format!("{{action: {action}, from: [{peer}]}}");
    let all = "{namespaces: {}}";
    let ops = "{namespaces: {matchLabels: {team: ops}}}";
    // No pod of a namespace with team=ops is in the files, and yet all pods are before.
    let text = shop() + &policy("a", 1, &of("Deny", all)) + &policy("b", 2, &of("Accept", ops));
    assert_eq!(
        elsewhere(&text),
        ["shadowed-rule ClusterNetworkPolicy b: never decides about any pod that could exist: \
          ClusterNetworkPolicy a ingress[0] comes first and says otherwise; move it before, or remove it"]
    );
    let text = shop() + &policy("a", 1, &of("Accept", ops)) + &policy("b", 2, &of("Deny", all));
    assert_eq!(elsewhere(&text), [""; 0]);
    // Two rules that hide a third one together.
    let no_ops = "{namespaces: {matchExpressions: [{key: team, operator: NotIn, values: [ops]}]}}";
    let both = format!("{}, {}", of("Accept", ops), of("Accept", no_ops));
    let text = shop() + &policy("a", 1, &both) + &policy("b", 2, &of("Accept", all));
    let found = elsewhere(&text);
    assert!(
        found[0].contains("ingress[0] and ClusterNetworkPolicy a ingress[1] come first"),
        "{found:?}"
    );
    assert!(found[0].starts_with("redundant-rule ClusterNetworkPolicy b"), "{found:?}");
}

#[test]
fn pods_of_operators_are_not_guessed_at() {
    let selects = policy(
        "monitoring",
        "prometheus",
        "podSelector: {matchLabels: {app.kubernetes.io/name: prometheus}}, ingress: [{from: \
         [{podSelector: {matchLabels: {app.kubernetes.io/name: alertmanager}}}]}]",
    );
    let adapter = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: monitoring}\n\
                   spec: {template: {metadata: {labels: {app.kubernetes.io/name: prometheu}}, spec: \
                   {containers: [{name: c}]}}}\n";
    let codes = |text: &str, options: &LintOptions<'_>| -> Vec<&str> {
        with(text, options).iter().map(|it| it.code).collect()
    };
    let usual = LintOptions::default();
    assert_eq!(codes(&selects, &usual), [""; 0], "files without any pod say nothing about pods");
    let text = selects + adapter;
    assert_eq!(codes(&text, &usual), ["selects-no-pod", "peer-selects-no-pod"]);
    let elsewhere = LintOptions { workloads_elsewhere: true, ..LintOptions::default() };
    assert_eq!(codes(&text, &elsewhere), [""; 0]);
    // An operator's object says itself which labels its pods have.
    let custom = |name: &str| {
        format!(
            "---\napiVersion: monitoring.coreos.com/v1\nkind: {name}\nmetadata: {{name: x, namespace: \
             monitoring, labels: {{app.kubernetes.io/name: {}}}}}\n",
            name.to_lowercase()
        )
    };
    let text = text + &custom("Prometheus") + &custom("Alertmanager");
    assert_eq!(codes(&text, &usual), [""; 0]);
}

#[test]
fn a_comment_or_a_file_leaves_findings_out() {
    let rule = "ingress: [{ports: [{port: 9090}]}]";
    let text = web(rule);
    let head = "apiVersion: networking.k8s.io/v1";
    let spoilt = |comment: &str| text.replace(head, &format!("{comment}\n{head}"));
    assert_eq!(said(&spoilt("# podgate-lint: ignore port-of-no-container")), [""; 0]);
    assert_eq!(said(&spoilt("# podgate-lint: ignore host-bits")).len(), 1);
    assert_eq!(
        said(&(text.trim_end().to_owned() + " # podgate-lint: ignore port-of-no-container\n")),
        [""; 0]
    );
    let above = text.replace("spec: {podSelector: {matchLabels: {app: web}}, ingress", "spec:\n  podSelector: {matchLabels: {app: web}}\n  # podgate-lint: ignore port-of-no-container\n  ingress");
    let above = above.replace("[{ports: [{port: 9090}]}]}", "[{ports: [{port: 9090}]}]");
    assert_eq!(said(&above), [""; 0]);
    let wrong = said(&spoilt("# podgate-lint: ignore host-bit"));
    assert!(
        wrong.iter().any(|it| it.ends_with("host-bit is not a check; did you mean host-bits?")),
        "{wrong:?}"
    );
    let by = |lines: &str| {
        let ignored = Ignored::read(lines).unwrap();
        with(&text, &LintOptions { ignored, ..LintOptions::default() }).len()
    };
    assert_eq!(by("port-of-no-container"), 0);
    assert_eq!(by("# why\nport-of-no-container NetworkPolicy shop/web\n"), 0);
    assert_eq!(by("port-of-no-container all.yaml"), 0);
    assert_eq!(by("port-of-no-container NetworkPolicy shop/db\nhost-bits\n"), 1);
    assert_eq!(
        Ignored::read("x\n").unwrap_err(),
        ["line 1: x is not a check; podgate policy lint --help lists them"]
    );
}

#[test]
fn every_check_has_its_line_in_the_documents() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy-lint.md");
    let page = fs::read_to_string(page).unwrap();
    for check in CHECKS {
        assert!(
            page.lines().any(|it| it.starts_with('|') && it.contains(&format!("`{check}`"))),
            "{check}"
        );
    }
}
