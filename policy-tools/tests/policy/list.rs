//! The list of what is allowed.

use policy_tools::policy::list::{Allowed, list};

use super::{deployment, manifests, policy, shop};

fn rows(text: &str) -> Vec<String> {
    let row = |it: Allowed| format!("{} {} {} {}", it.from, it.to, it.protocol, it.ports);
    list(manifests(text)).unwrap().into_iter().map(row).collect()
}

#[test]
fn both_directions_with_the_world_and_other_namespaces_as_ends() {
    let closed =
        shop() + &policy("shop", "closed", "podSelector: {}, policyTypes: [Ingress, Egress]");
    assert_eq!(rows(&closed), Vec::<String>::new());
    let egress = "podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}, {to: \
                  [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 443}, {port: 444}]}]";
    assert_eq!(
        rows(&(closed + &policy("shop", "egress", egress))),
        [
            "shop/backend 203.0.113.0/24 TCP 443-444",
            "shop/backend shop/db TCP 5432",
            "shop/db 203.0.113.0/24 TCP 443-444",
            "shop/frontend 203.0.113.0/24 TCP 443-444",
            "shop/frontend shop/backend TCP 8080",
        ]
    );
}

#[test]
fn what_is_open_to_everybody_comes_first() {
    let text = deployment("shop", "web", "")
        + &deployment("shop", "db", "")
        + &policy(
            "shop",
            "db",
            "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]",
        )
        + &policy(
            "shop",
            "web",
            "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, \
           Egress], ingress: [{ports: [{port: 80}]}]",
        );
    let found = list(manifests(&text)).unwrap();
    assert!(found.iter().all(Allowed::is_open), "{found:?}");
    let by: Vec<String> = found[0].by.iter().map(ToString::to_string).collect();
    assert_eq!(by, ["NetworkPolicy shop/web ingress[0]"]);
    assert_eq!(rows(&text), ["any-pod shop/web TCP 80", "internet shop/web TCP 80"]);
}
