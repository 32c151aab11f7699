//! Mistakes that people make, each found by its code and place.

use std::fs;

use policy_tools::policy::lint::{Finding, LintOptions, lint};
use testkit::TempDir;

use super::{deployment, shop};

fn findings(text: &str) -> Vec<Finding> {
    let folder = TempDir::new("lint");
    fs::write(folder.path().join("all.yaml"), text).unwrap();
    let found = lint(&[folder.path().to_path_buf()], &LintOptions::default());
    found.unwrap_or_else(|faults| panic!("{faults:?}")).findings
}

/// Findings of lint about one policy of the shop, `CODE LINE:COLUMN MESSAGE`, lines counted from the
/// beginning of the policy's `spec`.
fn about(spec: &str) -> Vec<String> {
    let head = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                metadata: {name: tested, namespace: shop}\nspec:\n";
    let text = shop() + head + spec;
    let before = (shop() + head).lines().count() as u64;
    let found = findings(&text);
    let own = found.iter().filter(|it| it.object == "NetworkPolicy shop/tested");
    own.map(|it| {
        let line = it.line.saturating_sub(before);
        format!("{} {line}:{} {}", it.code, it.column, it.message)
    })
    .collect()
}

#[test]
fn a_sound_set_has_no_findings() {
    assert_eq!(findings(&shop()), []);
}

#[test]
fn mistakes_and_their_places() {
    let cases: [(&str, &str); 11] = [
        (
            "  podSelector: {matchLabels: {app: fronted}}\n",
            "selects-no-pod 1:16 selects no pod of namespace shop, so it does nothing; did you mean \
             app=frontend?",
        ),
        (
            "  podSelector: {matchLabels: {app: db}}\n  ingress:\n  - from:\n    - podSelector: \
             {matchLabels: {app: backnd}}\n    ports: [{port: 1}]\n",
            "peer-selects-no-pod 4:7 the peer selects no pod of namespace shop, so it stands for nothing; did \
             you mean app=backend?",
        ),
        (
            "  podSelector: {matchLabels: {app: db}}\n  ingress:\n  - from:\n    - \
             namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}\n    - \
             podSelector: {matchLabels: {app: prometheus}}\n    ports: [{port: 1}]\n",
            "or-for-and 5:7 the peer selects no pod of the policy's namespace, and the item with the \
             namespaceSelector beside it selects every pod there: to mean both together, make them one \
             item",
        ),
        (
            "  podSelector: {matchLabels: {app: backend}}\n  ingress:\n  - ports:\n    - port: htp\n",
            "unknown-port-name 4:13 no container of the selected pod has a TCP port htp, so no port is \
             meant; did you mean http?",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  ingress:\n  - from: []\n",
            "opens-to-all 3:11 `from: []` means any peer; leave the rule out to allow none",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  policyTypes: [Ingress]\n  egress:\n  \
             - ports: [{port: 53}]\n",
            "egress-without-type 4:5 the egress rules mean nothing, as policyTypes leaves Egress out; add \
             it there, or remove them",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  policyTypes: [Egress]\n  ingress:\n  \
             - ports: [{port: 53}]\n",
            "ingress-without-type 4:5 the ingress rules mean nothing, as policyTypes leaves Ingress out; \
             add it there, or remove them",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  ingress:\n  - from:\n    - ipBlock: \
             {cidr: 198.51.100.7/24}\n",
            "host-bits 4:23 198.51.100.7/24 means 198.51.100.0/24, as it has bits beyond its prefix: write \
             that, or the prefix that is meant",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  ingress:\n  - from:\n    - ipBlock: \
             {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}\n",
            "except-outside 4:44 11.0.0.0/16 is not inside 10.0.0.0/8, so it takes nothing away; correct or \
             remove it",
        ),
        (
            "  podSelector: {matchLabels: {app: frontend}}\n  ingress:\n  - from:\n    - ipBlock: \
             {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}\n",
            "except-is-all 4:44 10.0.0.0/8 is all of 10.0.0.0/8, so the peer matches no address; remove one of \
             them",
        ),
        (
            "  podSelector: {matchLabels: {app: backend}}\n  ingress:\n  - {from: [{podSelector: \
             {matchLabels: {app: db}}}], ports: [{port: 8000, endPort: 8090}]}\n  - {from: \
             [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 8080}]}\n",
            "redundant-rule 4:5 never decides: NetworkPolicy shop/tested ingress[0] comes first \
             and says the same; remove it",
        ),
    ];
    for (spec, wanted) in cases {
        assert_eq!(about(spec), [wanted], "{spec}");
    }
}

#[test]
fn policies_that_nothing_enforces() {
    let calico = "---\napiVersion: crd.projectcalico.org/v1\nkind: NetworkPolicy\n\
                  metadata: {name: x, namespace: shop}\nspec: {}\n";
    let misspelt = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicies\n\
                    metadata: {name: y, namespace: shop}\nspec: {}\n";
    let found = findings(&(shop() + calico + misspelt));
    let said: Vec<String> = found.iter().map(|it| format!("{} {}", it.code, it.object)).collect();
    assert_eq!(
        said,
        ["not-enforced-here NetworkPolicy shop/x", "not-enforced-here NetworkPolicies shop/y"]
    );
}

#[test]
fn the_kinds_of_v1alpha1_are_checked_as_cluster_network_policies_are() {
    let policy = |kind: &str, name: &str, spec: &str| {
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: {kind}\nmetadata: {{name: \
             {name}}}\nspec:\n  subject: {{namespaces: {{}}}}\n{spec}"
        )
    };
    let rules = "  priority: 1\n  ingress:\n  - {action: Deny, from: [{namespaces: {}}]}\n  \
                 - {action: Allow, from: [{namespaces: {}}]}\n";
    let base = "  egress:\n  - {action: Deny, to: [{pods: {namespaceSelector: {}, podSelector: \
                {matchLabels: {app: fronted}}}}]}\n";
    let fault = "  priority: 1\n  ingress:\n  - {action: Accept, from: [{namespaces: {}}]}\n";
    let said = |policies: &str| -> Vec<String> {
        let found = findings(&(shop() + policies));
        found.iter().map(|it| format!("{} {}: {}", it.code, it.object, it.message)).collect()
    };
    let sound = policy("AdminNetworkPolicy", "closed", rules)
        + &policy("BaselineAdminNetworkPolicy", "default", base);
    assert_eq!(
        said(&sound),
        [
            "shadowed-rule AdminNetworkPolicy closed: never decides: an earlier rule matches the same \
             connections; move it before that, or remove it",
            "peer-selects-no-pod BaselineAdminNetworkPolicy default: the peer selects no pod, so it stands for \
             nothing; did you mean app=frontend?",
        ]
    );
    let wrong = said(&policy("AdminNetworkPolicy", "wrong", fault));
    let invalid = "invalid AdminNetworkPolicy wrong: spec.ingress[0].action: is none of \"Allow\", \
                   \"Deny\", \"Pass\"";
    assert!(wrong.iter().any(|it| it == invalid), "{wrong:?}");
}

#[test]
fn a_rule_behind_one_that_denies_is_shadowed() {
    let admin = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
                 metadata: {name: closed}\nspec:\n  tier: Admin\n  priority: 1\n  subject: \
                 {namespaces: {}}\n  ingress:\n  - {action: Deny, from: [{namespaces: {}}]}\n";
    let found = findings(&(shop() + admin));
    let said: Vec<String> = found
        .iter()
        .filter(|it| it.code == "shadowed-rule")
        .map(|it| format!("{}: {}", it.object, it.message))
        .collect();
    assert_eq!(said, Vec::<String>::new(), "what lets one label in is not compared with all pods");
    let same = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
                metadata: {name: closed}\nspec:\n  tier: Admin\n  priority: 1\n  subject: \
                {namespaces: {}}\n  ingress:\n  - {action: Deny, from: [{namespaces: {}}]}\n  \
                - {action: Accept, from: [{namespaces: {}}]}\n";
    let found = findings(&(shop() + same));
    let said: Vec<String> = found
        .iter()
        .filter(|it| it.code == "shadowed-rule")
        .map(|it| format!("{}: {}", it.object, it.message))
        .collect();
    assert_eq!(
        said,
        [
            "ClusterNetworkPolicy closed: never decides: an earlier rule matches the same connections; move it before \
             that, or remove it"
        ]
    );
}

#[test]
fn a_fault_has_its_place_and_makes_the_set_unusable() {
    let broken = deployment("shop", "x", "")
        + "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
           metadata: {name: broken, namespace: shop}\nspec:\n  podSelector: {}\n  ingress:\n  \
           - from:\n    - ipBlock: {cidr: nonsense}\n";
    let found = findings(&broken);
    let invalid: Vec<&Finding> = found.iter().filter(|it| it.code == "invalid").collect();
    assert_eq!(invalid.len(), 1, "{found:?}");
    let line = broken.lines().position(|line| line.contains("nonsense")).unwrap() as u64 + 1;
    assert_eq!(invalid[0].line, line);
}
