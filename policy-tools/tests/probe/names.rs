//! Domain names in questions: the answer is that of a switch whose pods got these addresses by DNS.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{Control, PodKey, Scope};
use dataplane::{Outcome, PortId};
use domain_names::NameTable;
use policy_tools::input::Manifests;
use policy_tools::policy::explain::explain;
use policy_tools::policy::run::Runner;
use policy_tools::policy::suite::Suite;
use policy_tools::probe::names::{DomainAddresses, name, resolved};
use policy_tools::probe::opening::Opening;
use policy_tools::probe::switch::{Switch, ports};
use policy_tools::probe::{Endpoint, ProbeVerdict, Prober, Protocol};
use proptest::prelude::*;
use testkit::TempDir;
use testkit::manifests::{node, pod, policy};

use super::{Cluster, case, text};

fn prober(manifests: &str, resolve: &[&str]) -> Prober {
    let names: DomainAddresses = resolve.iter().map(|text| resolved(text).unwrap()).collect();
    Prober::with_names(load(manifests), [], names).unwrap()
}

fn load(manifests: &str) -> Manifests {
    let folder = TempDir::new("names");
    let file = folder.path().join("cluster.yaml");
    std::fs::write(&file, manifests).unwrap();
    Manifests::load(&[file]).unwrap()
}

fn cluster_policy(name: &str, priority: usize, egress: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
         metadata: {{name: {name}}}\nspec: {{tier: Admin, priority: {priority}, \
         subject: {{namespaces: {{}}}}, egress: [{egress}]}}\n"
    )
}

fn firewall(name: &str, egress: &str) -> String {
    format!(
        "---\napiVersion: podgate.io/v1alpha1\nkind: ClusterEgressFirewall\n\
         metadata: {{name: {name}}}\nspec: {{egress: [{egress}]}}\n"
    )
}

const DENY: &str = "{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}";

fn shop() -> String {
    let accept = "{action: Accept, to: [{domainNames: [api.example.org, '*.cdn.example.net']}], \
                  protocols: [{tcp: {destinationPort: {number: 443}}}]}";
    node("n1", "192.0.2.1", "10.1.1.0/24")
        + &pod("a/x", "", "n1", "10.1.1.1 fd01::1", "")
        + &pod("a/y", "", "n1", "10.1.1.2", "")
        + &cluster_policy("names", 1, &format!("{accept}, {DENY}"))
}

#[test]
fn a_name_is_asked_about_with_the_addresses_that_are_given() {
    let resolve = [
        "api.example.org=198.51.100.7,2001:db8::7",
        "a.cdn.example.net=198.51.100.8",
        "cdn.example.net=198.51.100.9",
    ];
    let mut prober = Cluster(prober(&shop(), &resolve));
    prober.says(&[
        "a/x api.example.org TCP 443: allow policy-allowed | ClusterNetworkPolicy names egress[0]",
        "a/x API.example.org. TCP 443: allow policy-allowed | ClusterNetworkPolicy names egress[0]",
        "a/x a.cdn.example.net TCP 443: allow policy-allowed | ClusterNetworkPolicy names egress[0]",
        "a/x api.example.org TCP 80: deny policy-denied | ClusterNetworkPolicy names egress[1]",
        "a/x cdn.example.net TCP 443: deny policy-denied | ClusterNetworkPolicy names egress[1]",
        "a/x 198.51.100.7 TCP 443: allow policy-allowed | ClusterNetworkPolicy names egress[0]",
        "a/x 198.51.100.9 TCP 443: deny policy-denied | ClusterNetworkPolicy names egress[1]",
    ]);
    let question = case("a/x api.example.org TCP 443");
    let why = explain(&mut prober.0, question.question()).unwrap();
    assert!(why.permits && why.ingress.is_none(), "{why:?}");
    let to: Vec<&str> = why.connections.iter().map(|it| it.to.as_str()).collect();
    assert_eq!(to, ["198.51.100.7", "2001:db8::7"]);
    let unknown = case("a/x www.example.org TCP 443");
    let faults: Vec<String> = prober.0.check(3, &unknown).iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        ["case 3: to: www.example.org has no address; --resolve www.example.org=ADDRESS gives one"]
    );
}

#[test]
fn addresses_that_differ_are_named_and_the_clusters_own_open_nothing() {
    let narrow = firewall(
        "narrow",
        "{action: Deny, to: [{networks: [198.51.100.8/32]}]}, \
         {action: Allow, to: [{networks: ['0.0.0.0/0']}]}",
    );
    let resolve = ["api.example.org=198.51.100.7,198.51.100.8", "b.cdn.example.net=10.1.1.2"];
    let mut prober = Cluster(prober(&(shop() + &narrow), &resolve));
    prober.says(&[
        "a/x api.example.org TCP 443: deny addresses-differ: 198.51.100.7 policy-allowed, \
         198.51.100.8 policy-denied | ClusterEgressFirewall narrow egress[0]",
        "a/x b.cdn.example.net TCP 443: deny policy-denied | ClusterNetworkPolicy names egress[1]",
    ]);
    let ignored: Vec<String> = prober.0.ignored().collect();
    assert_eq!(ignored, ["10.1.1.2: an address of the cluster or a special one, no name opens it"]);
}

#[test]
fn cases_that_must_hold_may_be_about_names() {
    let cases = "- {from: a/x, to: api.example.org, port: 443, expect: allow}\n\
                 - {from: a/*, to: api.example.org, port: 80, expect: deny}\n\
                 - everything-else: deny\n";
    let suites = [("t".to_owned(), Suite::read(cases.as_bytes()).unwrap())];
    let run = |resolve: &str| {
        let names = [resolved(resolve).unwrap()].into_iter().collect();
        let closed = policy("in", "podSelector: {}, policyTypes: [Ingress]");
        let mut runner = Runner::new(load(&(shop() + &closed)), &suites, names).unwrap();
        runner.run("t", &suites[0].1)
    };
    // The address that otherwise is the internet's.
    let outcomes = run("api.example.org=198.51.100.9").unwrap();
    assert!(outcomes.iter().all(|it| it.holds()), "{outcomes:?}");
    let faults = run("www.example.org=198.51.100.9").unwrap_err();
    assert!(faults[0].contains("api.example.org has no address"), "{faults:?}");
}

const NAMES: [&str; 4] =
    ["api.example.org", "www.example.org", "a.cdn.example.net", "cdn.example.net"];
const ADDRESSES: [&str; 5] =
    ["198.51.100.1", "198.51.100.2", "203.0.113.7", "2001:db8::7", "10.1.2.12"];
const PEERS: [&str; 6] = [
    "domainNames: [api.example.org]",
    "domainNames: ['*.example.org', a.cdn.example.net]",
    "domainNames: ['*.cdn.example.net']",
    "networks: [198.51.100.0/24]",
    "networks: [198.51.100.2/32, '2001:db8::/32']",
    "networks: ['0.0.0.0/0', '::/0']",
];

/// A rule: whether it permits, its peer, and whether it names port 443 alone.
type PlannedRule = (bool, usize, bool);

#[derive(Clone, Debug)]
struct Plan {
    /// Whether it is a firewall, and its rules.
    policies: Vec<(bool, Vec<PlannedRule>)>,
    /// Addresses of each name.
    names: Vec<Vec<usize>>,
}

fn plans() -> impl Strategy<Value = Plan> {
    let rule = (any::<bool>(), 0..PEERS.len(), any::<bool>());
    let policies = prop::collection::vec((any::<bool>(), prop::collection::vec(rule, 1..4)), 1..4);
    let addresses = proptest::sample::subsequence((0..ADDRESSES.len()).collect::<Vec<_>>(), 0..4);
    let names = prop::collection::vec(addresses, NAMES.len());
    (policies, names).prop_map(|(policies, names)| Plan { policies, names })
}

fn manifests(plan: &Plan) -> String {
    let mut text = node("n1", "192.0.2.1", "10.1.1.0/24")
        + &node("n2", "192.0.2.2", "10.1.2.0/24")
        + &pod("a/p0", "", "n1", "10.1.1.10 fd01::10", "")
        + &pod("a/p1", "", "n1", "10.1.1.11", "")
        + &pod("a/p2", "", "n2", "10.1.2.12", "");
    for (n, (is_firewall, rules)) in plan.policies.iter().enumerate() {
        let rule = |(permits, peer, only_https): &(bool, usize, bool)| {
            let peer = PEERS[*peer];
            let action = match (*permits || peer.starts_with("domainNames"), is_firewall) {
                (false, _) => "Deny",
                (true, true) => "Allow",
                (true, false) => "Accept",
            };
            let protocols = match only_https {
                true => ", protocols: [{tcp: {destinationPort: {number: 443}}}]",
                false => "",
            };
            format!("{{action: {action}, to: [{{{peer}}}]{protocols}}}")
        };
        let rules: Vec<String> = rules.iter().map(rule).collect();
        let (name, rules) = (format!("policy{n}"), rules.join(", "));
        text += &match is_firewall {
            true => firewall(&name, &rules),
            false => cluster_policy(&name, n, &rules),
        };
    }
    text
}

/// One switch for each node, as it runs: answers of DNS gave the addresses to each pod.
struct Live(BTreeMap<PodKey, (Arc<str>, PortId)>, BTreeMap<Arc<str>, Switch>);

impl Live {
    fn new(objects: &[control::Object], plan: &Plan) -> Self {
        let (mut places, mut switches) = (BTreeMap::new(), BTreeMap::new());
        for node in ["n1", "n2"].map(Arc::<str>::from) {
            let mut control = Control::new(Scope::Node(Arc::clone(&node)));
            control.resync(objects.to_vec());
            control.commit();
            let mut table = NameTable::new(domain_names::Limits::default());
            for (key, pod) in control.view().pods.iter() {
                for (text, addresses) in NAMES.iter().zip(&plan.names) {
                    if pod.names.iter().any(|it| it.matches(text)) {
                        let addresses =
                            addresses.iter().map(|n| (ADDRESSES[*n].parse().unwrap(), 60));
                        let addresses: Vec<(IpAddr, u32)> = addresses.collect();
                        let name = name(text).unwrap();
                        let answered = table.answer(key, &name, &addresses, Duration::ZERO);
                        control.set_names(&answered.changes);
                    }
                }
            }
            control.commit();
            let view = control.view();
            let pods = view.pods.iter().map(|(key, pod)| (key, pod.addresses.clone()));
            let ports = ports(pods).unwrap();
            let of_pods = view.pods.keys().zip(&ports[2..]);
            places.extend(of_pods.map(|(key, port)| (key.clone(), (Arc::clone(&node), port.id))));
            let context = snapshot::NodeContext::default();
            let snapshot = snapshot::snapshot(&view, &node, context, 1, &ports);
            switches.insert(node, Switch::new(snapshot, ports.len()));
        }
        Self(places, switches)
    }

    fn opens(&mut self, pod: &PodKey, from: IpAddr, to: IpAddr, port: u16) -> bool {
        let (node, in_port) = self.0[pod].clone();
        let opening = Opening {
            source: from,
            destination: to,
            protocol: Protocol::Tcp,
            source_port: 50_000,
            destination_port: port,
        };
        let frames = vec![opening.frame().unwrap()];
        let step = self.1.get_mut(&node).unwrap().send(in_port, frames).remove(0).unwrap();
        matches!(step.passage.outcome, Outcome::PolicyAllowed | Outcome::NoPolicy)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every pod's question about every name has the answer that the switch of its node
    /// gives to connections to the name's addresses.
    #[test]
    fn the_answer_about_a_name_is_the_switchs(plan in plans()) {
        let resolve = NAMES.iter().zip(&plan.names).filter(|(_, list)| !list.is_empty());
        let resolve = resolve.map(|(name, list)| {
            let list: Vec<&str> = list.iter().map(|n| ADDRESSES[*n]).collect();
            format!("{name}={}", list.join(","))
        });
        let resolve: Vec<String> = resolve.collect();
        let resolve: Vec<&str> = resolve.iter().map(String::as_str).collect();
        let mut prober = prober(&manifests(&plan), &resolve);
        let mut live = Live::new(&prober.manifests().objects, &plan);
        for pod in prober.pods() {
            let own = prober.world().pod(&pod).unwrap().addresses.clone();
            for (name, addresses) in NAMES.iter().zip(&plan.names).filter(|(_, it)| !it.is_empty()) {
                for port in [443, 80] {
                    let case = case(&format!("{pod} {name} TCP {port}"));
                    let answer = prober.answer([case.question()]).unwrap().remove(0);
                    let mut opened = Vec::new();
                    for to in addresses.iter().map(|n| ADDRESSES[*n].parse::<IpAddr>().unwrap()) {
                        if own.contains(&to) {
                            opened.push(true);
                        } else if let Some(from) = own.iter().find(|it| it.is_ipv4() == to.is_ipv4()) {
                            opened.push(live.opens(&pod, *from, to, port));
                        }
                    }
                    let expected = !opened.is_empty() && opened.iter().all(|it| *it);
                    prop_assert_eq!(
                        answer.verdict == ProbeVerdict::Allow, expected,
                        "{} to {} port {}: {}, but {:?}", pod, name, port, text(&answer), opened
                    );
                    prop_assert!(matches!(case.to, Endpoint::Name(_)));
                }
            }
        }
    }
}
