//! Three applications, and twelve mistakes that people make with their policies: each is found by
//! lint, or by the applications' own cases.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use policy_tools::input::Manifests;
use policy_tools::policy::diff::{Change, compare};
use policy_tools::policy::lint::{LintOptions, lint};
use policy_tools::policy::run::Runner;
use policy_tools::policy::suite::Suite;
use policy_tools::probe::DomainAddresses;
use testkit::TempDir;

fn applications() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/applications")
}

const FOLDERS: [&str; 4] = ["cluster", "forum", "monitoring", "shop"];

/// A copy of the applications in which one file says something else.
fn spoilt(file: &str, from: &str, to: &str) -> TempDir {
    let folder = TempDir::new("mistakes");
    for name in FOLDERS {
        fs::create_dir(folder.path().join(name)).unwrap();
        for part in ["workloads.yaml", "policies.yaml"] {
            let path = format!("{name}/{part}");
            let mut text = fs::read_to_string(applications().join(&path)).unwrap();
            if path == file {
                assert!(text.contains(from), "{file} holds no {from}");
                text = text.replacen(from, to, 1);
            }
            fs::write(folder.path().join(path), text).unwrap();
        }
    }
    folder
}

/// Findings of lint, `CODE OBJECT: MESSAGE`.
fn linted(folder: &Path) -> Vec<String> {
    let found = lint(&[folder.to_path_buf()], &LintOptions::default())
        .unwrap_or_else(|faults| panic!("{faults:?}"));
    found.findings.iter().map(|it| format!("{} {}: {}", it.code, it.object, it.message)).collect()
}

/// The cases of the applications that do not hold, each with its first failure.
fn failed(folder: &Path) -> Vec<String> {
    let suite = Suite::read(&fs::read(applications().join("cases.yaml")).unwrap()).unwrap();
    let suites = [("cases.yaml".to_owned(), suite)];
    let mut runner = Runner::new(
        Manifests::load(&[folder.to_path_buf()]).unwrap(),
        &suites,
        DomainAddresses::default(),
    )
    .unwrap();
    let outcomes = runner.run("cases.yaml", &suites[0].1).unwrap();
    let failed = outcomes.iter().filter(|it| !it.holds());
    failed.map(|it| format!("{}: {}", it.name, it.failures[0])).collect()
}

#[test]
fn the_applications_are_sound() {
    let folder = spoilt("", "", "");
    assert_eq!(linted(folder.path()), [""; 0]);
    assert_eq!(failed(folder.path()), [""; 0]);
    let found = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let pods = found.objects.iter().filter(|it| matches!(it, control::Object::Pod(_))).count();
    assert!(pods >= 30, "{pods}");
}

#[test]
fn twelve_mistakes_and_what_is_said_about_them() {
    let name = |app: &str| format!("app.kubernetes.io/name: {app}");
    let orders = "  podSelector:\n    matchLabels:\n      app.kubernetes.io/name: orders-db\n";
    // File, its text, the text with a mistake, the message of lint.
    let by_lint: [(&str, String, String, &str); 10] = [
        (
            "shop/policies.yaml",
            orders.into(),
            orders.replace("orders-db", "order-db"),
            "selects-no-pod NetworkPolicy shop-data/orders-db: selects no pod of namespace shop-data, \
             so it does nothing; did you mean app.kubernetes.io/name=orders-db?",
        ),
        (
            "shop/policies.yaml",
            format!("            {}\n      ports:\n        - port: amqp", name("mailer")),
            format!("            {}\n      ports:\n        - port: amqp", name("mail")),
            "peer-selects-no-pod NetworkPolicy shop-data/queue: the peer selects no pod, so it stands for \
             nothing; did you mean app.kubernetes.io/name=mailer?",
        ),
        (
            "shop/policies.yaml",
            format!(
                "kubernetes.io/metadata.name: shop\n          podSelector:\n            matchLabels:\n              {}",
                name("cart")
            ),
            format!(
                "kubernetes.io/metadata.name: shopp\n          podSelector:\n            matchLabels:\n              {}",
                name("cart")
            ),
            "peer-selects-no-pod NetworkPolicy shop-data/cart-cache: the peer selects no pod, so it stands \
             for nothing; did you mean a namespace with kubernetes.io/metadata.name=shop?",
        ),
        (
            "shop/policies.yaml",
            format!(
                "          podSelector:\n            matchLabels:\n              {}",
                name("cart")
            ),
            format!(
                "        - podSelector:\n            matchLabels:\n              {}",
                name("cart")
            ),
            "or-for-and NetworkPolicy shop-data/cart-cache: the peer selects no pod of the policy's \
             namespace, and the item with the namespaceSelector beside it selects every pod there: to \
             mean both together, make them one item",
        ),
        (
            "forum/policies.yaml",
            "  name: jobs\n  namespace: forum\nspec:\n  podSelector:\n    matchLabels:\n      \
             app.kubernetes.io/name: migrate\n  policyTypes: [Egress]"
                .into(),
            "  name: jobs\n  namespace: forum\nspec:\n  podSelector:\n    matchLabels:\n      \
             app.kubernetes.io/name: migrate\n  policyTypes: [Ingress]"
                .into(),
            "egress-without-type NetworkPolicy forum/jobs: the egress rules mean nothing, as \
             policyTypes leaves Egress out; add it there, or remove them",
        ),
        (
            "monitoring/policies.yaml",
            format!(
                "    - from:\n        - podSelector:\n            matchLabels:\n              {}\n      ports:\n        - port: http",
                name("grafana")
            ),
            "    - from: []\n      ports:\n        - port: http".into(),
            "opens-to-all NetworkPolicy monitoring/prometheus: `from: []` means any peer; leave the rule out \
             to allow none",
        ),
        (
            "shop/policies.yaml",
            "        - port: redis".into(),
            "        - port: reddis".into(),
            "unknown-port-name NetworkPolicy shop-data/cart-cache: no container of the selected pod \
             has a TCP port reddis, so no port is meant; did you mean redis?",
        ),
        (
            "shop/policies.yaml",
            "cidr: 198.51.100.0/24".into(),
            "cidr: 198.51.100.20/24".into(),
            "host-bits NetworkPolicy shop/payment: 198.51.100.20/24 means 198.51.100.0/24, as it has \
             bits beyond its prefix: write that, or the prefix that is meant",
        ),
        (
            "cluster/policies.yaml",
            "cidr: 0.0.0.0/0\n            except:\n              - 10.0.0.0/8\n      ports:".into(),
            "cidr: 198.18.0.0/15\n            except:\n              - 10.0.0.0/8\n      ports:"
                .into(),
            "except-outside NetworkPolicy ingress/proxy: 10.0.0.0/8 is not inside 198.18.0.0/15, so it takes \
             nothing away; correct or remove it",
        ),
        (
            "forum/policies.yaml",
            "kind: NetworkPolicy\nmetadata:\n  name: media".into(),
            "kind: NetworkPolicies\nmetadata:\n  name: media".into(),
            "not-enforced-here NetworkPolicies forum/media: NetworkPolicies is not a kind of \
             networking.k8s.io/v1, so nothing enforces it; write NetworkPolicy",
        ),
    ];
    for (file, from, to, wanted) in by_lint {
        let folder = spoilt(file, &from, &to);
        let found = linted(folder.path());
        assert!(found.contains(&wanted.to_owned()), "wanted {wanted}\nfound {found:#?}");
    }
    // Cases find mistakes that are valid policies with another meaning.
    let by_cases: [(&str, String, String, &str); 2] = [
        (
            "shop/policies.yaml",
            "    - from:\n        - namespaceSelector:\n            matchLabels:\n              kubernetes.io/metadata.name: ingress\n          podSelector:\n            matchLabels:\n              app.kubernetes.io/name: proxy\n      ports:\n        - port: http".into(),
            "    - from:\n        - namespaceSelector:\n            matchLabels:\n              kubernetes.io/metadata.name: ingress\n          podSelector:\n            matchLabels:\n              app.kubernetes.io/name: proxy\n      ports:\n        - port: 80".into(),
            "the proxy reaches the shop: ingress/proxy to service/shop/frontend TCP 80: deny, \
             policy-denied, by default-deny of NetworkPolicy shop/closed, NetworkPolicy \
             shop/frontend, NetworkPolicy shop/metrics; closest: NetworkPolicy shop/frontend \
             ingress[0] is about TCP 80, not TCP 8080",
        ),
        (
            "forum/policies.yaml",
            "        - port: 53\n          protocol: UDP\n".into(),
            String::new(),
            "the forum resolves names: forum/api to service/kube-system/dns UDP 53: deny, \
             policy-denied, by default-deny of NetworkPolicy forum/api, NetworkPolicy forum/closed, \
             NetworkPolicy forum/dns; closest: NetworkPolicy forum/dns egress[0] is about TCP 53, not \
             UDP 53",
        ),
    ];
    for (file, from, to, wanted) in by_cases {
        let folder = spoilt(file, &from, &to);
        let found = failed(folder.path());
        assert!(found.contains(&wanted.to_owned()), "wanted {wanted}\nfound {found:#?}");
    }
}

#[test]
fn a_difference_names_the_one_port_that_opens() {
    let folder = spoilt(
        "shop/policies.yaml",
        "- port: postgres\n",
        "- port: postgres\n        - port: 22\n",
    );
    let old = Manifests::load(&FOLDERS.map(|it| applications().join(it))).unwrap();
    let new = Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let started = Instant::now();
    let found = compare(old, new).unwrap();
    println!("three applications compared in {:?}", started.elapsed());
    let opened: Vec<_> =
        found.differences.iter().filter(|it| it.change == Change::Opened).collect();
    assert_eq!(opened.len(), 1, "{found:?}");
    assert_eq!((&*opened[0].to, opened[0].ports), ("shop-data/orders-db", Some((22, 22))));
    let from = ["shop/checkout", "shop/cleanup"].map(str::to_owned);
    assert_eq!(opened[0].from, BTreeSet::from(from));
}

/// Each message names the remedy that the text or the files show.
#[test]
fn messages_know_the_repair() {
    let pods = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: front}\n".to_owned()
        + &super::deployment("shop", "api", ", ports: [{name: http, containerPort: 8080}]")
            .replace("metadata: {name: api,", "metadata: {name: api, labels: {tier: back},")
        + &super::deployment("front", "web", "");
    let about = |policy: &str| {
        let folder = TempDir::new("repairs");
        fs::write(folder.path().join("all.yaml"), pods.clone() + policy).unwrap();
        let found = lint(&[folder.path().to_path_buf()], &LintOptions::default()).unwrap();
        let messages = found.findings.into_iter().map(|it| it.message);
        messages.collect::<Vec<String>>().join("\n")
    };
    let of = |namespace: &str, spec: &str| super::policy(namespace, "p", spec);
    let api = "podSelector: {matchLabels: {app: api}}, ";
    let rule = |rule: &str| of("shop", &format!("{api}ingress: [{{{rule}}}]"));
    for (policy, remedy) in [
        (
            rule("from: [{namespaceSelector: {matchLabels: {name: front}}}]"),
            "the one of its name is kubernetes.io/metadata.name: front",
        ),
        (
            rule("from: [{podSelector: {matchLabels: {app: web}}}]"),
            "add namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: front}}",
        ),
        (of("default", api), "in namespace shop: correct metadata.namespace"),
        (
            of("shop", "podSelector: {matchLabels: {tier: back}}"),
            "tier=back is on Deployment shop/api itself",
        ),
        (of("shop", "podSelector: {app: api}"), "below matchLabels: {app: api}"),
        (rule("ports: [{port: '8080'}]"), "write 8080 without quotes"),
        (rule("ports: [{port: 8000-9000}]"), "write port: 8000 and endPort: 9000"),
        (rule("from: [{ipBlock: {cidr: 203.0.113.7}}]"), "write 203.0.113.7/32"),
        (rule("ports: [{port: 8080, protocol: tcp}]"), "write TCP"),
        (
            rule("").replace("networking.k8s.io/v1", "extensions/v1beta1"),
            "write networking.k8s.io/v1",
        ),
        ("---\nkind: NetworkPolicy\nspec:\n\tpodSelector: {}\n".to_owned(), "indented by a tab"),
        (
            rule("")
                .replace("networking.k8s.io/v1", "k8s.cni.cncf.io/v1beta1")
                .replace("kind: NetworkPolicy", "kind: MultiNetworkPolicy"),
            "does not enforce",
        ),
    ] {
        let said = about(&policy);
        assert!(said.contains(remedy), "{policy}\n{said}");
    }
}

/// The most usual rule: DNS of the cluster, which is in no file of an application.
#[test]
fn namespaces_that_no_file_has_are_elsewhere() {
    let spec = |to: &str| {
        super::shop()
            + &super::policy(
                "shop",
                "dns",
                &format!(
                    "podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{to}], ports: [{{port: 53, \
                     protocol: UDP}}, {{port: 53}}]}}]"
                ),
            )
    };
    let codes = |text: &str| {
        let folder = TempDir::new("elsewhere");
        fs::write(folder.path().join("all.yaml"), text).unwrap();
        let found = lint(&[folder.path().to_path_buf()], &LintOptions::default()).unwrap();
        found.findings.into_iter().map(|it| it.code).collect::<Vec<_>>()
    };
    for to in [
        "{namespaceSelector: {}}",
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}",
        "{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}",
    ] {
        assert_eq!(codes(&spec(to)), Vec::<&str>::new(), "{to}");
    }
    let misspelt = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shopp}}}";
    assert_eq!(codes(&spec(misspelt)), ["peer-selects-no-pod"]);
}

/// All other findings are told, and the broken file is one of them.
#[test]
fn a_file_that_cannot_be_read_hides_no_finding() {
    let folder = TempDir::new("broken");
    fs::write(folder.path().join("a.yaml"), "apiVersion: v1\nkind: [\n").unwrap();
    let mistake = super::policy("shop", "x", "podSelector: {matchLabels: {app: fronted}}");
    fs::write(folder.path().join("b.yaml"), super::shop() + &mistake).unwrap();
    let found = lint(&[folder.path().to_path_buf()], &LintOptions::default()).unwrap().findings;
    let told: Vec<_> = found.iter().map(|it| (it.code, it.severity())).collect();
    assert_eq!(told, [("invalid", "error"), ("selects-no-pod", "warning")]);
}
