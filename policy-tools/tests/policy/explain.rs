//! Why connections may not be opened, and rules that never match.

use policy_tools::policy::explain::{AtEnd, explain, unknown_ports};
use policy_tools::policy::representatives;
use policy_tools::policy::suite::Side;
use policy_tools::probe::grid::Grid;
use policy_tools::probe::{Port, Prober, Protocol, Question, case};

use super::{deployment, manifests, policy, shop};

/// The denying end's answer about `FROM TO PROTOCOL PORT`.
fn closest(text: &str, question: &str) -> Option<String> {
    let words: Vec<&str> = question.split(' ').collect();
    let [from, to] = [words[0], words[1]].map(|end| case::endpoint(end).unwrap());
    let protocol = Protocol::from_name(words[2]).unwrap();
    let port: Option<Port> = words.get(3).map(|port| case::port_argument(port).unwrap());
    let mut prober = Prober::new(manifests(text), []).unwrap();
    let question = Question { from: &from, to: &to, protocol, port: port.as_ref() };
    let why = explain(&mut prober, question).unwrap();
    let denies = |end: &&AtEnd| !end.permits;
    let end = [&why.egress, &why.ingress].into_iter().flatten().find(denies);
    end.unwrap_or_else(|| panic!("{why:?}")).closest.clone()
}

#[test]
fn the_closest_rule_says_what_it_lacks() {
    let host = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: agent, namespace: shop, labels: \
                {app: agent}}\nspec: {hostNetwork: true}\n";
    let text = shop()
        + &deployment("other", "backend", "")
        + host
        + &policy(
            "shop",
            "frontend",
            "podSelector: {matchLabels: {app: frontend}}, ingress: [{from: [{ipBlock: {cidr: \
             198.51.100.0/24, except: [198.51.100.7/32]}}, {namespaceSelector: {matchLabels: {team: \
             web}}}], ports: [{port: 443}]}]",
        )
        + &policy("other", "closed", "podSelector: {}, ingress: []");
    let cases: [(&str, Option<&str>); 10] = [
        (
            "shop/frontend shop/db TCP 5432",
            Some(
                "NetworkPolicy shop/db ingress[0] wants app=backend; shop/frontend has app=frontend",
            ),
        ),
        (
            "shop/backend shop/db TCP 22",
            Some("NetworkPolicy shop/db ingress[0] is about TCP 5432, not TCP 22"),
        ),
        (
            "shop/frontend shop/db UDP 5432",
            Some(
                "NetworkPolicy shop/db ingress[0] wants app=backend; shop/frontend has \
                  app=frontend, and is about TCP 5432, not UDP 5432",
            ),
        ),
        (
            "other/backend shop/db TCP 5432",
            Some(
                "NetworkPolicy shop/db ingress[0] wants namespace shop; other/backend is in other",
            ),
        ),
        (
            "shop/backend shop/db ICMP",
            Some("NetworkPolicy shop/db ingress[0] is about ports, which ICMP has not"),
        ),
        (
            "203.0.113.9 shop/db TCP 5432",
            Some("NetworkPolicy shop/db ingress[0] wants pods; 203.0.113.9 is none"),
        ),
        (
            "198.51.100.7 shop/frontend TCP 443",
            Some(
                "NetworkPolicy shop/frontend ingress[0] leaves out 198.51.100.7/32; 198.51.100.7 has \
                  198.51.100.7",
            ),
        ),
        (
            "other/backend shop/frontend TCP 443",
            Some(
                "NetworkPolicy shop/frontend ingress[0] wants a namespace with team=web; \
                  namespace other has no label team",
            ),
        ),
        // Through a service: the rule is about the port of the pod behind it.
        (
            "shop/db service/shop/backend TCP 80",
            Some("NetworkPolicy shop/backend ingress[0] wants app=frontend; shop/db has app=db"),
        ),
        ("shop/frontend other/backend TCP 1", None),
    ];
    for (question, wanted) in cases {
        assert_eq!(closest(&text, question).as_deref(), wanted, "{question}");
    }
    // A host-network pod is its node to policies, and a name of a port its number.
    let of_host = closest(&text, "shop/agent shop/backend TCP http").unwrap();
    assert!(
        of_host.starts_with("NetworkPolicy shop/backend ingress[0] wants pods; 172."),
        "{of_host}"
    );
}

#[test]
fn a_port_name_that_no_container_has_is_shown() {
    let text = shop()
        + &policy(
            "shop",
            "typo",
            "podSelector: {matchLabels: {app: backend}}, ingress: [{ports: [{port: htp}]}], egress: \
             [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: postgres}]}]",
        );
    let prober = Prober::new(manifests(&text), []).unwrap();
    let pod = control::PodKey { namespace: "shop".into(), name: "backend".into() };
    let found: Vec<String> = unknown_ports(&prober, &pod)
        .iter()
        .map(|it| format!("{} {} {} {:?}", it.by, it.protocol, it.port, it.similar))
        .collect();
    assert_eq!(
        found,
        [
            "NetworkPolicy shop/typo ingress[0] TCP htp Some(\"http\")",
            "NetworkPolicy shop/typo egress[0] TCP postgres None",
        ]
    );
}

#[test]
fn pods_of_a_workload_share_a_row_while_they_are_alike() {
    let pod = |name: &str, extra: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: \
             web{extra}}}, ownerReferences: [{{controller: true, kind: StatefulSet, name: web}}]}}\n\
             spec: {{}}\n"
        )
    };
    let text = shop()
        + &pod("web-0", "")
        + &pod("web-1", "")
        + &pod("web-2", ", role: leader")
        + &policy("shop", "leader", "podSelector: {matchLabels: {role: leader}}, ingress: []");
    let mut prober = Prober::new(manifests(&text), []).unwrap();
    let grid = Grid { pods: prober.pods(), protocol: Protocol::Tcp, port: Some(Port::Number(80)) };
    let mut out = Vec::new();
    grid.draw(&mut prober, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        text.lines().skip(1).collect::<Vec<_>>(),
        [
            "                      1 2 3 4 5",
            "1  shop/backend       . X . . X",
            "2  shop/db            X . . . X",
            "3  shop/frontend      X X . . X",
            "4  shop/web (2 pods)  X X . . X",
            "5  shop/web-2         X X . . .",
        ]
    );
}

#[test]
fn a_pod_that_is_in_no_file_is_an_end() {
    let reach = |from: &str| {
        let mut all = manifests(&shop());
        let from = representatives::end(&mut all, &Side::read(from, false).unwrap()).unwrap();
        let to = case::endpoint("shop/backend").unwrap();
        let mut prober = Prober::new(all, []).unwrap();
        let port = Port::Number(8080);
        let question =
            Question { from: &from, to: &to, protocol: Protocol::Tcp, port: Some(&port) };
        let why = explain(&mut prober, question).unwrap();
        (why.permits, why.ingress.and_then(|it| it.closest))
    };
    assert_eq!(reach("shop/app=frontend"), (true, None));
    let (permits, closest) = reach("any-pod");
    assert!(!permits);
    let closest = closest.unwrap();
    let wants = "NetworkPolicy shop/backend ingress[0] wants namespace shop and app=frontend; (any other \
                 namespace)/(any pod) is in (any other namespace)";
    assert!(closest.starts_with(wants), "{closest}");
    let (permits, closest) = reach("shop/role=debug");
    assert!(!permits);
    assert!(closest.unwrap().contains("shop/(any pod with role=debug) has no label app"));
    let outside = Side::read("internet", false).unwrap();
    let end = representatives::end(&mut manifests(&shop()), &outside).unwrap();
    assert_eq!(end.to_string(), "203.0.113.9");
    let several = Side::read("*", false).unwrap();
    assert!(representatives::end(&mut manifests(&shop()), &several).is_err());
}
