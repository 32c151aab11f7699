//! A proof holds for every pod: named ports and networks inside those of pods count.

use std::net::IpAddr;

use policy_tools::policy::prove::{Counterexample, Prover, read};
use policy_tools::probe::DomainAddresses;

use super::{deployment, manifests, policy};

/// Returns the counterexamples of a statement about these manifests.
pub(super) fn refute(text: &str, statement: &str) -> Option<Counterexample> {
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
        egress: [{action: Deny, to: [{networks: ['0.0.0.0/0', '::/0']}]}]}\n";
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

pub(super) fn namespace(name: &str, labels: &str) -> String {
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
    // A connection that a rule allows is not denied by default.
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
            "except: is not a list of {protocol, port}",
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
            "except[0].port: is not a number",
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
