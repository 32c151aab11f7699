//! The webhook's answer to a change agrees with the whole cluster, before and after.

use std::time::{Duration, Instant};

use control::model::Direction;
use control::{Kind, Object};
use policy_tools::admission::{Change, Cluster, Findings, Invariants, read};
use policy_tools::policy::prove::{Prover, Statement};
use policy_tools::probe::DomainAddresses;
use proptest::prelude::*;

use super::{manifests, policy};

const STATEMENTS: &str = "
- {name: only, only: [n0/app=a], to: n0/app=b, port: '*'}
- {name: alone, from: any-pod, to: n1/app=a, port: '*', expect: deny}
- {name: outside, from: internet, to: n2/app=b, port: '*', expect: deny}
- {name: inside, from: n1/app=b, to: internet, port: '*', expect: deny}
- {name: between, from: n1/app=a, to: n0/app=b, port: 80, expect: deny}
- {name: read, from: n2/app=a, to: n0/app=b, port: 80, expect: allow}
- {name: closed, to: existing-namespace, expect: default-deny}
- {name: silent, from: n1/app=a, expect: default-deny}
- {name: red, from: '(team=red)/*', to: n1/app=b, port: '*', except: [{port: 443}], expect: deny}
- {name: existing, from: existing-namespace, to: n2/app=a, port: 80, expect: deny}
- {name: far, from: n1/app=a, to: n0/app=b, port: 80, hops: 2, expect: deny}
";

const PEERS: [&str; 5] = [
    "{podSelector: {matchLabels: {app: a}}}",
    "{namespaceSelector: {}}",
    "{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: b}}}",
    "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: n1}}}",
    "{ipBlock: {cidr: 198.18.0.0/16}}",
];

/// A policy: its name, namespace and selector, whether it is about egress, and its peers; no rule without any.
type Random = (usize, usize, usize, Direction, Vec<usize>);

fn random() -> impl Strategy<Value = Random> {
    let direction = prop::sample::select(Direction::BOTH.to_vec());
    (0..2_usize, 0..4_usize, 0..3_usize, direction, prop::collection::vec(0..PEERS.len(), 0..3))
}

fn text((name, namespace, selects, direction, peers): &Random) -> String {
    let (types, rules, ends) = match direction {
        Direction::Egress => ("Egress", "egress", "to"),
        Direction::Ingress => ("Ingress", "ingress", "from"),
    };
    let selector = ["{}", "{matchLabels: {app: a}}", "{matchLabels: {app: b}}"][*selects];
    let peers: Vec<&str> = peers.iter().map(|peer| PEERS[*peer]).collect();
    let peers = match peers.is_empty() {
        true => String::new(),
        false => format!("{{{ends}: [{}]}}", peers.join(", ")),
    };
    let spec = format!("podSelector: {selector}, policyTypes: [{types}], {rules}: [{peers}]");
    policy(&format!("n{namespace}"), &format!("p{name}"), &spec)
}

fn wide(tier: &str, action: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {}}}\n\
         spec: {{tier: {tier}, priority: 1, subject: {{namespaces: {{}}}}, ingress: [{{action: {action}, from: \
         [{{namespaces: {{matchLabels: {{team: red}}}}}}]}}]}}\n",
        tier.to_lowercase()
    )
}

/// Those of a cluster, the last one of each name.
fn objects(policies: &[Random], admin: bool, baseline: bool) -> Vec<Object> {
    let mut text: String = ["red", "blue", "red", "blue"]
        .iter()
        .enumerate()
        .map(|(n, team)| {
            format!(
                "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: n{n}, labels: {{team: {team}}}}}\n"
            )
        })
        .collect();
    if admin {
        text += &wide("Admin", "Deny");
    }
    if baseline {
        text += &wide("Baseline", "Deny");
    }
    let mut objects = manifests(&text).objects;
    for policy in policies {
        let object = manifests(&self::text(policy)).objects.remove(0);
        objects.retain(|it| it.reference() != object.reference());
        objects.push(object);
    }
    objects
}

fn refuted(objects: &[Object], statement: &Statement) -> bool {
    let prover = Prover::new(
        objects.to_vec().into(),
        std::iter::once(statement),
        DomainAddresses::default(),
        &[],
    );
    prover.unwrap().refute(statement).unwrap().is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_slice_decides_as_the_whole_cluster(
        policies in prop::collection::vec(random(), 0..6),
        (admin, baseline) in (any::<bool>(), any::<bool>()),
        changed in random(),
        is_deletion in any::<bool>(),
    ) {
        let before = objects(&policies, admin, baseline);
        let object = manifests(&text(&changed)).objects.remove(0);
        let reference = object.reference();
        prop_assert_eq!(reference.kind, Kind::NetworkPolicy);
        let mut after = before.clone();
        after.retain(|it| it.reference() != reference);
        after.extend((!is_deletion).then(|| object.clone()));
        let mut cluster = Cluster::default();
        before.iter().for_each(|it| cluster.set(it.clone()));
        let change = Change { object: reference, after: (!is_deletion).then_some(object) };
        let statements = read(STATEMENTS.as_bytes()).unwrap();
        let invariants = Invariants::new(statements.clone(), Vec::new()).unwrap();
        let mut findings = Findings::default();
        let deadline = Instant::now() + Duration::from_secs(600);
        invariants.judge(&cluster, &change, deadline, &mut findings);
        prop_assert_eq!((&findings.undecided, &findings.notes), (&vec![], &vec![]));
        for statement in &statements {
            let begins = format!("{}: ", statement.name);
            let said = findings.refuted.iter().any(|it| it.starts_with(&begins));
            match (refuted(&before, statement), refuted(&after, statement)) {
                (_, false) => prop_assert!(!said, "{} holds: {:?}", statement.name, findings),
                (false, true) => prop_assert!(said, "{}: {:?}", statement.name, findings),
                // It did not hold anyway; one more connection may be held against the change.
                (true, true) => {}
            }
        }
    }
}
