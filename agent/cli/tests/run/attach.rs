//! Pods that are attached, wait, and are detached.

use std::collections::BTreeSet;
use std::time::Duration;

use local_api::{AttachPod, ClientError, ErrorKind, Verdict};

use crate::node::{Node, NodeFiles, cluster, until};
use crate::{API, DB, WEB, syn};

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
    assert!(error.message.contains("node's own"), "{error}");
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

#[test]
fn a_pod_made_again_waits_for_its_own_object() {
    let files = NodeFiles::new("namesake");
    let with_uid =
        |uid: &str| cluster(&["db"]).replace("{name: db,", &format!("{{name: db, uid: \"{uid}\","));
    files.manifest("cluster.yaml", &with_uid("1"));
    let node = Node::start(&files);
    node.kernel.add("pg-db");
    let pod = AttachPod { uid: Some("2".into()), ..node.pod("db", DB) };
    let mut client = node.client();
    let waiting = std::thread::spawn(move || client.attach_pod(&pod));
    until(|| !node.status().waiting.is_empty());
    let reason = &node.status().waiting[0].reason;
    assert_eq!(reason, "its Pod object; the one known is of another pod of that name");
    assert!(!node.kernel.is_up("pg-db"));
    files.manifest("cluster.yaml", &with_uid("2"));
    waiting.join().unwrap().unwrap();
    assert!(node.kernel.is_up("pg-db"));
    // Its successor is told before it is detached: it is closed.
    files.manifest("cluster.yaml", &with_uid("3"));
    until(|| node.status().ports.iter().any(|port| port.name == "default/db" && port.closed));
}
