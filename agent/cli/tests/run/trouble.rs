//! Faults of interfaces, ports and input; restarts; the end.

use std::time::Duration;

use agent::run::StartError;
use local_api::{Client, ObserveFilters, Request, Verdict};
use testkit::packet;

use crate::node::{LONG, Node, NodeFiles, POLICY, cluster, until};
use crate::{API, DB, WEB, syn};

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
fn a_fifo_among_the_records_holds_up_no_start() {
    let files = NodeFiles::new("fifo");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let records = files.socket().with_file_name("state").join("attachments");
    std::fs::create_dir_all(&records).unwrap();
    testkit::make_fifo(&records.join("c-x:eth0.json"));
    let (started, starts) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let node = Node::start(&files);
        let _db = node.attach("db", DB);
        started.send(node.ports().contains("default/db"))
    });
    assert_eq!(starts.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn sessions_that_cannot_be_saved_come_first_in_the_status() {
    let files = NodeFiles::new("unsaved");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let sessions = files.path("state/sessions");
    std::fs::create_dir_all(&sessions).unwrap();
    let node = Node::start(&files);
    let status = node.status();
    let why = &status.in_memory["sessions"];
    assert!(why.starts_with(&sessions.display().to_string()), "{why}");
    assert_eq!(status.attention()[0], format!("sessions in memory only: {why}"));
    drop(node);
    std::fs::remove_dir(sessions).unwrap();
    assert_eq!(Node::start(&files).status().in_memory.len(), 0);
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
    assert!(node.status().problems.is_empty());
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
fn who_waits_at_the_end_gets_an_answer() {
    let files = NodeFiles::new("end");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    let waiting = node.attach_in_background("db", DB);
    until(|| !node.status().waiting.is_empty());
    let filters = ObserveFilters { follow: true, ..Default::default() };
    let observer = node.client().stream(&Request::Observe(Box::new(filters))).unwrap();
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
    // The pod's sessions ended with it.
    for (port, reason) in [(80, "no-session"), (81, "closed")] {
        let dropped = node.wait_for_event(|event| {
            event.to.port == Some(port) && event.verdict == Verdict::Dropped
        });
        assert_eq!(dropped.reason, reason);
    }
}

#[test]
fn a_port_that_fails_is_opened_again() {
    let files = NodeFiles::new("again");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send_bytes(vec![0; 3 << 20]); // more than all frames hold: this port gives up
    until(|| !node.status().lost.is_empty());
    assert_eq!(node.status().lost[0].name, "default/web");
    assert_eq!(node.ports().len(), 3, "the pod stays attached");
    until(|| node.status().ports.iter().all(|port| port.id.is_some()));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    node.taken_up("web", WEB);
}

#[test]
fn idle_connections_and_waiting_attachments_block_nobody() {
    let files = NodeFiles::new("many");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let node = Node::start_with(&files, |config| config.attach_timeout = Duration::from_secs(60));
    let mut idle: Vec<Client> = (0..128).map(|_| node.client()).collect();
    idle.iter_mut().for_each(|client| client.ready().unwrap());
    for _ in 0..10 {
        node.client().ready().unwrap();
    }
    // Which thread came back to its connection first is the scheduler's choice.
    let (old, new) = idle.split_at_mut(64);
    assert!(old.iter_mut().any(|it| it.ready().is_err()), "one that was idle long made room");
    new[63].ready().unwrap();
    // Twice as many wait for a pod's tables, and the switch still answers and attaches others.
    node.kernel.add("pg-late");
    let late = node.pod("late", API);
    let waiting: Vec<_> = (0..256)
        .map(|_| {
            // A connection counts as idle until its request has arrived.
            let (socket, pod) = (files.socket(), late.clone());
            std::thread::spawn(move || {
                Client::connect(&socket, Duration::from_secs(60)).unwrap().attach_pod(&pod)
            })
        })
        .collect();
    until(|| !node.status().waiting.is_empty());
    let _db = node.attach("db", DB);
    files.manifest("late.yaml", &cluster(&["late"]));
    assert!(waiting.into_iter().all(|it| it.join().unwrap().is_ok()));
}

#[test]
fn a_connection_has_a_second_for_its_request() {
    let files = NodeFiles::new("fresh");
    let node = Node::start(&files);
    // A machine that is too busy to send all requests within that second is given another try.
    until(|| {
        let mut new: Vec<Client> = (0..128).map(|_| node.client()).collect();
        let socket = files.socket();
        let one_more =
            std::thread::spawn(move || Client::connect(&socket, LONG).unwrap().ready().is_ok());
        std::thread::sleep(Duration::from_millis(200));
        let are_served = new.iter_mut().all(|it| it.ready().is_ok());
        one_more.join().unwrap() && are_served
    });
}

#[test]
fn others_can_neither_hold_the_lock_nor_read_the_state() {
    use std::os::unix::fs::PermissionsExt;

    let files = NodeFiles::new("modes");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    // As an earlier version left it.
    let state = files.socket().with_file_name("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).unwrap();
    let node = Node::start(&files);
    let _db = node.attach("db", DB);
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join("lock")), 0o600);
}

#[test]
fn a_port_whose_program_is_taken_off_is_closed_and_comes_back_when_it_is_in_force() {
    let files = NodeFiles::new("program");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    let client = std::sync::Mutex::new(node.client());
    node.kernel.on_up(move |interface| {
        let status = client.lock().unwrap().call(&Request::Status).unwrap();
        let ports = status["ports"].as_array().unwrap().clone();
        let port = ports.into_iter().find(|port| port["interface"] == interface).unwrap();
        !port["id"].is_null() && status["generation"] == status["generation_in_force"]
    });
    node.kernel.lose_program("pg-web");
    until(|| node.kernel.downs() == 1 && node.kernel.is_up("pg-web"));
    assert!(node.kernel.came_up_in_order(), "every worker knew the port before it came up");
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    until(|| node.status().lost.is_empty());
    assert_eq!(node.status().ports_lost, 1, "the count stays, the list names what is lost now");
}

/// A bridge, say: whatever address the kernel has reaches processes of the node.
#[test]
fn a_denial_of_nodes_covers_addresses_that_the_kernel_gets_later() {
    let files = NodeFiles::new("own-addresses");
    files.manifest("cluster.yaml", &cluster(&["web"]));
    files.manifest(
        "policy.yaml",
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: \
         {name: nodes}\nspec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: \
         [{action: Deny, to: [{nodes: {}}]}]}\n",
    );
    let named = "203.0.113.50";
    let node =
        Node::start_with(&files, |config| config.node_addresses = vec![named.parse().unwrap()]);
    let web = node.attach("web", WEB);
    let bridge = "172.17.0.1";
    web.send(&syn(WEB, bridge, 80));
    let before = node.wait_for_event(|event| event.to.port == Some(80));
    assert_ne!(before.reason, "policy-denied", "nothing has the address yet");
    let generation = node.status().generation;
    node.kernel.add_address(bridge.parse().unwrap());
    until(|| node.status().generation_in_force > generation);
    web.send(&syn(WEB, bridge, 81));
    let denied = node.wait_for_event(|event| event.to.port == Some(81));
    assert_eq!((denied.verdict, denied.reason.as_str()), (Verdict::Dropped, "policy-denied"));
    // The host port's own address as well, and one that the configuration names.
    for (port, address) in [(82, "10.1.0.1"), (83, named)] {
        web.send(&syn(WEB, address, port));
        let denied = node.wait_for_event(|event| event.to.port == Some(port));
        assert_eq!(denied.reason, "policy-denied", "{address}");
    }
}

#[test]
fn where_the_kernel_lacks_flow_offload_pods_have_ports_of_their_own_and_the_status_says_why() {
    let files = NodeFiles::new("no-offload");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start_with(&files, |config| config.flow_offload = true);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    db.expects(&syn(WEB, DB, 6379), DB);
    let status = node.status();
    assert_eq!(status.flow_offload.state, "unavailable");
    let reason = status.flow_offload.reason.as_deref().unwrap_or_default();
    // With or without root: these interfaces have no punt link.
    assert!(reason.starts_with("Linux ") || reason.contains("punt link"), "{reason}");
}
