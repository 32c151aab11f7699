//! AdminNetworkPolicy and BaselineAdminNetworkPolicy beside the policies that they share tiers with.

use std::time::Duration;

use crate::common::{TCP, UDP, control, egress, ingress, pod, policy, reference_of, with_ports};
use control::api_server::{Access, Event, Pace, connect, watch};
use control::state::{ObjectSnapshot, load, save};
use control::{Control, Kind, Scope};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use tokio::sync::mpsc;

/// A policy about every pod, whose one ingress rule decides about a port.
fn decides(kind: &str, name: &str, place: Value, action: &str, port: u16) -> Value {
    let kind = Kind::ALL.into_iter().find(|it| it.name() == kind).unwrap();
    let (field, ports) = match kind {
        Kind::ClusterNetworkPolicy => {
            ("protocols", json!([{"tcp": {"destinationPort": {"number": port}}}]))
        }
        _ => ("ports", json!([{"portNumber": {"protocol": "TCP", "port": port}}])),
    };
    let mut spec = json!({"subject": {"namespaces": {}},
        "ingress": [{"action": action, "from": [{"namespaces": {}}], field: ports}]});
    spec.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
    json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name},
        "spec": spec})
}

fn by(control: &Control, port: u16) -> (bool, String) {
    let (allowed, by) = ingress(&control.view(), "x/b", "x/a", TCP, port);
    (allowed, by.to_string())
}

const CNP: &str = "ClusterNetworkPolicy";
const ANP: &str = "AdminNetworkPolicy";
const BANP: &str = "BaselineAdminNetworkPolicy";

#[test]
fn of_one_priority_the_name_decides_and_of_one_name_the_newer_kind() {
    let admin = |priority: u16| json!({"tier": "Admin", "priority": priority});
    let at = |priority: u16| json!({"priority": priority});
    let mut control = control([
        pod("x/a", "10.0.0.1", json!({})),
        pod("x/b", "10.0.0.2", json!({})),
        decides(CNP, "b", admin(5), "Accept", 1),
        decides(ANP, "a", at(5), "Deny", 1),
        decides(CNP, "c", admin(5), "Accept", 2),
        decides(ANP, "d", at(5), "Deny", 2),
        decides(CNP, "same", admin(5), "Accept", 3),
        decides(ANP, "same", at(5), "Deny", 3),
        decides(CNP, "f", admin(6), "Accept", 4),
        decides(ANP, "z", at(4), "Deny", 4),
    ]);
    let said = |allowed: bool, by: &str| (allowed, format!("{by} ingress[0]"));
    assert_eq!(by(&control, 1), said(false, "AdminNetworkPolicy a"));
    assert_eq!(by(&control, 2), said(true, "ClusterNetworkPolicy c"));
    assert_eq!(by(&control, 3), said(true, "ClusterNetworkPolicy same"));
    assert_eq!(by(&control, 4), said(false, "AdminNetworkPolicy z"));
    // Objects of one name are two.
    assert_eq!(control.counts()[&Kind::AdminNetworkPolicy], 4);
    control.delete(&reference_of(CNP, "", "same"));
    control.commit();
    assert_eq!(by(&control, 3), said(false, "AdminNetworkPolicy same"));
    assert_eq!(control.counts()[&Kind::ClusterNetworkPolicy], 3);
    control.resync_kind(Kind::AdminNetworkPolicy, Vec::new());
    control.commit();
    assert_eq!(by(&control, 1), said(true, "ClusterNetworkPolicy b"), "others stay");
    assert_eq!(by(&control, 3), (true, "default-allow".to_owned()));
}

#[test]
fn the_baseline_comes_behind_network_policies_and_cluster_network_policies() {
    let baseline = |priority: u16| json!({"tier": "Baseline", "priority": priority});
    let first = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"ports": [{"port": 1}]}]});
    let of_pods = [
        pod("x/a", "10.0.0.1", json!({})),
        pod("x/b", "10.0.0.2", json!({})),
        pod("x/db", "10.0.0.3", json!({"app": "db"})),
        policy("x/p", first),
    ];
    let control = control(of_pods.into_iter().chain([
        decides(CNP, "z", baseline(1000), "Accept", 2),
        decides(BANP, "default", json!({}), "Deny", 1),
        decides(ANP, "skips", json!({"priority": 1}), "Pass", 1),
    ]));
    assert_eq!(by(&control, 1), (false, "BaselineAdminNetworkPolicy default ingress[0]".into()));
    assert_eq!(by(&control, 2), (true, "ClusterNetworkPolicy z ingress[0]".into()));
    let (allowed, by) = ingress(&control.view(), "x/b", "x/db", TCP, 1);
    assert_eq!((allowed, &*by), (true, "NetworkPolicy x/p ingress[0]"), "it isolates the pod");
    assert!(!ingress(&control.view(), "x/b", "x/db", TCP, 2).0);
}

#[test]
fn every_peer_and_port_of_an_admin_network_policy_is_enforced() {
    let http = json!([{"name": "http", "containerPort": 8080}]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}});
    let rules = json!([
        {"action": "Allow", "to": [{"networks": ["198.51.100.0/24"]}],
         "ports": [{"portRange": {"protocol": "UDP", "start": 50, "end": 60}}]},
        {"action": "Deny", "to": [{"networks": ["198.51.100.0/24"]}, {"nodes": {}}]},
        {"action": "Deny", "to": [{"pods": {"namespaceSelector": {"matchLabels":
            {"kubernetes.io/metadata.name": "y"}}, "podSelector": {}}}],
         "ports": [{"namedPort": "http"}, {"portNumber": {"port": 443}}]},
    ]);
    let control = control([
        pod("x/a", "10.0.0.1", json!({})),
        with_ports("y/b", "10.0.0.2", json!({}), http),
        node,
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": ANP,
            "metadata": {"name": "out"}, "spec": {"priority": 9,
                "subject": {"namespaces": {}}, "egress": rules}}),
    ]);
    let view = control.view();
    for (to, protocol, port, allowed) in [
        ("198.51.100.7", UDP, 49, false),
        ("198.51.100.7", UDP, 50, true),
        ("198.51.100.7", UDP, 60, true),
        ("198.51.100.7", UDP, 61, false),
        ("198.51.100.7", TCP, 55, false),
        ("203.0.113.7", TCP, 55, true),
        ("192.0.2.9", TCP, 22, false),
        ("y/b", TCP, 8080, false),
        ("y/b", TCP, 443, false),
        ("y/b", UDP, 443, true),
        ("y/b", TCP, 80, true),
    ] {
        assert_eq!(egress(&view, "x/a", to, protocol, port).0, allowed, "{to} {protocol} {port}");
    }
}

#[test]
fn the_saved_state_keeps_the_kind() {
    let folder = testkit::TempDir::new("state-admin");
    let path = folder.path().join("state");
    let admin = decides(ANP, "same", json!({"priority": 5}), "Deny", 1);
    let newer = decides(CNP, "same", json!({"tier": "Admin", "priority": 6}), "Accept", 1);
    let base = decides(BANP, "default", json!({}), "Deny", 2);
    let pods = [pod("x/a", "10.0.0.1", json!({})), pod("x/b", "10.0.0.2", json!({}))];
    let before = control(pods.into_iter().chain([admin, newer, base]));
    save(&ObjectSnapshot::of(&before), &path).unwrap();
    let mut after = Control::new(Scope::All);
    after.resync(load(&path).unwrap());
    after.commit();
    assert!(before.objects().eq(after.objects()));
    assert_eq!(by(&after, 1), (false, "AdminNetworkPolicy same ingress[0]".into()));
    // A state of an earlier release has one kind alone, and does not name it.
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().find(|it| it.contains("\"priority\":6")).unwrap();
    let earlier = line.replace("\"kind\":\"ClusterNetworkPolicy\",", "");
    assert_ne!(line, earlier);
    let object: control::Object = serde_json::from_str(&earlier).unwrap();
    assert_eq!(object.reference(), reference_of(CNP, "", "same"));
}

const PACE: Pace = Pace {
    answer: Duration::from_secs(60),
    first: Duration::from_millis(5),
    most: Duration::from_millis(50),
    outage: Duration::from_millis(50),
    absent: Duration::from_millis(20),
    hold: Duration::from_millis(200),
};

/// Applies the server's events until `done`, step by step.
async fn until(
    events: &mut mpsc::Receiver<Event>,
    control: &mut Control,
    mut done: impl FnMut(&Control, &Event) -> bool,
) {
    loop {
        let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
        let event = event.expect("in time").expect("watches go on");
        control.handle(event.clone());
        control.commit();
        if done(control, &event) {
            return;
        }
    }
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

fn cluster(server: &ApiServer) {
    server.apply(pod("x/a", "10.0.0.1", json!({})));
    server.apply(pod("x/b", "10.0.0.2", json!({})));
}

#[test]
fn a_cluster_that_serves_them_has_them_enforced_as_they_change() {
    let server = ApiServer::new();
    cluster(&server);
    server.apply(decides(ANP, "a", json!({"priority": 5}), "Deny", 1));
    server.apply(decides(BANP, "default", json!({}), "Deny", 2));
    block_on(async {
        let connection = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap();
        let (sender, mut events) = mpsc::channel(64);
        let tasks = watch(&connection.client, PACE, &sender);
        let control = &mut Control::new(Scope::All);
        until(&mut events, control, |_, event| *event == Event::Synced).await;
        assert_eq!(by(control, 1), (false, "AdminNetworkPolicy a ingress[0]".into()));
        assert_eq!(by(control, 2), (false, "BaselineAdminNetworkPolicy default ingress[0]".into()));
        server.apply(decides(ANP, "a", json!({"priority": 5}), "Deny", 3));
        until(&mut events, control, |control, _| !by(control, 3).0).await;
        assert!(by(control, 1).0);
        server.delete("baselineadminnetworkpolicies", None, "default");
        until(&mut events, control, |control, _| by(control, 2).0).await;
        // A fault is reported with its object, and closes.
        server.apply(decides(ANP, "a", json!({"priority": 5}), "Accept", 4));
        let field = |event: &Event| match event {
            Event::Apply(object, faults) if !faults.is_empty() => {
                Some(format!("{}: {}", object.reference(), faults[0].field))
            }
            _ => None,
        };
        let said = "AdminNetworkPolicy a: spec.ingress[0].action";
        until(&mut events, control, |_, event| field(event).as_deref() == Some(said)).await;
        assert!(!by(control, 4).0 && !by(control, 5).0, "what may be a denial is deny-all");
        drop(tasks);
    });
}

#[test]
fn a_cluster_without_them_is_whole_and_one_that_gets_them_is_followed() {
    let server = ApiServer::new();
    cluster(&server);
    let plurals = ["adminnetworkpolicies", "baselineadminnetworkpolicies"];
    plurals.iter().for_each(|plural| server.uninstall(plural, true));
    block_on(async {
        let connection = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap();
        let (sender, mut events) = mpsc::channel(64);
        let tasks = watch(&connection.client, PACE, &sender);
        let control = &mut Control::new(Scope::All);
        let (mut absent, mut is_synced) = (Vec::new(), false);
        until(&mut events, control, |_, event| {
            match event {
                Event::Absent(kind) => absent.push(*kind),
                Event::Trouble(kind, why) => panic!("{kind:?}: {why}"),
                event => is_synced |= *event == Event::Synced,
            }
            is_synced && absent.len() == 2
        })
        .await;
        absent.sort();
        assert_eq!(absent, [Kind::AdminNetworkPolicy, Kind::BaselineAdminNetworkPolicy]);
        assert_eq!(by(control, 1), (true, "default-allow".into()));
        plurals.iter().for_each(|plural| server.uninstall(plural, false));
        server.apply(decides(BANP, "default", json!({}), "Deny", 1));
        until(&mut events, control, |control, _| !by(control, 1).0).await;
        drop(tasks);
    });
}
