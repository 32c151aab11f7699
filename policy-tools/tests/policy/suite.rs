//! Cases with selectors.

use policy_tools::policy::run::Runner;
use policy_tools::policy::suite::Suite;
use policy_tools::probe::DomainAddresses;

use super::{manifests, policy, shop};

/// `NAME: ok` or the failures of each case.
fn run(text: &str, cases: &str) -> Vec<String> {
    let suite = Suite::read(cases.as_bytes()).unwrap();
    let suites = [("t.yaml".to_owned(), suite)];
    let mut runner = Runner::new(manifests(text), &suites, DomainAddresses::default()).unwrap();
    let outcomes = runner.run("t.yaml", &suites[0].1).unwrap_or_else(|faults| panic!("{faults:?}"));
    let said = |outcome: policy_tools::policy::run::CaseOutcome| match outcome.holds() {
        true => format!("{}: ok", outcome.name),
        false => format!("{}: {}", outcome.name, outcome.failures.join("; ")),
    };
    outcomes.into_iter().map(said).collect()
}

#[test]
fn selectors_services_the_internet_and_cluster_nodes() {
    let cases = "
- {name: reads, from: shop/app=backend, to: shop/app=db, protocol: TCP, port: 5432, expect: allow}
- {name: service, from: shop/app=frontend, to: service/shop/backend, port: 80, expect: allow}
- {name: named, from: shop/app=frontend, to: shop/backend, port: http, expect: allow}
- {name: outside, from: internet, to: shop/app=db, port: 5432, expect: deny}
- {name: wrong, from: '*', to: shop/app=db, port: 5432, expect: deny}
- {name: egress, from: 'shop/*', to: internet, port: 443, expect: allow}
";
    assert_eq!(
        run(&shop(), cases),
        [
            "reads: ok",
            "service: ok",
            "named: ok",
            "outside: ok",
            "wrong: shop/backend to shop/db TCP 5432: allow, policy-allowed, \
             by NetworkPolicy shop/db ingress[0]",
            "egress: ok",
        ]
    );
}

#[test]
fn pods_that_could_exist() {
    let open = shop()
        + &policy(
            "shop",
            "ops",
            "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{namespaceSelector: \
             {matchLabels: {team: ops}}}], ports: [{port: 22}]}]",
        );
    let cases = "
- {name: ssh, from: any-pod, to: shop/app=db, port: 22, expect: deny}
- {name: files, from: '*', to: shop/app=db, port: 22, expect: deny}
- {name: closed, from: any-pod, to: shop/app=db, port: 23, expect: deny}
";
    assert_eq!(
        run(&open, cases),
        [
            "ssh: any pod of any namespace with team=ops (none in these files) to shop/db TCP 22: \
             allow, policy-allowed, by NetworkPolicy shop/ops ingress[0]",
            "files: ok",
            "closed: ok",
        ]
    );
}

#[test]
fn everything_else_is_denied_or_listed() {
    let closed = shop()
        + &policy("shop", "closed", "podSelector: {}, policyTypes: [Ingress, Egress]")
        + &policy(
            "shop",
            "egress",
            "podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]",
        );
    let cases = "
- {from: shop/app=frontend, to: service/shop/backend, port: 80, expect: allow}
- {from: shop/app=backend, to: shop/app=db, port: 5432, expect: allow}
- everything-else: deny
";
    let said = run(&closed, cases);
    assert_eq!(said[2], "everything else: deny: ok", "{said:?}");
    // Without the second case its connection is one of the others.
    let fewer: String =
        cases.lines().filter(|line| !line.contains("5432")).collect::<Vec<_>>().join("\n");
    let said = run(&closed, &fewer);
    assert_eq!(
        said[1],
        "everything else: deny: shop/backend to shop/db TCP 5432: allow, \
         by NetworkPolicy shop/egress egress[0], NetworkPolicy shop/db ingress[0]"
    );
}

#[test]
fn an_end_that_does_not_exist_is_unusable() {
    let suite = Suite::read(b"- {from: shop/app=nobody, to: shop/ghost, port: 80, expect: deny}\n")
        .unwrap();
    let suites = [("t.yaml".to_owned(), suite)];
    let mut runner = Runner::new(manifests(&shop()), &suites, DomainAddresses::default()).unwrap();
    assert_eq!(
        runner.run("t.yaml", &suites[0].1).unwrap_err(),
        [
            "t.yaml: line 1: from: selects nothing in the manifests",
            "t.yaml: line 1: to: Pod shop/ghost is not in the manifests",
        ]
    );
}
