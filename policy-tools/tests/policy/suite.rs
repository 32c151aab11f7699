//! Cases with selectors.

use policy_tools::input::Manifests;
use policy_tools::policy::mixed::{self, Mixed};
use policy_tools::policy::prove;
use policy_tools::policy::run::Runner;
use policy_tools::policy::suite::Suite;
use policy_tools::probe::{DomainAddresses, cases};
use testkit::TempDir;

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

/// Samples in the heads of source files are what the commands take.
#[test]
fn samples_in_heads_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut read = 0;
    let mut folders = vec![std::path::PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let head: String = text
                .lines()
                .map_while(|line| line.strip_prefix("//!"))
                .map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n")
                .collect();
            for block in head.split("```").skip(1).step_by(2) {
                let Some((language, sample)) = block.split_once('\n') else { continue };
                if !sample.contains("expect") {
                    continue;
                }
                read += 1;
                let fault = match language {
                    "json" => cases::read(sample.as_bytes()).err().map(|it| format!("{it:?}")),
                    _ => Suite::read(sample.as_bytes()).err().map(|it| format!("{it:?}")),
                };
                assert_eq!(fault, None, "{}: {sample}", path.display());
            }
        }
    }
    assert!(read >= 2, "samples of cases are found");
}

/// A broken policy beside an alert with braces is a fault; a template is skipped, and said to be.
#[test]
fn a_template_is_a_file_whose_actions_are_no_yaml() {
    let folder = TempDir::new("templates");
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || Manifests::load(&[folder.path().to_path_buf()]);
    file("shop.yaml", &shop());
    let broken = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, \
                  namespace: shop}\nspec: {podSelector: {matchLabels: {app: db}}, policyTypes: \
                  [Ingress]\n---\n";
    let alert = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: db}\n\
                 spec: {summary: \"{{ $labels.instance }} is down\"}\n";
    file("db.yaml", &format!("{broken}{alert}"));
    let faults = load().unwrap_err();
    assert!(faults[0].contains("db.yaml") && faults[0].contains("(line "), "{faults:?}");
    file("db.yaml", &alert.replace("spec: {", "spec: {x: {{ .Values.x }}, "));
    let found = load().unwrap();
    assert_eq!(found.templates.len(), 1, "{:?}", found.skipped);
    assert!(found.templates[0].contains("db.yaml"), "{:?}", found.templates);
    file("db.yaml", alert);
    assert_eq!(load().unwrap().templates, Vec::<String>::new());
}

/// Statements among cases are proved, and files of another kind are named as such.
#[test]
fn a_statement_is_a_case_too() {
    let text = "
- {name: reads, from: shop/app=backend, to: shop/app=db, port: 5432, expect: allow}
- {name: nobody else, only: [shop/app=backend], to: shop/app=db, port: 5432}
- {name: no other port, from: any-pod, to: shop/app=db, port: '*', except: [{port: 5432}], expect: deny}
- {name: closed, from: any-pod, to: shop/app=backend, port: '*', expect: deny}
";
    let files = vec![("t.yaml".to_owned(), Mixed::read(text.as_bytes()).unwrap())];
    let found = mixed::run(manifests(&shop()), files, DomainAddresses::default(), |_| {}).unwrap();
    let told: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.line, it.holds())).collect();
    assert_eq!(
        told,
        [
            ("reads", 2, true),
            ("nobody else", 3, true),
            ("no other port", 4, true),
            ("closed", 5, false)
        ]
    );
    assert!(found[3].failures[0].contains("NetworkPolicy shop/backend ingress[0]"));
    let object = b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
    for said in [Mixed::read(object).unwrap_err(), prove::read(object).unwrap_err()] {
        assert!(said[0].contains("an object of Kubernetes"), "{said:?}");
    }
    let said = prove::read(b"- everything-else: deny\n").unwrap_err();
    assert!(said[0].contains("podgate policy test reads it"), "{said:?}");
}
