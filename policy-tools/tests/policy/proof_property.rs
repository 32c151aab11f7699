//! No pod that is added contradicts a proof, whatever its labels, ports and address.

use policy_tools::probe::{Endpoint, Port, ProbeVerdict, Prober, Protocol, Question};
use proptest::prelude::*;

use super::proofs::{namespace, refute};
use super::{manifests, policy};

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
            let answer = real.answer([question]).unwrap().remove(0);
            let agrees = answer.verdict.to_string() == expect;
            prop_assert!(!is_proved || agrees, "{number}: {} {:?}", answer.verdict, answer.by);
        }
    }

    #[test]
    fn no_three_concrete_pods_contradict_a_proof_over_a_pod(
        rules in prop::collection::vec((0..3_usize, any::<bool>(), rules()), 1..5),
        from in prop::sample::select(vec!["any-pod", "*/role=debug", "ops/role=debug"]),
        ports in prop::sample::select(vec!["80", "'*'"]),
        roles in prop::collection::vec(prop::option::of(prop::sample::select(vec!["debug", "x"])), 2),
        namespaces in prop::collection::vec(prop::sample::select(vec!["shop", "ops", "other"]), 2),
        addresses in prop::sample::subsequence(ADDRESSES.to_vec(), 3).prop_shuffle(),
    ) {
        let selected = ["podSelector: {matchLabels: {app: db}}", "podSelector: {matchLabels: {role: debug}}", "podSelector: {}"];
        let mut text = namespace("ops", "team: ops");
        for (n, (selects, is_egress, rules)) in rules.iter().enumerate() {
            // Most proofs rest on a policy of the target.
            let (selects, is_egress) = if n == 0 { (0, false) } else { (*selects, *is_egress) };
            let (field, kind, ends) = match is_egress {
                true => ("egress", "Egress", "to"),
                false => ("ingress", "Ingress", "from"),
            };
            let rules: Vec<String> = rules.iter().map(|it| rule(ends, it)).collect();
            let spec = format!("{}, policyTypes: [{kind}], {field}: [{}]", selected[selects], rules.join(", "));
            text += &policy(["shop", "ops"][n % 2], &format!("p{n}"), &spec);
        }
        let mut places = [(namespaces[0], roles[0]), (namespaces[1], roles[1])];
        match from {
            "any-pod" => {}
            "ops/role=debug" => places[0] = ("ops", Some("debug")),
            _ => places[0].1 = Some("debug"),
        }
        let fields = "to: shop/app=db, protocol: TCP, hops: 2, expect: deny";
        let statement = format!("- {{from: '{from}', {fields}, port: {ports}}}");
        if refute(&text, &statement).is_some() {
            return Ok(());
        }
        for (n, name) in ["a", "m"].into_iter().enumerate() {
            let (namespace, role) = places[n];
            let labels = role.map_or_else(String::new, |role| format!("role: {role}"));
            text += &pod(namespace, name, &labels, "", addresses[n]);
        }
        text += &pod("shop", "b", "app: db", "", addresses[2]);
        let mut real = Prober::new(manifests(&text), []).unwrap();
        let end = |name: &str| -> Endpoint { policy_tools::probe::case::endpoint(name).unwrap() };
        let pods = [format!("{}/a", places[0].0), format!("{}/m", places[1].0), "shop/b".into()];
        let mut opens = |from: usize, to: usize, numbers: &[u16]| {
            let (from, to) = (end(&pods[from]), end(&pods[to]));
            numbers.iter().any(|number| {
                let port = Port::Number(*number);
                let question =
                    Question { from: &from, to: &to, protocol: Protocol::Tcp, port: Some(&port) };
                real.answer([question]).unwrap().remove(0).verdict == ProbeVerdict::Allow
            })
        };
        let every = [1, 79, 80, 81, 8000, 8050, 8100, 8101, 65_535];
        let last: &[u16] = if ports == "80" { &[80] } else { &every };
        prop_assert!(!opens(0, 2, last));
        prop_assert!(!(opens(0, 1, &every) && opens(1, 2, last)));
    }
}
