//! The whole running switch, over ports that the tests hold in their hands: the real local API,
//! HTTP, manifests in a folder, workers in threads. No root, no kernel interfaces.

mod node;

use std::collections::BTreeSet;
use std::time::Duration;

use agent::api::{AttachPod, Client, ClientError, ErrorKind, ObserveFilters, Request, Verdict};
use agent::run::{StartError, Status};
use agent::verdicts::Event;
use node::{Node, NodeFiles, POLICY, cluster, until};
use testkit::packet::{self, Packet};

const DB: &str = "10.1.0.2";
const WEB: &str = "10.1.0.3";
const API: &str = "10.1.0.4";

fn syn(from: &str, to: &str, port: u16) -> Packet {
    packet::tcp(&format!("{from}:40000"), &format!("{to}:{port}")).syn()
}

#[test]
fn pods_policies_and_verdicts() {
    let files = NodeFiles::new("whole");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    let node = Node::start(&files);
    let (db, web, api) = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));

    web.send(&syn(WEB, DB, 6379));
    db.expects(&syn(WEB, DB, 6379), DB);

    // A policy dropped into the folder, that lets only `api` in.
    let before = node.status().generation;
    files.manifest("policy.yaml", POLICY);
    until(|| node.status().generation_in_force > before);
    web.send(&syn(WEB, DB, 6380));
    let denied = node.wait_for_event(|event| event.to.port == Some(6380));
    assert_eq!(denied.verdict, Verdict::Dropped);
    assert_eq!(denied.reason, "policy-denied");
    assert_eq!(denied.from.pod.as_deref(), Some("default/web"));
    assert_eq!(denied.to.pod.as_deref(), Some("default/db"));
    assert!(denied.by.iter().any(|by| by.contains("NetworkPolicy default/db")), "{denied:?}");
    // The connection of before is judged again at its next packet.
    web.send(&packet::tcp("10.1.0.3:40000", "10.1.0.2:6379").data(b"x"));
    let cut = node
        .wait_for_event(|event| event.to.port == Some(6379) && event.verdict == Verdict::Dropped);
    assert_eq!(cut.from.pod.as_deref(), Some("default/web"));
    api.send(&syn(API, DB, 6379));
    db.expects(&syn(API, DB, 6379), DB);

    // A broken file changes nothing and is told.
    files.manifest("policy.yaml", "kind: [");
    until(|| !node.status().faults.is_empty());
    let status = node.status();
    assert!(status.faults[0].contains("policy.yaml"), "{:?}", status.faults);
    web.send(&syn(WEB, DB, 6381));
    node.wait_for_event(|event| event.to.port == Some(6381) && event.verdict == Verdict::Dropped);

    // Without the policy everything passes again.
    files.remove("policy.yaml");
    until(|| node.status().faults.is_empty());
    until(|| node.status().generation_in_force == node.status().generation);
    web.send(&syn(WEB, DB, 6382));
    db.expects(&syn(WEB, DB, 6382), DB);

    let status = node.status();
    assert!(status.ready && status.ailments.is_empty());
    let names: Vec<&str> = status.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["host", "default/api", "default/db", "default/web"]);
    assert!(status.ports.iter().all(|port| port.mode == "memory" && !port.closed));
    assert_eq!(status.objects["Pod"], 3);
    let text = status.to_string();
    assert!(text.contains("default/db") && text.contains("memory"), "{text}");
}

#[test]
fn what_others_ask_over_http() {
    let files = NodeFiles::new("http");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    assert_eq!(node.http("GET /healthz HTTP/1.1"), (200, "ok\n".to_owned()));
    assert_eq!(node.http("GET /readyz HTTP/1.1"), (200, "ok\n".to_owned()));
    assert_eq!(node.http("GET /nothing HTTP/1.1").0, 404);
    assert_eq!(node.http("POST /metrics HTTP/1.1").0, 405);
    assert_eq!(node.http("HEAD /metrics HTTP/1.1"), (200, String::new()));
    assert_eq!(node.http("\u{1}\u{2}").0, 400);
    assert_eq!(node.http(&format!("GET /{} HTTP/1.1", "x".repeat(10_000))).0, 431);
    // A worker counts what it sent after it sent it.
    let sent = "podgate_port_sent_packets_total{port=\"default/db\",interface=\"pg-db\"} 1\n";
    until(|| node.http("GET /metrics HTTP/1.1").1.contains(sent));
    let (code, page) = node.http("GET /metrics HTTP/1.1");
    assert_eq!(code, 200);
    for expected in [
        "podgate_packets_total{verdict=\"forward\",reason=\"policy-allowed\"} 1\n",
        "podgate_packets_total{verdict=\"drop\",reason=\"policy-denied\"} 0\n",
        "podgate_port_received_packets_total{port=\"default/web\",interface=\"pg-web\"} 1\n",
        "podgate_sessions 1\n",
        "podgate_ports_lost_total 0\n",
        "podgate_objects{kind=\"Pod\"} 2\n",
        "podgate_ready 1\n",
    ] {
        assert!(page.contains(expected), "{expected} is not in\n{page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let family = line.split(['{', ' ']).next().unwrap();
        for comment in ["HELP", "TYPE"] {
            assert!(page.contains(&format!("# {comment} {family} ")), "{comment} of {line}");
        }
    }
}

#[test]
fn a_pod_is_attached_only_when_its_object_is_known() {
    let files = NodeFiles::new("late");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    let waiting = node.attach_in_background("db", DB);
    until(|| !node.status().waiting.is_empty());
    let status = node.status();
    assert_eq!(status.waiting[0].pod, "default/db");
    assert!(status.waiting[0].reason.contains("Pod object"), "{:?}", status.waiting);
    let port = status.ports.iter().find(|port| port.name == "default/db").unwrap();
    assert!(port.closed);
    assert!(!node.kernel.is_up("pg-db"), "it must not be open while it waits");
    let error = node.client().check_pod(&node.pod("db", DB).attachment()).unwrap_err();
    assert!(matches!(error, ClientError::Refused(error) if error.kind == ErrorKind::NotReady));
    assert_eq!(node.client().list_pods().unwrap(), []);

    files.manifest("pod.yaml", &cluster(&["db"]));
    let attached = waiting.join().unwrap().unwrap();
    assert!(attached.generation <= node.status().generation_in_force);
    assert!(node.kernel.is_up("pg-db"));
    assert_eq!(node.client().list_pods().unwrap(), [node.pod("db", DB)]);
    // Asked again, the answer is the same.
    node.client().attach_pod(&node.pod("db", DB)).unwrap();
}

#[test]
fn a_pod_that_stays_unknown_is_taken_back() {
    let files = NodeFiles::new("never");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start_with(&files, |config| config.attach_timeout = Duration::from_secs(1));
    let error = node.attach_in_background("db", DB).join().unwrap().unwrap_err();
    let ClientError::Refused(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, ErrorKind::NotReady);
    assert!(
        error.message.contains("default/db") && error.message.contains("Pod object"),
        "{error}"
    );
    assert!(!node.kernel.is_up("pg-db"));
    assert_eq!(node.ports(), BTreeSet::from(["host".to_owned()]));
    let error = node.client().check_pod(&node.pod("db", DB).attachment()).unwrap_err();
    assert!(matches!(error, ClientError::Refused(error) if error.kind == ErrorKind::NotFound));
}

#[test]
fn detached_while_it_waits() {
    let files = NodeFiles::new("undone");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    let waiting = node.attach_in_background("db", DB);
    until(|| !node.status().waiting.is_empty());
    node.client().detach_pod(&node.pod("db", DB).attachment()).unwrap();
    assert!(waiting.join().unwrap().is_err());
    assert_eq!(node.ports(), BTreeSet::from(["host".to_owned()]));
    // Detaching what is not attached is no error.
    node.client().detach_pod(&node.pod("db", DB).attachment()).unwrap();
}

#[test]
fn what_another_has_is_refused() {
    let files = NodeFiles::new("conflict");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let _db = node.attach("db", DB);
    let refused = |pod: &AttachPod| match node.client().attach_pod(pod) {
        Err(ClientError::Refused(error)) => error,
        other => panic!("{other:?}"),
    };
    node.kernel.add("pg-web");
    let error = refused(&node.pod("web", DB));
    assert!(error.message.contains("that of pod default/db"), "{error}");
    let error = refused(&node.pod("web", "10.1.0.1"));
    assert!(error.message.contains("cluster node's own"), "{error}");
    let error = refused(&node.pod("db", WEB));
    assert!(error.message.contains("other content"), "{error}");
    assert_eq!(error.kind, ErrorKind::Conflict);
    let host = AttachPod { host_interface: "podgate0".into(), ..node.pod("web", WEB) };
    let error = refused(&host);
    assert!(error.message.contains("host port"), "{error}");
    node.kernel.remove("pg-web");
    let error = refused(&node.pod("web", WEB));
    assert!(error.message.contains("pg-web"), "{error}");
}

#[test]
fn an_interface_that_vanishes_takes_its_pod_along() {
    let files = NodeFiles::new("vanish");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (_db, web) = (node.attach("db", DB), node.attach("web", WEB));
    // It only left a bridge, say.
    node.kernel.say_gone("pg-web");
    node.kernel.delete("pg-db");
    until(|| !node.ports().contains("default/db"));
    let status = node.status();
    assert_eq!((status.ports_lost, status.lost[0].name.as_str()), (1, "default/db"));
    until(|| files.records() == ["c-web:eth0.json"]);
    web.send(&syn(WEB, DB, 80));
    let nowhere = node.wait_for_event(|event| event.to.port == Some(80));
    assert_eq!(nowhere.verdict, Verdict::Dropped);
    assert!(node.http("GET /metrics HTTP/1.1").1.contains("podgate_ports_lost_total 1\n"));
    // The runtime makes it anew.
    let db = node.attach("db", DB);
    web.send(&syn(WEB, DB, 81));
    db.expects(&syn(WEB, DB, 81), DB);
}

#[test]
fn a_restarted_switch_takes_its_pods_up_with_their_policies() {
    let files = NodeFiles::new("restart");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let _pods = (node.attach("db", DB), node.attach("web", WEB), node.attach("api", API));
    let kernel = node.stop();
    kernel.delete("pg-api");
    let node = Node::start_on(&files, kernel, |_| ());
    assert_eq!(files.records(), ["c-db:eth0.json", "c-web:eth0.json"]);
    let (db, web) = (node.taken_up("db", DB), node.taken_up("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    let denied = node.wait_for_event(|event| event.to.port == Some(6379));
    assert_eq!(denied.reason, "policy-denied");
    db.send(&syn(DB, WEB, 80));
    web.expects(&syn(DB, WEB, 80), WEB);
    node.client().detach_pod(&node.pod("web", WEB).attachment()).unwrap();
    assert_eq!(files.records(), ["c-db:eth0.json"]);
}

#[test]
fn observers_choose_and_follow() {
    let files = NodeFiles::new("observe");
    files.manifest(
        "cluster.yaml",
        &(cluster(&["db", "web"]) + "---\n" + &node::remote_pod("far", "10.2.0.9")),
    );
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    web.send(&packet::ping(WEB, "10.2.0.9", 1, 1));
    web.send(&packet::udp("10.1.0.3:5000", "10.2.0.9:53").payload(b"q"));
    db.send(&syn(DB, WEB, 80));
    node.wait_for_event(|event| event.to.port == Some(80));
    let ask = |filters: ObserveFilters| -> Vec<Event> {
        let filters = ObserveFilters { last: 100, ..filters };
        let events = node.client().stream(&Request::Observe(filters)).unwrap();
        events.map(|event| serde_json::from_value(event.unwrap()).unwrap()).collect()
    };
    let only = |events: Vec<Event>| -> Event {
        assert_eq!(events.len(), 1, "{events:?}");
        events.into_iter().next().unwrap()
    };
    let all = ask(ObserveFilters::default());
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|event| &*event.node == "node-a"));
    let dropped =
        only(ask(ObserveFilters { verdict: Some(Verdict::Dropped), ..Default::default() }));
    assert_eq!(dropped.from.pod.as_deref(), Some("default/web"));
    let ping = only(ask(ObserveFilters { protocol: Some("icmp".into()), ..Default::default() }));
    assert_eq!((ping.icmp_type, ping.to.pod.as_deref()), (Some(8), Some("default/far")));
    assert_eq!(ping.out_port.as_deref(), Some("host"));
    let dns = only(ask(ObserveFilters { port: Some(53), ..Default::default() }));
    assert_eq!(dns.protocol.as_deref(), Some("UDP"));
    only(ask(ObserveFilters { from_pod: Some("db".into()), ..Default::default() }));
    assert_eq!(ask(ObserveFilters { to_pod: Some("far".into()), ..Default::default() }).len(), 2);
    let bad = ObserveFilters { protocol: Some("nonsense".into()), ..Default::default() };
    let mut events = node.client().stream(&Request::Observe(bad)).unwrap();
    assert!(events.next().unwrap().unwrap_err().to_string().contains("nonsense"));

    let filters = ObserveFilters { follow: true, to_pod: Some("db".into()), ..Default::default() };
    let mut events = node.client().stream(&Request::Observe(filters)).unwrap();
    let following = std::thread::spawn(move || events.next().unwrap().unwrap());
    // Verdicts before the observer is there are past; so one is sent until it is seen.
    let mut port = 7000;
    until(|| {
        port += 1;
        web.send(&syn(WEB, DB, port));
        following.is_finished()
    });
    let event: Event = serde_json::from_value(following.join().unwrap()).unwrap();
    assert_eq!(event.to.pod.as_deref(), Some("default/db"));
}

#[test]
fn every_table_can_be_shown() {
    let files = NodeFiles::new("show");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    db.send(&syn(DB, WEB, 80));
    web.expects(&syn(DB, WEB, 80), WEB);
    let expected = [
        ("ports", "default/db"),
        ("runtime", "session"),
        ("errors", "policy-allowed"),
        ("sessions", "default/web"),
        ("graph", "parse -> security"),
        ("tables", "NetworkPolicy default/db"),
        ("config", "frames-per-port"),
    ];
    assert_eq!(agent::run::TABLES.map(|(name, _)| name), expected.map(|(name, _)| name));
    for (what, text) in expected {
        let shown = node.show(what).unwrap();
        assert!(shown.contains(text), "{what}:\n{shown}");
    }
    let error = node.show("nothing").unwrap_err();
    assert!(error.to_string().contains("sessions"), "{error}");
}

#[test]
fn hostile_requests_end_nothing() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    let files = NodeFiles::new("hostile");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let node = Node::start(&files);
    let long = vec![b'x'; 70_000];
    for bytes in [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"method\":\"attach-pod\"}\n", &long] {
        let mut stream = UnixStream::connect(files.socket()).unwrap();
        // The switch may hang up before all of it is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.contains("\"error\""), "{answer}");
    }
    let _db = node.attach("db", DB);
    assert!(node.status().ailments.is_empty());
}

#[test]
fn what_cannot_be_used_is_refused_at_the_start() {
    let files = NodeFiles::new("refused");
    files.manifest("broken.yaml", "kind: [");
    let Err(StartError::Input(error)) = Node::try_start(&files) else { panic!("it started") };
    assert!(error.contains("broken.yaml"), "{error}");
    files.remove("broken.yaml");
    let node = Node::start(&files);
    let Err(StartError::Failed(error)) = Node::try_start(&files) else { panic!("it started") };
    assert!(error.contains("another podgate"), "{error}");
    drop(node);
    // A socket left behind by a process that was killed is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(files.socket()).unwrap());
    drop(Node::start(&files));
    assert!(Client::connect(&files.socket(), Duration::from_secs(10)).is_err());
}

#[test]
fn a_status_survives_the_wire() {
    let files = NodeFiles::new("wire");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let node = Node::start(&files);
    let _db = node.attach("db", DB);
    let value = node.client().call(&Request::Status).unwrap();
    let status: Status = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&status).unwrap(), value);
}

#[test]
fn ports_that_frames_do_not_suffice_for_are_refused() {
    let files = NodeFiles::new("frames");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    let node = Node::start_with(&files, |config| {
        (config.frames_per_port, config.umem_frames) = (256, 1024);
    });
    let _pods = (node.attach("db", DB), node.attach("web", WEB));
    let error = node.attach_in_background("api", API).join().unwrap().unwrap_err();
    assert!(error.to_string().contains("umem-frames"), "{error}");
    assert_eq!(node.ports().len(), 3);
}

#[test]
fn who_waits_at_the_end_gets_an_answer() {
    let files = NodeFiles::new("end");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    let waiting = node.attach_in_background("db", DB);
    until(|| !node.status().waiting.is_empty());
    let filters = ObserveFilters { follow: true, ..Default::default() };
    let observer = node.client().stream(&Request::Observe(filters)).unwrap();
    let mut idle = node.client();
    node.stop();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("podgate is ending"), "{error}");
    assert_eq!(observer.count(), 0);
    assert!(idle.ready().is_err());
}

#[test]
fn a_pod_whose_object_is_deleted_is_closed() {
    let files = NodeFiles::new("deleted");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    files.manifest("web.yaml", &cluster(&["web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    files.remove("web.yaml");
    until(|| node.status().ports.iter().any(|port| port.name == "default/web" && port.closed));
    until(|| node.status().generation_in_force == node.status().generation);
    // Its open connection as well as new ones, in both directions.
    web.send(&packet::tcp("10.1.0.3:40000", "10.1.0.2:80").data(b"x"));
    db.send(&syn(DB, WEB, 81));
    for port in [80, 81] {
        let closed = node.wait_for_event(|event| {
            event.to.port == Some(port) && event.verdict == Verdict::Dropped
        });
        assert_eq!(closed.reason, "closed");
    }
}

#[test]
fn a_port_that_fails_is_opened_again() {
    let files = NodeFiles::new("again");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send_bytes(vec![0; 4000]); // more than a frame holds: this port gives up
    until(|| !node.status().lost.is_empty());
    assert_eq!(node.status().lost[0].name, "default/web");
    assert_eq!(node.ports().len(), 3, "the pod stays attached");
    until(|| node.status().ports.iter().all(|port| port.id.is_some()));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    node.taken_up("web", WEB);
}

#[test]
fn of_two_sandboxes_of_one_pod_the_newest_counts() {
    let files = NodeFiles::new("sandboxes");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, old) = (node.attach("db", DB), node.attach("web", WEB));
    let new = AttachPod {
        container_id: "c-new".into(),
        host_interface: "pg-new".into(),
        ..node.pod("web", API)
    };
    node.kernel.add("pg-new");
    node.client().attach_pod(&new).unwrap();
    old.send(&syn(WEB, DB, 80));
    let cut = node.wait_for_event(|event| event.verdict == Verdict::Dropped);
    assert_eq!((cut.reason.as_str(), cut.from.pod), ("port-gone", Some("default/web".into())));
    node.kernel.pod("pg-new").send(&syn(API, DB, 81));
    db.expects(&syn(API, DB, 81), DB);
    // The new one goes first: the old one counts again.
    node.client().detach_pod(&new.attachment()).unwrap();
    until(|| node.status().generation_in_force == node.status().generation);
    old.send(&syn(WEB, DB, 82));
    db.expects(&syn(WEB, DB, 82), DB);
}
