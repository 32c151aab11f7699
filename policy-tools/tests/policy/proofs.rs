//! What is proved holds for every pod: named ports and networks inside those of pods count.

use std::net::IpAddr;

use policy_tools::policy::prove::{Counterexample, Prover, read};
use policy_tools::probe::{DomainAddresses, Endpoint, Port, Prober, Protocol, Question, Verdict};
use proptest::prelude::*;

use super::{deployment, manifests, policy};

/// What refutes a statement about these manifests.
fn refute(text: &str, statement: &str) -> Option<Counterexample> {
    let statements = read(statement.as_bytes()).unwrap_or_else(|faults| panic!("{faults:?}"));
    let prover = Prover::new(manifests(text), statements.iter(), DomainAddresses::default(), &[]);
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
    let address = |found: &Counterexample| found.connections[0].ends[0].1;
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

fn namespace(name: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
    )
}

#[test]
fn a_statement_leaves_ports_out() {
    let out = |ports: &str| {
        let spec = format!(
            "podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{namespaceSelector: {{}}}}]}}, {{to: \
             [{{ipBlock: {{cidr: 0.0.0.0/0}}}}], ports: [{ports}]}}]"
        );
        deployment("prod", "web", "") + &policy("prod", "out", &spec)
    };
    let all = "from: prod/*, to: internet, port: '*', expect: deny";
    let but = |except: &str| format!("- {{{all}, except: [{except}]}}");
    let dns = "{protocol: UDP, port: 53}, {port: 53}";
    let only_dns = out("{protocol: UDP, port: 53}, {port: 53}");
    assert_eq!(refute(&only_dns, &but(dns)), None);
    let found = refute(&only_dns, &but("{protocol: UDP, port: 53}")).expect("TCP 53 is left");
    assert_eq!((found.protocol, found.port), ("TCP", Some(53)));
    let range = out("{port: 53, endPort: 54}");
    assert_eq!(refute(&range, &but(dns)).expect("54 is left").port, Some(54));
    assert_eq!(refute(&range, &but("{port: 53}, {port: 54}")), None);
    assert_eq!(refute(&range, &but("{port: '*'}")), None);
    // Port 1 is the first of all, and a name may stand for another one.
    let named = db("{ports: [{port: http}]}");
    let fields = "from: internet, to: shop/app=db, protocol: TCP, port: '*', expect: deny";
    let found = refute(&named, &format!("- {{{fields}, except: [{{port: 1}}]}}"));
    assert_ne!(found.expect("http may be 2").port, Some(1));
}

#[test]
fn a_side_denies_what_no_rule_allows() {
    let closed = |namespace: &str, types: &str| {
        policy(
            namespace,
            &types.to_lowercase(),
            &format!("podSelector: {{}}, policyTypes: [{types}]"),
        )
    };
    let text = namespace("shop", "") + &namespace("ops", "") + &closed("shop", "Ingress");
    let existing = "- {to: existing-namespace, expect: default-deny}";
    let found = refute(&text, existing).expect("ops has no policy");
    assert!(found.to.contains("namespace ops"), "{found}");
    let text = text + &closed("ops", "Ingress");
    assert_eq!(refute(&text, existing), None);
    // What a rule allows is not by default.
    let web = "podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]";
    assert_eq!(refute(&(text.clone() + &policy("ops", "web", web)), existing), None);
    let found = refute(&text, "- {to: any-pod, expect: default-deny}").expect("another namespace");
    assert!(found.to.contains("any other namespace"), "{found}");
    // A policy that selects some pods says nothing about others.
    let some = namespace("shop", "") + &policy("shop", "web", web);
    assert!(refute(&some, existing).is_some_and(|it| it.to.starts_with("any pod of")));
    let egress = "- {from: existing-namespace, expect: default-deny}";
    assert!(refute(&text, egress).is_some());
    let text = text + &closed("shop", "Egress") + &closed("ops", "Egress");
    assert_eq!(refute(&text, egress), None);
    let but = "- {from: '(team=x)/*', expect: default-deny, except: [{protocol: ICMP}]}";
    let found = refute(&text, but).expect("namespaces that are in no file have no policy");
    assert_ne!(found.protocol, "ICMP");
}

/// The ledger may reach the gateway, and the gateway the rest.
fn two_hops(last: &str) -> String {
    let egress = |name: &str, to: &str| {
        policy(
            "pci",
            name,
            &format!(
                "podSelector: {{matchLabels: {{app: {name}}}}}, policyTypes: [Ingress, Egress], ingress: \
                 [{{from: [{{podSelector: {{}}}}]}}], egress: [{{to: [{to}], ports: [{{port: 443}}]}}]"
            ),
        )
    };
    namespace("pci", "pci: 'true'")
        + &egress("ledger", "{podSelector: {matchLabels: {app: gateway}}}")
        + &egress("gateway", last)
        + &policy("pci", "closed", "podSelector: {}, policyTypes: [Ingress, Egress]")
}

#[test]
fn an_end_may_be_reached_over_a_pod() {
    let open = two_hops("{namespaceSelector: {}}");
    let ledger = |hops: u8| {
        format!(
            "- {{from: pci/app=ledger, to: '(pci!=true)/*', port: '*', hops: {hops}, expect: deny}}"
        )
    };
    assert_eq!(refute(&open, &ledger(1)), None);
    let found = refute(&open, &ledger(2)).expect("over the gateway");
    assert!(found.via[0].to.starts_with("any pod with app=gateway of namespace pci"), "{found}");
    assert_eq!(
        found.via[0].by,
        [
            "NetworkPolicy pci/ledger egress[0]".into(),
            "NetworkPolicy pci/gateway ingress[0]".into()
        ]
    );
    assert_eq!(found.by, ["NetworkPolicy pci/gateway egress[0]".into()]);
    let [first, second] = &found.connections[..] else { panic!("{found}") };
    assert_eq!(first.ends[1].0, second.ends[0].0);
    assert_ne!(first.ends[0].0, second.ends[1].0);
    let shut = two_hops("{podSelector: {matchLabels: {app: gateway}}}");
    assert_eq!(refute(&shut, &ledger(2)), None);
    let never = "- {from: pci/*, to: '(pci!=true)/*', port: '*', hops: 2, expect: deny}";
    assert_eq!(refute(&shut, never), None);
    assert_eq!(refute(&open, never).expect("the gateway may").via, []);
    let outside = "- {from: internet, to: pci/app=ledger, port: 443, hops: 2, expect: deny}";
    let inner = two_hops("{podSelector: {}}");
    assert_eq!(refute(&inner, outside), None);
    let web = "podSelector: {matchLabels: {app: gateway}}, ingress: [{ports: [{port: 80}]}]";
    let found = refute(&(inner + &policy("pci", "web", web)), outside).expect("over the gateway");
    assert_eq!((found.via[0].port, found.port), (Some(80), Some(443)));
    // No policy selects pods of a namespace with this label that is in no file.
    let label = "- {from: '(pci=true)/*', to: '(pci!=true)/*', port: '*', expect: deny}";
    assert!(refute(&open, label).is_some());
}

#[test]
fn a_port_name_is_one_of_an_end() {
    let faults = |statement: &str| read(statement.as_bytes()).unwrap_err().join("\n");
    for to in ["internet", "node/*", "node/n", "192.0.2.7", "api.example.org"] {
        let said = faults(&format!("- {{from: any-pod, to: '{to}', port: http, expect: deny}}"));
        let wanted = "statement 1 (line 1): port: a name stands for a port of pods and services alone: write a \
                      number";
        assert_eq!(said, wanted, "{to}");
    }
    let text = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop}\nspec: {containers: [{name: \
                c, ports: [{name: sql, containerPort: 5432}]}]}\n";
    let prove = |port: &str| {
        let statement = format!("- {{from: any-pod, to: shop/db, port: {port}, expect: deny}}");
        let statements = read(statement.as_bytes()).unwrap();
        let prover =
            Prover::new(manifests(text), statements.iter(), DomainAddresses::default(), &[])
                .unwrap();
        prover.refute(&statements[0])
    };
    assert!(prove("sql").unwrap().is_some());
    assert_eq!(prove("http").unwrap_err(), "port: nothing that `to` stands for has a port http");
}

#[test]
fn fields_that_do_not_fit_are_named() {
    let cases = [
        (
            "from: any-pod, to: any-pod, port: 1, hops: 3, expect: deny",
            "hops: 3 is neither 1 nor 2",
        ),
        ("only: [any-pod], to: any-pod, port: 1, hops: 2", "hops: goes with from and expect: deny"),
        (
            "from: any-pod, to: any-pod, port: 1, hops: 2, expect: allow",
            "hops: goes with from and expect: deny",
        ),
        (
            "from: any-pod, to: any-pod, expect: default-deny",
            "expect: \"default-deny\" goes with either to",
        ),
        ("expect: default-deny", "expect: \"default-deny\" goes with either to"),
        (
            "from: any-pod, to: any-pod, port: 1, expect: maybe",
            "expect: \"maybe\" is neither \"allow\" nor \"deny\" nor",
        ),
        (
            "from: a/b, to: c/d, port: '*', expect: deny, except: 53",
            "except: is no list of {protocol, port}",
        ),
        (
            "from: a/b, to: c/d, port: '*', expect: deny, except: [53]",
            "except[0]: 53 is no {protocol, port}",
        ),
        ("from: a/b, to: c/d, port: '*', expect: deny, except: [{}]", "except[0].port: is missing"),
        (
            "from: a/b, to: c/d, port: '*', expect: deny, except: [{prot: UDP, port: 1}]",
            "except[0].prot: unknown field",
        ),
        (
            "from: a/b, to: c/d, port: '*', expect: deny, except: [{port: dns}]",
            "except[0].port: is no number",
        ),
        (
            "from: a/b, to: c/d, port: '*', expect: deny, except: [{protocol: X, port: 1}]",
            "except[0].protocol: \"X\" is none",
        ),
    ];
    for (fields, wanted) in cases {
        let said = read(format!("- {{{fields}}}").as_bytes()).unwrap_err();
        assert!(said.len() == 1 && said[0].contains(wanted), "{fields}: {said:?}");
    }
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
            // What is proved, most often is by a policy of the end.
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
                real.answer([question]).remove(0).verdict == Verdict::Allow
            })
        };
        let every = [1, 79, 80, 81, 8000, 8050, 8100, 8101, 65_535];
        let last: &[u16] = if ports == "80" { &[80] } else { &every };
        prop_assert!(!opens(0, 2, last));
        prop_assert!(!(opens(0, 1, &every) && opens(1, 2, last)));
    }
}
