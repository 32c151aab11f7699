//! What is proved holds for every pod: named ports and networks inside those of pods count.

use std::net::IpAddr;

use policy_tools::policy::prove::{Counterexample, Prover, read};
use policy_tools::probe::{Endpoint, Names, Port, Prober, Protocol, Question};
use proptest::prelude::*;

use super::{deployment, manifests, policy};

/// What refutes a statement about these manifests.
fn refute(text: &str, statement: &str) -> Option<Counterexample> {
    let statements = read(statement.as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}"));
    let prover = Prover::new(manifests(text), statements.iter(), Names::default(), &[]);
    let prover = prover.unwrap_or_else(|problem| panic!("{problem}"));
    prover.refute(&statements[0]).unwrap_or_else(|problem| panic!("{problem}"))
}

fn db(rules: &str) -> String {
    let spec = format!("podSelector: {{matchLabels: {{app: db}}}}, ingress: [{rules}]");
    deployment("shop", "db", "") + &policy("shop", "db", &spec)
}

#[test]
fn a_named_port_may_have_any_number() {
    let text = db("{ports: [{port: http}]}, {from: [{podSelector: {}}], ports: [{port: 80}]}");
    let deny = |port: &str| {
        let fields = "from: internet, to: shop/app=db, protocol: TCP, expect: deny";
        refute(&text, &format!("- {{{fields}, port: {port}}}"))
    };
    for port in ["22", "'*'", "http"] {
        let found = deny(port).unwrap_or_else(|| panic!("{port} is not refuted"));
        assert_eq!(found.by, ["NetworkPolicy shop/db ingress[0]".into()]);
        assert!(found.to.contains(" and port http="), "{found}");
    }
    let other = "- {from: internet, to: shop/app=db, protocol: TCP, port: admin, expect: deny}";
    let found = refute(&text, other).expect("both names may have the same number");
    assert!(found.to.contains("port admin=") && found.to.contains("port http="), "{found}");
    // A rule by name is for pods whose port it is.
    let text = db("{from: [{podSelector: {}}], ports: [{port: http}]}");
    let outside = "- {from: internet, to: shop/app=db, port: '*', expect: deny}";
    assert_eq!(refute(&text, outside), None);
}

#[test]
fn an_egress_rule_by_name_is_about_the_ports_of_its_peers() {
    let text = deployment("shop", "web", "")
        + &policy(
            "shop",
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: \
             [{podSelector: {matchLabels: {app: db}}}], ports: [{port: db}]}]",
        );
    let to = |to: &str| format!("- {{from: shop/app=web, to: {to}, port: 5432, expect: deny}}");
    let found = refute(&text, &to("any-pod")).expect("a database may listen there");
    assert_eq!(
        found.to,
        "any pod with app=db and port db=5432 of namespace shop (none in these files)"
    );
    assert_eq!(refute(&text, &to("any-namespace")), None);
    assert_eq!(refute(&text, &to("shop/app=web")), None);
}

#[test]
fn a_network_inside_those_of_pods_holds_some_pods() {
    let block =
        |net: &str| db(&format!("{{from: [{{ipBlock: {{{net}}}}}], ports: [{{port: 80}}]}}"));
    let deny = "- {from: any-pod, to: shop/app=db, port: '*', expect: deny}";
    let address = |found: &Counterexample| found.ends[0].1;
    let found = refute(&block("cidr: 10.1.2.3/32"), deny).expect("a pod may have this address");
    assert_eq!(address(&found), IpAddr::from([10, 1, 2, 3]));
    assert!(found.from.ends_with(" at 10.1.2.3/32 (none in these files)"), "{found}");
    let found = refute(&block("cidr: 10.1.0.0/16, except: [10.1.0.0/17]"), deny).expect("the rest");
    assert_eq!(address(&found), IpAddr::from([10, 1, 128, 2]));
    let outside = "cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16]";
    assert_eq!(refute(&block(outside), deny), None);
    // Where nodes say which networks pods have, no other one counts.
    let node =
        "---\napiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.7.0.0/16]}\n";
    assert_eq!(refute(&(block("cidr: 10.1.0.0/16") + node), deny), None);
    assert!(refute(&(block("cidr: 10.7.1.0/24") + node), deny).is_some());
}

#[test]
fn pods_that_could_exist_may_be_on_any_node() {
    let firewall = "---\napiVersion: podgate.io/v1alpha1\nkind: ClusterEgressFirewall\n\
        metadata: {name: edge}\nspec: {subject: {nodes: {matchLabels: {pool: edge}}}, \
        egress: [{action: Deny, to: [{networks: ['0.0.0.0/0']}]}]}\n";
    let text = deployment("shop", "db", "") + firewall;
    let all = "- {from: any-pod, to: internet, port: '*', expect: deny}";
    let found = refute(&text, all).expect("pods of other nodes may");
    assert!(found.from.contains(" on any node"), "{found}");
    assert!(!found.from.contains("pool=edge"), "{found}");
    // Nor is the node known of a pod that exists.
    let db = "- {from: shop/app=db, to: internet, port: '*', expect: deny}";
    assert!(refute(&text, db).is_some());
    let node = |pool: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: n, labels: {{pool: {pool}}}}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: db-1, namespace: shop, labels: {{app: db}}}}\n\
             spec: {{nodeName: n, containers: [{{name: c}}]}}\n"
        )
    };
    let one = |pool: &str| {
        refute(
            &(node(pool) + firewall),
            "- {from: shop/db-1, to: internet, port: '*', expect: deny}",
        )
    };
    assert_eq!(one("edge"), None);
    assert!(one("core").is_some());
    let everywhere = firewall.replace("pool: edge", "");
    assert_eq!(refute(&(deployment("shop", "db", "") + &everywhere), all), None);
}

const PEERS: [&str; 6] = [
    "{podSelector: {}}",
    "{podSelector: {matchLabels: {role: debug}}}",
    "{namespaceSelector: {matchLabels: {team: ops}}}",
    "{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.2.0/24]}}",
    "{ipBlock: {cidr: 10.1.2.3/32}}",
    "{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}",
];
const PORTS: [&str; 5] = [
    "{port: http}",
    "{port: admin}",
    "{port: 80}",
    "{port: 8000, endPort: 8100}",
    "{port: http, protocol: UDP}",
];
const ADDRESSES: [&str; 5] = ["10.1.2.3", "10.1.2.4", "10.1.9.9", "10.9.9.9", "172.16.5.5"];

fn rule(ends: &str, (peer, port): &(usize, usize)) -> String {
    format!("{{{ends}: [{}], ports: [{}]}}", PEERS[*peer], PORTS[*port])
}

fn rules() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..PEERS.len(), 0..PORTS.len()), 1..3)
}

fn pod(namespace: &str, name: &str, labels: &str, ports: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: \
         {{{labels}}}}}\nspec: {{nodeName: n, containers: [{{name: c, ports: [{ports}]}}]}}\nstatus: \
         {{podIPs: [{{ip: {address}}}]}}\n"
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_concrete_pod_contradicts_a_proof(
        ingress in rules(),
        egress in prop::option::of(rules()),
        from in prop::sample::select(vec!["any-pod", "shop/role=debug", "*/role=debug"]),
        port in prop::sample::select(vec!["80", "81", "8050", "'*'", "http"]),
        expect in prop::sample::select(vec!["deny", "deny", "allow"]),
        role in prop::option::of(prop::sample::select(vec!["debug", "x"])),
        namespace in prop::sample::select(vec!["shop", "ops", "other"]),
        addresses in prop::sample::subsequence(ADDRESSES.to_vec(), 2).prop_shuffle(),
        http in prop::sample::select(vec![0, 80, 81, 8050]),
        admin in prop::sample::select(vec![0, 80, 81, 8050]),
    ) {
        let list = |ends: &str, rules: &[(usize, usize)]| {
            rules.iter().map(|it| rule(ends, it)).collect::<Vec<_>>().join(", ")
        };
        let mut text = policy("shop", "db", &format!(
            "podSelector: {{matchLabels: {{app: db}}}}, ingress: [{}]", list("from", &ingress)
        ));
        if let Some(rules) = &egress {
            text += &policy("shop", "out", &format!(
                "podSelector: {{}}, policyTypes: [Egress], egress: [{}]", list("to", rules)
            ));
        }
        let fields = "to: shop/app=db, protocol: TCP";
        let statement = format!("- {{from: '{from}', {fields}, port: {port}, expect: {expect}}}");
        let is_meant = match from {
            "any-pod" => true,
            "shop/role=debug" => namespace == "shop" && role == Some("debug"),
            _ => role == Some("debug"),
        };
        prop_assume!(is_meant);
        let is_proved = refute(&text, &statement).is_none();

        let labels = role.map_or_else(String::new, |role| format!("role: {role}"));
        let named = |(name, number): (&str, i32)| {
            (number > 0).then(|| format!("{{name: {name}, containerPort: {number}}}"))
        };
        let ports: Vec<String> =
            [("http", http), ("admin", admin)].into_iter().filter_map(named).collect();
        text += "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ops, labels: {team: ops}}\n";
        text += &pod(namespace, "a", &labels, "", addresses[0]);
        text += &pod("shop", "b", "app: db", &ports.join(", "), addresses[1]);
        let mut real = Prober::new(manifests(&text), []).unwrap();
        let numbers: Vec<u16> = match port {
            "'*'" => vec![1, 79, 80, 81, 8000, 8050, 8100, 8101, 65_535],
            "http" => [http].into_iter().filter(|it| *it > 0).map(|it| it as u16).collect(),
            number => vec![number.parse().unwrap()],
        };
        let end = |name: &str| -> Endpoint { policy_tools::probe::case::endpoint(name).unwrap() };
        let (a, b) = (end(&format!("{namespace}/a")), end("shop/b"));
        for number in numbers {
            let port = Port::Number(number);
            let question =
                Question { from: &a, to: &b, protocol: Protocol::Tcp, port: Some(&port) };
            let answer = real.answer([question]).remove(0);
            let agrees = answer.verdict.to_string() == expect;
            prop_assert!(!is_proved || agrees, "{number}: {} {:?}", answer.verdict, answer.by);
        }
    }
}
