//! Policies out of observed connections.

use std::collections::BTreeSet;
use std::net::IpAddr;

use policy_tools::policy::flows::{Flow, Party, flows, read};
use policy_tools::policy::suggest::{Directions, Suggestion, suggest};
use policy_tools::probe::{Endpoint, Port, ProbeVerdict, Prober, Protocol, Question, case};
use proptest::prelude::*;

use super::{deployment, manifests, shop};

/// `FROM TO PROTOCOL PORT`, with pods as the switch names them.
fn seen(text: &str, lines: &[&str]) -> BTreeSet<Flow> {
    let event = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let end = |text: &str| match text.parse::<IpAddr>() {
            Ok(address) => format!("\"ip\":\"{address}\""),
            Err(_) => format!("\"pod\":\"{text}\",\"ip\":\"10.1.2.3\""),
        };
        format!(
            "{{\"time\":\"2026-11-21T02:25:35.123Z\",\"node\":\"n\",\"verdict\":\"forwarded\",\"reason\":\"no-policy\",\
             \"from\":{{{}}},\"to\":{{{},\"port\":{}}},\"protocol\":\"{}\"}}\n",
            end(words[0]),
            end(words[1]),
            words[3],
            words[2]
        )
    };
    let lines: String = lines.iter().map(event).collect();
    flows(&manifests(text), &read(&lines).unwrap())
}

fn suggested(text: &str, lines: &[&str]) -> Suggestion {
    suggest(&manifests(text), &seen(text, lines), Directions::Both, false).unwrap()
}

#[test]
fn each_workload_gets_what_was_seen_of_it() {
    let found = suggested(
        &shop(),
        &[
            "shop/frontend-5d4f-a shop/backend-7c9d-b TCP 8080",
            "shop/backend-7c9d-b shop/db-6f-c TCP 5432",
            "203.0.113.7 shop/frontend-5d4f-a TCP 443",
        ],
    );
    assert_eq!((found.allowed.len(), found.denied.len()), (3, 0), "{:?}", found.denied);
    let yaml = found.yaml();
    assert!(
        yaml.ends_with(
            "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: frontend
  namespace: shop
spec:
  podSelector:
    matchLabels:
      app: frontend
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - ipBlock:
            cidr: \"203.0.113.7/32\"
      ports:
        - port: 443
  egress:
    - to:
        - podSelector:
            matchLabels:
              app: backend
      ports:
        - port: 8080
"
        ),
        "{yaml}"
    );
    assert_eq!(yaml.matches("kind: NetworkPolicy").count(), 4);
    // The output can be read again.
    let read_again = manifests(&yaml).objects;
    assert_eq!(read_again.len(), 4);
}

#[test]
fn a_service_is_the_workloads_behind_it() {
    let wanted = Flow {
        from: Party::Workload("shop".into(), "frontend".into()),
        to: Party::Workload("shop".into(), "backend".into()),
        protocol: Protocol::Tcp,
        port: Some(8080),
        denied: false,
    };
    // The switch names the endpoint that it chose, with the port that the client used.
    let chosen = seen(&shop(), &["shop/frontend-1 shop/backend-1 TCP 80"]);
    assert_eq!(chosen, BTreeSet::from([wanted.clone()]));
    // On the way to another node it only knows the service's address.
    let with_address = shop().replace(
        "spec: {selector: {app: backend}",
        "spec: {clusterIP: 10.96.0.9, selector: {app: backend}",
    );
    let by_address = seen(&with_address, &["shop/frontend-1 10.96.0.9 TCP 80"]);
    assert_eq!(by_address, BTreeSet::from([wanted]));
}

#[test]
fn what_no_policy_can_allow_is_listed() {
    let mut flows =
        seen(&shop(), &["shop/ghost-1 shop/db-1 TCP 5432", "shop/frontend-1 shop/db-1 ICMP 0"]);
    let denied = Flow { denied: true, ..flows.first().unwrap().clone() };
    flows.insert(Flow {
        protocol: Protocol::Tcp,
        port: Some(1),
        from: Party::Workload("shop".into(), "backend".into()),
        ..denied
    });
    let found = suggest(&manifests(&shop()), &flows, Directions::Both, false).unwrap();
    assert!(found.policies.is_empty() && found.allowed.is_empty());
    let yaml = found.yaml();
    for line in [
        "#   shop/ghost-1 to shop/db TCP 5432: shop/ghost-1 is not in the manifests\n",
        "#   shop/frontend to shop/db ICMP: a NetworkPolicy has no rule for ICMP alone\n",
        "#   shop/backend to shop/db TCP 1: policies denied it when it was observed\n",
    ] {
        assert!(yaml.contains(line), "{yaml}");
    }
}

#[test]
fn a_cluster_wide_denial_shows() {
    let admin = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
                 metadata: {name: no-db}\nspec: {tier: Admin, priority: 1, subject: {pods: \
                 {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}, ingress: \
                 [{action: Deny, from: [{namespaces: {}}]}]}\n";
    let found = suggested(&(shop() + admin), &["shop/backend-1 shop/db-1 TCP 5432"]);
    assert!(found.allowed.is_empty());
    assert_eq!(found.denied[0].1, "policy-denied, by ClusterNetworkPolicy no-db ingress[0]");
}

/// Workloads, of which one has all labels of another and more, and two namespaces with equal names.
fn cluster() -> String {
    let labelled = |namespace: &str, name: &str, labels: &str| {
        deployment(namespace, name, "")
            .replace(&format!("labels: {{app: {name}}}"), &format!("labels: {{{labels}}}"))
    };
    deployment("one", "web", "")
        + &deployment("one", "db", "")
        + &labelled("one", "tool", "part: tools")
        + &labelled("one", "tool-extra", "part: tools, extra: 'yes'")
        + &deployment("two", "web", "")
        + &deployment("two", "cache", "")
}

const ENDS: [&str; 8] = [
    "one/web",
    "one/db",
    "one/tool",
    "one/tool-extra",
    "two/web",
    "two/cache",
    "203.0.113.7",
    "198.51.100.9",
];
const PORTS: [(Protocol, u16); 3] = [(Protocol::Tcp, 80), (Protocol::Tcp, 81), (Protocol::Udp, 80)];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// In the namespaces that were observed, a connection is allowed exactly if it was seen.
    #[test]
    fn what_is_suggested_allows_exactly_what_was_seen(
        picks in prop::collection::vec((0..ENDS.len(), 0..6_usize, 0..PORTS.len()), 1..14),
    ) {
        let text = cluster();
        let party = |name: &str| match name.split_once('/') {
            Some((namespace, name)) => Party::Workload(namespace.into(), name.into()),
            None => Party::Address(name.parse().unwrap()),
        };
        let flow = |(from, to, port): (usize, usize, usize)| Flow {
            from: party(ENDS[from]),
            to: party(ENDS[to]),
            protocol: PORTS[port].0,
            port: Some(PORTS[port].1),
            denied: false,
        };
        let seen: BTreeSet<Flow> =
            picks.into_iter().filter(|(from, to, _)| from != to).map(flow).collect();
        let found = suggest(&manifests(&text), &seen, Directions::Both, false).unwrap();
        prop_assert_eq!(found.allowed.len(), seen.len(), "{:?}", found.denied);
        prop_assert!(found.notes.is_empty());

        let observed: BTreeSet<String> = seen.iter().flat_map(|it| [&it.from, &it.to])
            .filter_map(|it| match it { Party::Workload(space, _) => Some(space.clone()), _ => None })
            .collect();
        let mut prober = Prober::new(manifests(&(text + "---\n" + &found.yaml())), []).unwrap();
        for (from, _) in ENDS.iter().enumerate() {
            for to in (0..ENDS.len()).filter(|to| *to != from) {
                let is_closed = [from, to].iter().any(|n| {
                    ENDS[*n].split_once('/').is_some_and(|(space, _)| observed.contains(space))
                });
                if !is_closed {
                    continue;
                }
                let ends: [Endpoint; 2] = [from, to].map(|n| case::endpoint(ENDS[n]).unwrap());
                for (port, (protocol, number)) in PORTS.into_iter().enumerate() {
                    let number = Port::Number(number);
                    let question =
                        Question { from: &ends[0], to: &ends[1], protocol, port: Some(&number) };
                    let allowed = prober.answer([question]).unwrap().remove(0).verdict == ProbeVerdict::Allow;
                    prop_assert_eq!(
                        allowed, seen.contains(&flow((from, to, port))),
                        "{} to {} {:?}: {}", ENDS[from], ENDS[to], PORTS[port], found.yaml()
                    );
                }
            }
        }
    }
}
