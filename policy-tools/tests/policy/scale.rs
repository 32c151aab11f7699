//! A set of many policies, compared with a version of it that opens one port to all sources.
//!
//! `PODGATE_NAMESPACES=200` makes 10,000 policies and 3,000 workloads of it; the test prints how long
//! each step takes.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

use policy_tools::input::Manifests;
use policy_tools::policy::diff::{Change, compare};
use testkit::TempDir;

/// Workloads of a namespace.
const WORKLOADS: usize = 15;

/// A namespace: each workload reaches the next one, and three namespaces; there are a denial of
/// everything and a rule for DNS.
fn namespace(n: usize, namespaces: usize) -> String {
    let mut text = format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: n{n}, labels: {{team: t{}}}}}\n",
        n % 20
    );
    let mut policy = |name: &str, spec: &str| {
        let _ = writeln!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, \
             namespace: n{n}}}\nspec: {{{spec}}}"
        );
    };
    policy("closed", "podSelector: {}, policyTypes: [Ingress, Egress]");
    policy(
        "dns",
        "podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: \
         {kubernetes.io/metadata.name: kube-system}}}], ports: [{port: 53, protocol: UDP}]}]",
    );
    policy(
        "metrics",
        "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: t0}}, podSelector: \
         {matchLabels: {app: a0}}}], ports: [{port: 9090}]}]",
    );
    policy("open", "podSelector: {matchLabels: {app: a0}}, ingress: [{ports: [{port: 443}]}]");
    policy(
        "out",
        "podSelector: {matchLabels: {tier: front}}, policyTypes: [Egress], egress: [{to: [{ipBlock: \
         {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16]}}], ports: [{port: 443}]}]",
    );
    for w in 0..WORKLOADS {
        let own = format!("podSelector: {{matchLabels: {{app: a{w}}}}}");
        let (next, port) = ((w + 1) % WORKLOADS, 8000 + w);
        policy(
            &format!("in{w}"),
            &format!(
                "{own}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: a{}}}}}}}], ports: \
                 [{{port: {port}}}]}}]",
                (w + WORKLOADS - 1) % WORKLOADS
            ),
        );
        policy(
            &format!("out{w}"),
            &format!(
                "{own}, policyTypes: [Egress], egress: [{{to: [{{podSelector: {{matchLabels: {{app: \
                 a{next}}}}}}}], ports: [{{port: {}}}]}}]",
                8000 + next
            ),
        );
        let other = (n * 7 + w) % namespaces;
        policy(
            &format!("team{w}"),
            &format!(
                "{own}, ingress: [{{from: [{{namespaceSelector: {{matchLabels: \
                 {{kubernetes.io/metadata.name: n{other}}}}}, podSelector: {{matchLabels: {{tier: \
                 front}}}}}}], ports: [{{port: {}}}]}}]",
                9000 + w
            ),
        );
    }
    for w in 0..WORKLOADS {
        let tier = ["front", "mid", "back"][w % 3];
        let labels = format!("{{app: a{w}, tier: {tier}}}");
        let _ = writeln!(
            text,
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a{w}, namespace: n{n}}}\nspec: \
             {{selector: {{matchLabels: {labels}}}, template: {{metadata: {{labels: {labels}}}, spec: \
             {{containers: [{{name: c, ports: [{{name: http, containerPort: {}}}]}}]}}}}}}",
            8000 + w
        );
    }
    text
}

/// A folder with a file for each namespace.
fn folder(namespaces: usize, spoil: impl Fn(String) -> String) -> TempDir {
    let folder = TempDir::new("scale");
    for n in 0..namespaces {
        let text = namespace(n, namespaces);
        let text = if n == 1 { spoil(text) } else { text };
        fs::write(folder.path().join(format!("n{n}.yaml")), text).unwrap();
    }
    folder
}

#[test]
fn one_port_opens_among_many_policies() {
    let namespaces = env::var("PODGATE_NAMESPACES").ok().map_or(6, |it| it.parse().unwrap());
    let before = folder(namespaces, |text| text);
    let from =
        "ingress: [{from: [{podSelector: {matchLabels: {app: a4}}}], ports: [{port: 8005}]}]";
    let opened = from.replace("from: [", "from: [{namespaceSelector: {}}, ");
    let after = folder(namespaces, |text| {
        assert!(text.contains(from));
        text.replace(from, &opened)
    });
    let started = Instant::now();
    let load = |folder: &TempDir| Manifests::load(&[folder.path().to_path_buf()]).unwrap();
    let (old, new) = (load(&before), load(&after));
    let policies = old.objects.iter().filter(|it| it.kind().closes()).count();
    println!("{policies} policies, {} pods: read in {:?}", old.pods().count(), started.elapsed());
    let started = Instant::now();
    let found = compare(old, new).unwrap();
    println!("{} classes, compared in {:?}", found.classes, started.elapsed());
    let opened: Vec<_> =
        found.differences.iter().filter(|it| it.change == Change::Opened).collect();
    assert_eq!(opened.len(), 1, "{opened:#?}");
    assert_eq!((&*opened[0].to, opened[0].ports), ("n1/a5", Some((8005, 8005))));
    assert!(opened[0].from.contains("any pod of any other namespace (none in these files)"));
    assert!(
        found.differences.iter().all(|it| it.change == Change::Opened),
        "{:#?}",
        found.differences
    );
}
