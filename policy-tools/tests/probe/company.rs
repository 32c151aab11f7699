//! An answer depends on its question alone, not on the questions that are asked with it.

use std::fmt::Write as _;

use policy_tools::probe::{Answer, Case, Endpoint, Port, Protocol, Question};
use proptest::prelude::*;

use super::{Cluster, node, pod, policy};

const PODS: u16 = 12;
const PORTS: [u16; 3] = [80, 443, 5432];
const QUESTIONS: usize = 10_000;

/// Twelve pods on two nodes and a service; `rules` lists who may open what: target, source, port.
fn cluster(rules: &[(u16, u16, usize)]) -> String {
    let mut text = node("n0", "192.0.2.1", "10.1.0.0/24") + &node("n1", "192.0.2.2", "10.1.1.0/24");
    for n in 0..PODS {
        let (node, name, label) = (n % 2, format!("a/p{n}"), format!("app: p{n}"));
        text += &pod(&name, &label, &format!("n{node}"), &format!("10.1.{node}.{}", n + 10), "");
    }
    for (n, (to, from, port)) in rules.iter().enumerate() {
        let spec = format!(
            "podSelector: {{matchLabels: {{app: p{to}}}}}, ingress: [{{from: [{{podSelector: \
             {{matchLabels: {{app: p{from}}}}}}}], ports: [{{port: {}}}]}}]",
            PORTS[*port]
        );
        text += &policy(&format!("r{n}"), &spec);
    }
    let _ = write!(
        text,
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: a}}\nspec: \
         {{clusterIP: 10.96.0.7, selector: {{app: p1}}, ports: [{{port: 80}}]}}\n"
    );
    text
}

/// The answers, asked in groups of `group` in this order, at the places of their questions.
fn ask(
    cluster: &mut Cluster,
    cases: &[Case],
    order: &[usize],
    group: usize,
) -> Vec<Option<Answer>> {
    let mut found = vec![None; cases.len()];
    for some in order.chunks(group) {
        let questions = some.iter().map(|n| cases[*n].question());
        let answers = cluster.0.answer(questions).unwrap();
        assert_eq!(answers.len(), some.len());
        for (n, answer) in some.iter().zip(answers) {
            found[*n] = Some(answer);
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1, ..ProptestConfig::default() })]

    /// Alone, in tens, in ten thousand and shuffled.
    #[test]
    fn company_changes_no_answer(
        rules in prop::collection::vec((0..PODS, 0..PODS, 0..PORTS.len()), 8..20),
        asked in prop::collection::vec((0..PODS, 0..PODS + 3, 0..PORTS.len()), QUESTIONS),
        shuffled in Just((0..QUESTIONS).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut cluster = Cluster::new(&cluster(&rules));
        let case = |(from, to, port): (u16, u16, usize)| {
            let (to, port) = match to.checked_sub(PODS) {
                None => (format!("a/p{to}"), PORTS[port]),
                Some(0) => ("service/a/web".to_owned(), 80),
                Some(1) => ("10.96.0.7".to_owned(), 80),
                Some(_) => ("203.0.113.9".to_owned(), PORTS[port]),
            };
            super::case(&format!("a/p{from} {to} TCP {port}"))
        };
        let cases: Vec<Case> = asked.into_iter().map(case).collect();
        let in_order: Vec<usize> = (0..QUESTIONS).collect();
        let together = ask(&mut cluster, &cases, &in_order, QUESTIONS);
        prop_assert_eq!(&ask(&mut cluster, &cases, &shuffled, QUESTIONS), &together);
        prop_assert_eq!(&ask(&mut cluster, &cases, &in_order, 10), &together);
        for n in (0..QUESTIONS).step_by(50) {
            let alone = cluster.0.answer([cases[n].question()]).unwrap();
            prop_assert_eq!(Some(&alone[0]), together[n].as_ref());
        }
    }
}

/// 4,160 questions about one pod are 65 bursts; the ports of the others are silent meanwhile.
#[test]
fn a_silent_pod_answers_for_itself() {
    let mut cluster = Cluster::new(&cluster(&[(1, 0, 0)]));
    let pods: Vec<Endpoint> =
        (0..3).map(|n| super::case(&format!("a/p0 a/p{n} ICMP")).to).collect();
    let port = Port::Number(80);
    let question = |from: usize, to: usize| Question {
        from: &pods[from],
        to: &pods[to],
        protocol: Protocol::Tcp,
        port: Some(&port),
    };
    let questions = (0..4160).map(|_| question(0, 1)).chain((0..64).map(|_| question(2, 1)));
    let answers = cluster.0.answer(questions).unwrap();
    let allowed: Vec<bool> = answers.iter().map(|it| it.verdict.name() == "allow").collect();
    assert_eq!(allowed, [[true; 4160].to_vec(), vec![false; 64]].concat());
}
