//! Pictures of policies.

use std::collections::BTreeSet;

use policy_tools::policy::flows::{flows, read};
use policy_tools::policy::picture::{NodeKind, Picture, PictureOptions, picture};
use policy_tools::probe::Protocol;

use super::{deployment, manifests, policy, shop};

pub(super) fn draw(text: &str, options: &PictureOptions) -> Picture {
    picture(manifests(text), options).unwrap()
}

/// The edges, `FROM -> TO: PORTS`.
fn edges(drawn: &Picture) -> Vec<String> {
    let name = |n: usize| format!("{}/{}", drawn.nodes[n].group, drawn.nodes[n].name);
    let said = drawn.edges.iter().map(|it| {
        let arrow = if it.denied { "-X" } else { "->" };
        format!("{} {arrow} {}: {}", name(it.from), name(it.to), it.ports.words().join(", "))
    });
    said.collect()
}

#[test]
fn edges_are_what_policies_allow_and_open_workloads_are_marked() {
    let drawn = draw(&shop(), &PictureOptions::default());
    assert_eq!(
        edges(&drawn),
        ["shop/backend -> shop/db: TCP 5432", "shop/frontend -> shop/backend: TCP 8080"]
    );
    let open =
        drawn.nodes.iter().filter(|it| matches!(it.kind, NodeKind::Workload { is_open: true, .. }));
    assert_eq!(open.map(|it| &*it.name).collect::<Vec<_>>(), ["frontend"]);
}

#[test]
fn a_port_alone_is_drawn_alone() {
    let only = |protocol, port| PictureOptions {
        protocol: Some(protocol),
        port: Some(port),
        ..PictureOptions::default()
    };
    assert_eq!(
        edges(&draw(&shop(), &only(Protocol::Tcp, 5432))),
        ["shop/backend -> shop/db: TCP 5432"]
    );
    assert_eq!(edges(&draw(&shop(), &only(Protocol::Udp, 5432))), [""; 0]);
}

#[test]
fn sources_that_are_a_whole_namespace_or_cluster_are_one_node() {
    let ingress =
        |rest: &str| format!("podSelector: {{matchLabels: {{app: x}}}}, ingress: [{rest}]");
    let text = ["a", "b", "x"].map(|name| deployment("one", name, "")).concat()
        + &["c", "d"].map(|name| deployment("two", name, "")).concat();
    let all = "{from: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}]}";
    let own = "{from: [{podSelector: {}}], ports: [{port: 80}]}";
    let world =
        "{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}], ports: [{port: 443}]}";
    let drawn = draw(
        &(text + &policy("one", "x", &ingress(&[all, own, world].join(", ")))),
        &PictureOptions::default(),
    );
    assert_eq!(
        edges(&drawn),
        [
            "/internet -> one/x: TCP 443",
            "all namespaces/* -> one/x: UDP 53",
            "one/* -> one/x: TCP 80",
        ]
    );
}

const SEEN: &str = concat!(
    r#"{"time":"2026-11-21T02:25:35.123Z","node":"n","verdict":"dropped","reason":"policy-denied","from":{"pod":"shop/frontend-5d4f-x","ip":"10.1.0.3","port":4100},"to":{"pod":"shop/db-1","ip":"10.1.0.2","port":22},"protocol":"TCP"}"#,
    "\n",
    r#"{"time":"2026-11-21T02:25:35.123Z","node":"n","verdict":"dropped","reason":"policy-denied","from":{"ip":"203.0.113.7","port":4100},"to":{"pod":"shop/db-1","ip":"10.1.0.2"},"protocol":"ICMP","icmp_type":8}"#,
    "\n",
    r#"{"time":"2026-11-21T02:25:35.123Z","node":"n","verdict":"dropped","reason":"bad-checksum","from":{},"to":{}}"#,
    "\n",
    r#"{"time":"2026-11-21T02:25:35.123Z","node":"n","verdict":"forwarded","reason":"policy-allowed","from":{"pod":"shop/frontend-5d4f-x"},"to":{"pod":"shop/backend-2","port":8080},"protocol":"TCP"}"#,
    "\n",
);

#[test]
fn what_was_observed_and_denied_is_red() {
    let seen = flows(&manifests(&shop()), &read(SEEN).unwrap());
    assert_eq!(seen.len(), 3);
    let drawn = draw(
        &shop(),
        &PictureOptions { observed: seen.into_iter().collect(), ..PictureOptions::default() },
    );
    let denied: Vec<String> =
        edges(&drawn).into_iter().filter(|edge| edge.contains("-X")).collect();
    assert_eq!(denied, ["/internet -X shop/db: ICMP", "shop/frontend -X shop/db: TCP 22"]);
    assert_eq!(drawn.svg().matches("class=\"edge denied\" data-from").count(), 2);
    assert!(drawn.dot().contains("color=red"));
    assert!(drawn.mermaid().contains("linkStyle"));
    assert_eq!(read("{}").unwrap_err().len(), 1);
}

#[test]
fn every_form_names_nodes_and_ports() {
    let drawn = draw(&shop(), &PictureOptions::default());
    assert!(drawn.dot().contains("label=\"TCP 5432\""), "{}", drawn.dot());
    assert!(drawn.mermaid().contains("-->|\"TCP 8080\"|"), "{}", drawn.mermaid());
    let svg = drawn.svg();
    assert_eq!(svg.matches("data-node=").count(), drawn.nodes.len());
    assert_eq!(svg.matches("data-from=").count(), drawn.edges.len());
    let html = drawn.html();
    assert!(html.contains("<td>backend</td><td>TCP 8080</td><td>shop/frontend</td>"), "{html}");
    for other in ["http:", "https:", "src=", "@import"] {
        let elsewhere = html.replace("http://www.w3.org/2000/svg", "").contains(other);
        assert!(!elsewhere, "the page needs nothing from elsewhere: {other}");
    }
}

/// Workloads whose policies name pods that are in no file.
fn with_possible() -> String {
    let open = "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{namespaceSelector: {matchLabels: \
                {team: ops}}}], ports: [{port: 5432}]}, {from: [{podSelector: {matchLabels: {role: \
                debug}}}], ports: [{port: 22}]}]";
    let out = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: \
               {matchLabels: {app: cache}}}], ports: [{port: 6379}]}]";
    deployment("shop", "db", "")
        + &deployment("shop", "web", "")
        + &policy("shop", "db", open)
        + &policy("shop", "web", out)
}

#[test]
fn pods_that_could_exist_are_dashed() {
    let options = PictureOptions { with_possible: true, ..PictureOptions::default() };
    let drawn = draw(&with_possible(), &options);
    assert_eq!(
        edges(&drawn),
        [
            "other namespaces/any pod of any namespace with team=ops (none in these files) -> shop/db: \
             TCP 5432",
            "shop/any pod with role=debug of namespace shop (none in these files) -> shop/db: TCP 22",
            "shop/web -> shop/any pod with app=cache of namespace shop (none in these files): TCP 6379",
        ]
    );
    let svg = drawn.svg();
    assert_eq!(svg.matches("<rect class=\"node possible\" x").count(), 3);
    assert_eq!(svg.matches("class=\"edge dashed\" stroke=").count(), 3);
    assert!(svg.contains(">any pod with role=debug</text>"), "the group says the rest: {svg}");
    assert!(drawn.mermaid().contains("classDef possible"));
    assert_eq!(edges(&draw(&with_possible(), &PictureOptions::default())), [""; 0]);
}

#[test]
fn a_collapsed_namespace_has_one_node_for_them_unless_its_workloads_have_the_same_edges() {
    let options = PictureOptions { with_possible: true, ..PictureOptions::default() };
    let text = deployment("ops", "shell", "")
        + &deployment("shop", "db", "")
        + &policy(
            "shop",
            "db",
            "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: \
             {kubernetes.io/metadata.name: ops}}}], ports: [{port: 5432}]}, {from: [{namespaceSelector: \
             {matchLabels: {kubernetes.io/metadata.name: ops}}, podSelector: {matchLabels: {role: \
             debug}}}], ports: [{port: 22}]}]",
        );
    let drawn = draw(&text, &options);
    let overview = drawn.collapsed(&BTreeSet::from(["ops".to_owned()]));
    assert_eq!(
        edges(&overview),
        [
            "ops/pods not in these files -> shop/db: TCP 22, TCP 5432",
            "ops/ops -> shop/db: TCP 5432",
        ]
    );
    let only = PictureOptions { port: Some(5432), protocol: Some(Protocol::Tcp), ..options };
    let overview = draw(&text, &only).collapsed(&BTreeSet::from(["ops".to_owned()]));
    assert_eq!(edges(&overview), ["ops/ops -> shop/db: TCP 5432"]);
    assert_eq!(overview.nodes.len(), 2);
}

#[test]
fn a_focused_workload_has_its_own_edges_alone() {
    let drawn = draw(&shop(), &PictureOptions::default());
    let focused = drawn.focused("shop/db").unwrap();
    assert_eq!(edges(&focused), ["shop/backend -> shop/db: TCP 5432"]);
    assert_eq!(focused.nodes.len(), 2);
    assert_eq!(drawn.focused("shop/nobody"), None);
}
