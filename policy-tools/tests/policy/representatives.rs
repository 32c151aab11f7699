//! A representative stands for every pod of its class.

use policy_tools::policy::representatives::{Kinds, Selectors, add};
use policy_tools::probe::{Endpoint, Port, Prober, Protocol, Question};
use proptest::prelude::*;

use super::{deployment, manifests, policy};

const PEERS: [&str; 8] = [
    "{podSelector: {}}",
    "{podSelector: {matchLabels: {role: debug}}}",
    "{podSelector: {matchLabels: {role: debug, tier: front}}}",
    "{podSelector: {matchExpressions: [{key: role, operator: NotIn, values: [debug, x]}]}}",
    "{podSelector: {matchExpressions: [{key: tier, operator: Exists}]}, namespaceSelector: {}}",
    "{namespaceSelector: {matchLabels: {team: ops}}}",
    "{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}, \
     podSelector: {matchLabels: {role: debug}}}",
    "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: mon}}}",
];

/// Labels: values that policies name, others, and none.
fn labels() -> impl Strategy<Value = (Option<&'static str>, Option<&'static str>)> {
    let value = |named: &'static str| {
        prop::option::of(prop::sample::select(vec![named, "x", "anything", ""]))
    };
    (value("debug"), value("front"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_pod_is_answered_as_the_representative_of_its_class(
        peers in prop::collection::vec(0..PEERS.len(), 1..5),
        isolated in prop::sample::select(vec!["{}", "{matchLabels: {role: debug}}"]),
        (role, tier) in labels(),
        team in prop::option::of(prop::sample::select(vec!["ops", "dev"])),
        namespace in prop::sample::select(vec!["shop", "mon", "elsewhere"]),
    ) {
        let rules: Vec<String> = peers.iter().enumerate().map(|(n, peer)| {
            format!("{{from: [{}], ports: [{{port: {}}}]}}", PEERS[*peer], 80 + n)
        }).collect();
        let selector = "podSelector: {matchLabels: {app: db}}";
        let text = deployment("shop", "db", "")
            + &policy("shop", "db", &format!("{selector}, ingress: [{}]", rules.join(", ")))
            + &policy("shop", "out", &format!(
                "podSelector: {isolated}, policyTypes: [Egress], egress: [{{ports: [{{port: 81}}]}}]"
            ));
        let mut with_classes = manifests(&text);
        let selectors = Selectors::of(&with_classes.objects);
        add(&mut with_classes, &selectors, &mut Kinds::default()).unwrap();
        let classes: Vec<_> = with_classes.representatives.keys().cloned().collect();

        let pair = |key: &str, value: Option<&str>| value.map(|it| format!("{key}: '{it}'"));
        let of_pod = [pair("role", role), pair("tier", tier)].into_iter().flatten();
        let of_pod = of_pod.collect::<Vec<_>>().join(", ");
        let team = if namespace == "shop" { None } else { team };
        let of_namespace = pair("team", team).unwrap_or_default();
        let concrete = text + &format!(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: \
             {{{of_namespace}}}}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: one, namespace: \
             {namespace}, labels: {{{of_pod}}}}}\nspec: {{containers: [{{name: c}}]}}\n"
        );
        let answers = |prober: &mut Prober, from: &Endpoint| -> Vec<String> {
            let to = policy_tools::probe::case::endpoint("shop/db").unwrap();
            (79..86).map(|port| {
                let port = Port::Number(port);
                let question =
                    Question { from, to: &to, protocol: Protocol::Tcp, port: Some(&port) };
                let answer = prober.answer([question]).unwrap().remove(0);
                format!("{} {:?}", answer.verdict, answer.by)
            }).collect()
        };
        let mut prober = Prober::new(with_classes, []).unwrap();
        let mut real = Prober::new(manifests(&concrete), []).unwrap();
        let one = policy_tools::probe::case::endpoint(&format!("{namespace}/one")).unwrap();
        let said = answers(&mut real, &one);
        let known: Vec<Vec<String>> = classes.iter()
            .map(|key| answers(&mut prober, &Endpoint::Pod(key.clone()))).collect();
        prop_assert!(known.contains(&said), "{said:?} {known:?}");
        if namespace == "shop" {
            // The class that needs no representative once the pod is there is its own.
            let mut there = manifests(&concrete);
            add(&mut there, &selectors, &mut Kinds::default()).unwrap();
            let words: Vec<&String> = there.representatives.values().collect();
            let own = prober.manifests().representatives.iter();
            let own: Vec<_> = own.filter(|(_, it)| !words.contains(it)).map(|(key, _)| key).collect();
            let own: Vec<Endpoint> = own.into_iter().cloned().map(Endpoint::Pod).collect();
            prop_assert_eq!(own.len(), 1);
            prop_assert_eq!(said, answers(&mut prober, &own[0]));
        }
    }
}
