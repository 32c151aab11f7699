//! External IPs that services take, and those that they do not.

use control::{Control, Scope};
use serde_json::{Value, json};

fn service(name: &str, external: &[&str]) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIPs": ["10.96.0.7"], "externalIPs": external, "ports": [{"port": 443}]}})
}

fn node(address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

fn api_server(address: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "kubernetes",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [address]}], "ports": [{"port": 6443}]})
}

fn permitted(networks: &[&str]) -> Control {
    let networks = networks.iter().map(|it| it.parse().unwrap()).collect();
    let mut control = Control::new(Scope::Node("n1".into()));
    control.permit_external_ips(networks, vec!["10.96.0.0/12".parse().unwrap()]);
    control
}

fn apply(control: &mut Control, value: Value) {
    control.apply(crate::common::object(value));
    control.commit();
}

/// The addresses that the service `shop/web` takes, and the faults.
fn taken(control: &Control) -> (Vec<String>, Vec<String>) {
    let view = control.view();
    let web = view.services.values().find(|it| &*it.service.key.name == "web").unwrap();
    let taken = web.service.external_ips.iter().map(ToString::to_string).collect();
    (taken, control.service_faults().collect())
}

#[test]
fn services_take_none_unless_networks_are_permitted() {
    let mut control = Control::new(Scope::Node("n1".into()));
    apply(&mut control, service("web", &["203.0.113.7"]));
    let off =
        "Service shop/web: spec.externalIPs[0]: 203.0.113.7 is not taken: --external-ips is off";
    assert_eq!(taken(&control), (vec![], vec![off.to_owned()]));
    let mut control = permitted(&["203.0.113.0/24"]);
    apply(&mut control, service("web", &["198.51.100.1", "203.0.113.7"]));
    let outside = "Service shop/web: spec.externalIPs[0]: 198.51.100.1 is not in --external-ips";
    assert_eq!(taken(&control), (vec!["203.0.113.7".to_owned()], vec![outside.to_owned()]));
    apply(&mut control, service("web", &["203.0.113.7"]));
    assert_eq!(taken(&control), (vec!["203.0.113.7".to_owned()], vec![]));
}

#[test]
fn nobodys_address_in_the_cluster_is_taken_whoever_comes_first() {
    let mut other = service("other", &[]);
    other["spec"]["clusterIPs"] = json!(["203.0.113.7"]);
    let cases = [
        (node("203.0.113.7"), node("192.0.2.1"), "is an address of Node n1"),
        (api_server("203.0.113.7"), api_server("192.0.2.1"), "is an address of the API server"),
        (
            crate::common::pod("x/a", "203.0.113.7", json!({})),
            crate::common::pod("x/a", "10.1.0.2", json!({})),
            "is an address of Pod x/a",
        ),
        (other, service("other", &[]), "is a cluster address of Service shop/other"),
    ];
    for (has_it, has_not, why) in cases {
        let mut control = permitted(&["0.0.0.0/0"]);
        apply(&mut control, has_it.clone());
        apply(&mut control, service("web", &["203.0.113.7"]));
        let fault = format!("Service shop/web: spec.externalIPs[0]: 203.0.113.7 {why}");
        let refused = (vec![], vec![fault]);
        assert_eq!(taken(&control), refused);
        apply(&mut control, has_not);
        assert_eq!(taken(&control), (vec!["203.0.113.7".to_owned()], vec![]), "{why}");
        apply(&mut control, has_it);
        assert_eq!(taken(&control), refused);
    }
    let mut control = permitted(&["0.0.0.0/0"]);
    apply(&mut control, node("192.0.2.1"));
    apply(&mut control, service("web", &["10.1.0.200", "10.97.0.1"]));
    let (none, faults) = taken(&control);
    assert!(none.is_empty());
    assert!(faults[0].ends_with("10.1.0.200 is in the pod network of Node n1"), "{faults:?}");
    assert!(
        faults[1].ends_with("10.97.0.1 is in the cluster's network 10.96.0.0/12"),
        "{faults:?}"
    );
}
