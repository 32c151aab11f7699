//! What peers could stand for counts though no file has it: both address families, nodes, names, the API server.

use policy_tools::input::Families;
use policy_tools::policy::diff::{Change, compare};
use policy_tools::policy::run::Runner;
use policy_tools::policy::suite::Suite;
use policy_tools::probe::DomainAddresses;

use super::proofs::refute;
use super::{deployment, manifests, policy};

/// A workload without addresses, and these egress rules.
fn web(egress: &str) -> String {
    let spec = format!("podSelector: {{}}, policyTypes: [Egress], egress: [{egress}]");
    deployment("shop", "web", "") + &policy("shop", "web", &spec)
}

const ALL_OF_IPV6: &str = "{to: [{ipBlock: {cidr: '::/0'}}]}";

/// Failures of a case, and what is undecided.
fn run(text: &str, case: &str, families: Families) -> (Vec<String>, Vec<String>) {
    let suites = [("t.yaml".to_owned(), Suite::read(case.as_bytes()).unwrap())];
    let mut manifests = manifests(text);
    manifests.families = families;
    let mut runner = Runner::new(manifests, &suites, DomainAddresses::default()).unwrap();
    let outcome = runner.run("t.yaml", &suites[0].1).unwrap().remove(0);
    (outcome.failures, outcome.undecided)
}

#[test]
fn a_workload_without_addresses_could_have_any_family() {
    let open = web(ALL_OF_IPV6);
    for to in ["2001:db8::1", "internet"] {
        let case = format!("- {{from: shop/app=web, to: '{to}', port: 443, expect: deny}}");
        let (failures, undecided) = run(&open, &case, Families::default());
        assert_eq!((failures.len(), undecided.len()), (1, 0), "{to}: {failures:?} {undecided:?}");
    }
    let deny = "- {from: shop/app=web, to: internet, port: '*', expect: deny}";
    assert!(refute(&open, deny).is_some());
    assert_eq!(refute(&web(""), deny), None);
    let opened = compare(manifests(&web("")), manifests(&open)).unwrap().differences;
    assert!(opened.iter().any(|it| it.change == Change::Opened && it.to == "internet"));
}

#[test]
fn one_family_counts_where_it_is_asked_for() {
    let case = "- {from: shop/app=web, to: internet, port: 443, expect: deny}";
    let narrowed = |v4| run(&web(ALL_OF_IPV6), case, Families::Only(v4)).0.len();
    assert_eq!((narrowed(true), narrowed(false)), (0, 1));
}

#[test]
fn what_is_allowed_has_to_be_so_in_the_family_that_pods_have() {
    let case = "- {from: shop/app=web, to: internet, port: 443, expect: allow}";
    let open = web("{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}");
    assert_eq!(run(&open, case, Families::default()), (Vec::new(), Vec::new()));
}

#[test]
fn what_nothing_decides_is_neither_allowed_nor_denied() {
    let pod = |name: &str, status: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{containers: [{{name: c}}]}}\nstatus: {{{status}}}\n"
        )
    };
    let text = pod("a", "podIPs: [{ip: 10.1.0.2}]")
        + &pod("b", "podIPs: [{ip: 'fd00::2'}]")
        + &pod("done", "phase: Succeeded");
    let case = |to: &str, expect: &str| {
        let case = format!("- {{from: shop/a, to: '{to}', port: 80, expect: {expect}}}");
        run(&text, &case, Families::default())
    };
    for to in ["shop/b", "2001:db8::1", "shop/done"] {
        for expect in ["deny", "allow"] {
            let (failures, undecided) = case(to, expect);
            assert_eq!((failures.len(), undecided.len()), (0, 1), "{to} {expect}");
        }
        assert_eq!(case(to, "unreachable"), (Vec::new(), Vec::new()), "{to}");
    }
    assert_eq!(case("192.0.2.7", "unreachable").0.len(), 1);
}

/// A ClusterNetworkPolicy for all pods with one egress rule.
fn cluster_policy(rule: &str) -> String {
    deployment("shop", "web", "")
        + &format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\n\
             metadata: {{name: c}}\nspec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, \
             egress: [{rule}]}}\n"
        )
}

#[test]
fn a_difference_sees_nodes_names_and_the_api_server() {
    let closed = "{action: Deny, to: [{networks: ['0.0.0.0/0', '::/0']}]}";
    let with = |rule: &str| cluster_policy(&format!("{rule}, {closed}"));
    let ends = |old: &str, new: &str, change: Change| {
        let found = compare(manifests(old), manifests(new)).unwrap().differences;
        let changed = found.into_iter().filter(|it| it.change == change);
        let mut ends: Vec<String> = changed.map(|it| it.to).collect();
        ends.dedup();
        ends
    };
    let before = cluster_policy(closed);
    for (rule, end) in [
        ("{action: Accept, to: [{nodes: {matchLabels: {pool: edge}}}]}", "any node with pool=edge"),
        ("{action: Accept, to: [{domainNames: ['*.example.org']}]}", "*.example.org"),
        ("{action: Accept, to: [{domainNames: ['api.example.org']}]}", "api.example.org"),
    ] {
        let opened = ends(&before, &with(rule), Change::Opened);
        assert!(opened.iter().any(|it| it.starts_with(end)), "{rule}: {opened:?}");
        assert_eq!(ends(&with(rule), &before, Change::Opened), Vec::<String>::new(), "{rule}");
    }
    let firewall = |rules: &str| {
        deployment("shop", "web", "")
            + "---\napiVersion: podgate.io/v1alpha1\nkind: ClusterEgressFirewall\n\
               metadata: {name: f}\nspec: {egress: ["
            + rules
            + "]}\n"
    };
    let api = firewall("{action: Deny, to: [{apiServer: {}}]}");
    let opened = ends(&api, &firewall("{action: Allow, to: [{apiServer: {}}]}"), Change::Opened);
    assert!(opened.iter().any(|it| it == "the API server"), "{opened:?}");
}

#[test]
fn the_internet_has_what_names_lead_to() {
    let rules = "{action: Accept, to: [{domainNames: ['api.example.org']}]}, \
                 {action: Deny, to: [{networks: ['0.0.0.0/0', '::/0']}]}";
    let deny = "- {from: shop/app=web, to: internet, port: '*', expect: deny}";
    let found = refute(&cluster_policy(rules), deny).expect("a name opens its addresses");
    assert_eq!(found.to, "api.example.org");
}
