//! Differences between two versions.

use std::collections::BTreeSet;
use std::time::Instant;

use policy_tools::policy::diff::{Change, compare, compare_every_pair, compare_in_parts};
use policy_tools::probe::{Endpoint, Port, ProbeVerdict, Prober, Protocol, Question};
use proptest::prelude::*;

use super::{deployment, manifests, policy, shop};

/// `CHANGE TO PROTOCOL PORTS from FROM…` for each difference.
fn differences(old: &str, new: &str) -> Vec<String> {
    let found = compare(manifests(old), manifests(new)).unwrap().differences;
    let rules =
        |by: &[acl::Origin]| by.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let said = found.iter().map(|it| {
        let from: Vec<&str> = it.from.iter().map(String::as_str).collect();
        format!(
            "{:?} {} {} {} from {}: {} -> {}",
            it.change,
            it.to,
            it.protocol,
            it.ports_in_words(),
            from.join(","),
            rules(&it.before),
            rules(&it.after)
        )
    });
    said.collect()
}

#[test]
fn nothing_changes_where_nothing_does() {
    assert_eq!(differences(&shop(), &shop()), Vec::<String>::new());
}

#[test]
fn a_port_that_opens_and_one_that_closes() {
    let new = shop().replace("5432", "5433");
    let deny = "default-deny of NetworkPolicy shop/db";
    let allow = "NetworkPolicy shop/db ingress[0]";
    assert_eq!(
        differences(&shop(), &new),
        [
            format!("Opened shop/db TCP 5433 from shop/backend: {deny} -> {allow}"),
            format!("Closed shop/db TCP 5432 from shop/backend: {allow} -> {deny}"),
        ]
    );
}

#[test]
fn another_rule_that_decides_is_a_difference_of_its_own() {
    let new = shop().replace(
        "metadata: {name: db, namespace: shop}\nspec: {podSelector",
        "metadata: {name: data, namespace: shop}\nspec: {podSelector",
    );
    let said = differences(&shop(), &new);
    assert!(said.iter().all(|it| it.starts_with("OtherRule shop/db ")), "{said:?}");
    let decided = "TCP 5432 from shop/backend: NetworkPolicy shop/db ingress[0] -> \
                   NetworkPolicy shop/data ingress[0]";
    assert!(said.iter().any(|it| it.contains(decided)), "{said:?}");
}

#[test]
fn networks_outside_count() {
    let from = |net: &str| {
        policy(
            "shop",
            "web",
            &format!(
                "podSelector: {{matchLabels: {{app: frontend}}}}, ingress: [{{from: [{{ipBlock: \
             {{cidr: {net}}}}}], ports: [{{port: 443}}]}}]"
            ),
        )
    };
    let said = differences(&(shop() + &from("198.18.0.0/24")), &(shop() + &from("198.18.0.0/23")));
    let deny = "default-deny of NetworkPolicy shop/web";
    let allow = "NetworkPolicy shop/web ingress[0]";
    assert_eq!(
        said,
        [format!("Opened shop/frontend TCP 443 from 198.18.0.0/23: {deny} -> {allow}")]
    );
}

#[test]
fn a_new_workload_alone_opens_nothing() {
    let new = shop() + &deployment("shop", "cache", "");
    assert_eq!(differences(&shop(), &new), Vec::<String>::new());
}

/// The sources of what opens at the database on its port, where one more peer may reach it.
fn opened_by(peer: &str) -> Vec<String> {
    let more = policy(
        "shop",
        "more",
        &format!(
            "podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{peer}], ports: \
             [{{port: 5432}}]}}]"
        ),
    );
    let found = compare(manifests(&shop()), manifests(&(shop() + &more))).unwrap().differences;
    let opened = found.into_iter().filter(|it| it.change == Change::Opened);
    opened.flat_map(|it| it.from).collect()
}

#[test]
fn peers_that_are_in_no_file_count() {
    let none = "(none in these files)";
    assert_eq!(
        opened_by("{namespaceSelector: {matchLabels: {team: ops}}}"),
        [format!("any pod of any namespace with team=ops {none}")]
    );
    assert_eq!(
        opened_by("{podSelector: {matchLabels: {role: debug}}}"),
        [format!("any pod with role=debug of namespace shop {none}")]
    );
    assert_eq!(
        opened_by("{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ops}}}"),
        [format!("any pod of namespace ops {none}")]
    );
    assert_eq!(
        opened_by("{namespaceSelector: {}}"),
        [
            format!("any pod of any other namespace {none}"),
            format!("any pod of namespace shop {none}"),
            "shop/frontend".to_owned(),
        ]
    );
    // No value is in both sets.
    let never = "{podSelector: {matchExpressions: [{key: a, operator: In, values: [x]}, \
                 {key: a, operator: NotIn, values: [x]}]}}";
    assert_eq!(opened_by(never), Vec::<String>::new());
}

/// A hundred workloads of ten namespaces, each of which lets its namespace in on a port of its own.
fn large(extra: &str) -> String {
    let mut text = String::new();
    for namespace in 0..10 {
        for n in 0..10 {
            let (space, name) = (format!("ns{namespace}"), format!("app{n}"));
            text += &deployment(&space, &name, "");
            text += &policy(
                &space,
                &name,
                &format!(
                    "podSelector: {{matchLabels: {{app: {name}}}}}, ingress: [{{from: \
                 [{{podSelector: {{}}}}], ports: [{{port: {}}}]}}]",
                    8000 + n
                ),
            );
        }
    }
    text + extra
}

#[test]
fn the_one_opened_port_among_ten_thousand_pairs() {
    let open = policy(
        "ns3",
        "mistake",
        "podSelector: {matchLabels: {app: app4}}, ingress: [{from: [{namespaceSelector: \
         {matchLabels: {kubernetes.io/metadata.name: ns7}}, podSelector: {matchLabels: \
         {app: app1}}}], ports: [{port: 9999}]}]",
    );
    let (old, new) = (manifests(&large("")), manifests(&large(&open)));
    let started = Instant::now();
    let found = compare(old, new).unwrap().differences;
    println!("compared in {:?}", started.elapsed());
    let opened: Vec<_> = found.iter().filter(|it| it.change == Change::Opened).collect();
    assert_eq!(opened.len(), 1, "{found:?}");
    assert_eq!((opened[0].to.as_str(), opened[0].ports), ("ns3/app4", Some((9999, 9999))));
    assert_eq!(opened[0].from, BTreeSet::from(["ns7/app1".to_owned()]));
    assert!(found.iter().all(|it| it.change != Change::Closed));
}

const RULES: [&str; 6] = [
    "{}",
    "{from: [{podSelector: {matchLabels: {app: frontend}}}]}",
    "{from: [{podSelector: {matchLabels: {app: backend}}}], ports: [{port: 80, endPort: 90}]}",
    "{ports: [{port: 8080}, {port: 53, protocol: UDP}]}",
    "{from: [{ipBlock: {cidr: 198.18.0.0/16, except: [198.18.7.0/24]}}]}",
    "{ports: [{port: http}]}",
];

/// Policies of one version: the workload that each selects, and its rules.
fn version(policies: &[(usize, Vec<usize>)]) -> String {
    let apps = ["frontend", "backend", "db"];
    let mut text = deployment("shop", "frontend", "")
        + &deployment("shop", "backend", ", ports: [{name: http, containerPort: 8080}]")
        + &deployment("shop", "db", "");
    for (n, (app, rules)) in policies.iter().enumerate() {
        let rules: Vec<&str> = rules.iter().map(|rule| RULES[*rule]).collect();
        text += &policy(
            "shop",
            &format!("p{n}"),
            &format!(
                "podSelector: {{matchLabels: {{app: {}}}}}, ingress: [{}]",
                apps[*app],
                rules.join(", ")
            ),
        );
    }
    text
}

/// Peers of the policies below.
const PEERS: [&str; 6] = [
    "{podSelector: {matchLabels: {app: a}}}",
    "{namespaceSelector: {}}",
    "{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: b}}}",
    "{ipBlock: {cidr: 198.18.0.0/16, except: [198.18.7.0/24]}}",
    "{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [a]}]}}",
    "{podSelector: {matchLabels: {role: debug}}, namespaceSelector: {}}",
];

/// A policy: its namespace, what it selects, whether it is about egress, its peers and its port.
type Random = (usize, usize, bool, Vec<usize>, usize);

fn random() -> impl Strategy<Value = Vec<Random>> {
    let peers = prop::collection::vec(0..PEERS.len(), 0..3);
    prop::collection::vec((0..3_usize, 0..4_usize, any::<bool>(), peers, 0..4_usize), 0..4)
}

/// Two versions share the policies of `both`; `wide` adds a cluster-wide one, `red` changes a namespace.
fn random_version(both: &[Random], own: &[Random], wide: usize, red: bool) -> String {
    let team = if red { "red" } else { "blue" };
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: n0, labels: {{team: {team}}}}}\n"
    );
    for (namespace, app) in [("n0", "a"), ("n0", "b"), ("n1", "a"), ("n1", "c"), ("n2", "b")] {
        text += &deployment(namespace, app, ", ports: [{name: http, containerPort: 8080}]");
    }
    let named = both.iter().map(|it| ("p", it)).chain(own.iter().map(|it| ("q", it)));
    for (n, (name, (namespace, selects, is_egress, peers, port))) in named.enumerate() {
        let selector = [
            "{}",
            "{matchLabels: {app: a}}",
            "{matchLabels: {app: b}}",
            "{matchLabels: {role: debug}}",
        ];
        let port = [
            "",
            "ports: [{port: 80, endPort: 90}]",
            "ports: [{port: http}]",
            "ports: [{port: 53, protocol: UDP}]",
        ][*port];
        let (types, rules, ends) =
            if *is_egress { ("Egress", "egress", "to") } else { ("Ingress", "ingress", "from") };
        let peers: Vec<&str> = peers.iter().map(|peer| PEERS[*peer]).collect();
        let peers = match peers.is_empty() {
            true => String::new(),
            false => format!("{ends}: [{}], ", peers.join(", ")),
        };
        text += &policy(
            &format!("n{namespace}"),
            &format!("{name}{n}"),
            &format!(
                "podSelector: {}, policyTypes: [{types}], {rules}: [{{{peers}{port}}}]",
                selector[*selects]
            ),
        );
    }
    let action = ["", "Deny", "Accept"][wide];
    if wide > 0 {
        text += &format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: w}}\n\
             spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{matchLabels: {{team: red}}}}}}, ingress: \
             [{{action: {action}, from: [{{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: n1}}}}}}]}}]}}\n"
        );
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Tables of the second version that come from those of the first, pairs that are left out since neither end
    /// changed, and parts of the cluster lose no difference.
    #[test]
    fn what_did_not_change_need_not_be_compared(
        both in random(),
        (old, new) in (random(), random()),
        wide in (0..3_usize, 0..3_usize),
        red in (any::<bool>(), any::<bool>()),
    ) {
        let old = random_version(&both, &old, wide.0, red.0);
        let new = random_version(&both, &new, wide.1, red.1);
        let quick = compare(manifests(&old), manifests(&new)).unwrap();
        let whole = compare_every_pair(manifests(&old), manifests(&new)).unwrap();
        prop_assert_eq!(&quick.differences, &whole.differences);
        prop_assert_eq!(quick.classes, whole.classes);
        let parts = compare_in_parts(manifests(&old), manifests(&new), 1).unwrap();
        prop_assert_eq!(parts.differences, whole.differences);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A connection opens or closes exactly where two probes say so.
    #[test]
    fn a_difference_is_what_two_probes_see(
        old in prop::collection::vec((0..3_usize, prop::collection::vec(0..RULES.len(), 0..3)), 0..3),
        new in prop::collection::vec((0..3_usize, prop::collection::vec(0..RULES.len(), 0..3)), 0..3),
    ) {
        let (old, new) = (version(&old), version(&new));
        let found = compare(manifests(&old), manifests(&new)).unwrap().differences;
        let mut probers = [&old, &new].map(|text| Prober::new(manifests(text), []).unwrap());
        let ends = ["shop/frontend", "shop/backend", "shop/db", "198.18.1.1", "198.18.7.7"];
        let is_named = [&old, &new].iter().any(|text| text.contains("ipBlock"));
        let outside = if is_named { ["198.18.0.0/16", "198.18.7.0/24"] } else { ["internet"; 2] };
        let names = ["shop/frontend", "shop/backend", "shop/db", outside[0], outside[1]];
        let endpoint = |text: &str| policy_tools::probe::case::endpoint(text).unwrap();
        for (from, name) in ends.iter().zip(names) {
            for to in &ends[..3] {
                if from == to {
                    continue;
                }
                let (source, target): (Endpoint, Endpoint) = (endpoint(from), endpoint(to));
                for (protocol, port) in [
                    (Protocol::Tcp, 79), (Protocol::Tcp, 80), (Protocol::Tcp, 90), (Protocol::Tcp, 91),
                    (Protocol::Tcp, 8080), (Protocol::Udp, 53), (Protocol::Sctp, 9),
                ] {
                    let port_of = Port::Number(port);
                    let question = Question {
                        from: &source, to: &target, protocol, port: Some(&port_of),
                    };
                    let [before, after] =
                        probers.each_mut().map(|it| it.answer([question]).unwrap().remove(0).verdict);
                    let wanted = match (before, after) {
                        (ProbeVerdict::Deny, ProbeVerdict::Allow) => Some(Change::Opened),
                        (ProbeVerdict::Allow, ProbeVerdict::Deny) => Some(Change::Closed),
                        _ => None,
                    };
                    let listed: Vec<Change> = found.iter().filter(|it| {
                        it.to == *to && it.protocol == protocol.name() && it.from.contains(name)
                            && it.change != Change::OtherRule
                            && it.ports.is_some_and(|(first, last)| (first..=last).contains(&port))
                    }).map(|it| it.change).collect();
                    prop_assert_eq!(
                        &listed, &Vec::from_iter(wanted),
                        "{} to {} {:?} {}: {:?}", from, to, protocol, port, found
                    );
                }
            }
        }
    }
}
