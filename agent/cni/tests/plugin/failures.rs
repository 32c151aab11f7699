//! A failure of any step leaves nothing behind, and the error names it.

use std::os::unix::fs::PermissionsExt;

use local_api::{ErrorKind, Request};
use serde_json::json;
use testkit::Namespace;

use crate::node::{Called, Node, PLUGINS, attachment};
use crate::requires_a_node;
use crate::stand_in::Manner;

#[test]
fn the_agent_is_away() {
    requires_a_node!();
    let node = Node::new("away");
    let pod = Namespace::new("awaypod");
    let message = node.add("db", &pod).err(11);
    assert!(message.contains("pod test/db"), "{message}");
    assert!(message.contains("podgate is not running"), "{message}");
    assert!(message.contains(&node.socket().display().to_string()), "{message}");
    node.assert_clean(&pod);
}

#[test]
fn the_agent_was_killed_and_left_its_socket() {
    requires_a_node!();
    let node = Node::new("killed");
    let pod = Namespace::new("killedpod");
    drop(std::os::unix::net::UnixListener::bind(node.socket()).unwrap());
    assert!(node.add("db", &pod).err(11).contains("podgate is not running"));
    node.assert_clean(&pod);
}

#[test]
fn the_agent_does_not_answer_in_time() {
    requires_a_node!();
    let mut node = Node::new("silent");
    let pod = Namespace::new("silentpod");
    let stand_in = node.stand_in(Manner::Silent);
    node.config["timeout"] = json!(3);
    let message = node.add("db", &pod).err(11);
    assert!(message.contains("pod test/db") && message.contains("did not answer"), "{message}");
    assert!(message.contains("must exceed the switch's attach-timeout"), "{message}");
    node.assert_clean(&pod);
    let requests = stand_in.requests();
    assert!(matches!(requests[0], Request::AttachPod(_)), "{requests:?}");
    assert_eq!(requests[1..], [Request::DetachPod(attachment("db"))]);
}

#[test]
fn the_agent_refuses() {
    requires_a_node!();
    let node = Node::new("refuses");
    let pod = Namespace::new("refusespod");
    let stand_in = node.stand_in(Manner::Serves);
    let cases = [
        (Manner::Refuses(ErrorKind::NotReady), 11, "the stand-in refuses"),
        (Manner::Refuses(ErrorKind::Timeout), 11, "the stand-in refuses"),
        (Manner::Refuses(ErrorKind::Conflict), 101, "the stand-in refuses"),
        (Manner::HangsUp, 11, "without an answer"),
    ];
    for (manner, code, text) in cases {
        stand_in.set_manner(manner);
        let message = node.add("db", &pod).err(code);
        assert!(message.contains("pod test/db") && message.contains(text), "{message}");
        node.assert_clean(&pod);
    }
    stand_in.set_manner(Manner::Serves);
    node.add("db", &pod).ok();
}

#[test]
fn no_address_is_left() {
    requires_a_node!();
    let mut node = Node::new("full");
    let (first, second) = (Namespace::new("full1"), Namespace::new("full2"));
    let stand_in = node.stand_in(Manner::Serves);
    let one =
        json!([[{ "subnet": "10.77.0.0/24", "rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.9" }]]);
    node.config["ipam"]["ranges"] = one;
    node.add("one", &first).ok();
    let called = node.add("two", &second);
    let message = called.err(999);
    assert!(message.contains("pod test/two") && message.contains("host-local ADD"), "{message}");
    assert_eq!(stand_in.pods().len(), 1);
    assert_eq!((node.held(), node.ends().len()), (vec!["10.77.0.9".to_owned()], 1));
    node.del("two", &second).ok();
    assert_eq!(node.held(), ["10.77.0.9"]);
    node.del("one", &first).ok();
    node.add("two", &second).ok();
}

/// Many pods want addresses of two families at once, and one family is used up first.
#[test]
fn addresses_that_many_want_at_once_are_used_up_and_come_back() {
    requires_a_node!();
    let mut node = Node::new("crowd");
    let stand_in = node.stand_in(Manner::Serves);
    node.config["ipam"]["ranges"] = json!([
        [{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.11"}],
        [{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::9", "rangeEnd": "fd00:77::a"}]]);
    let pods: Vec<(String, Namespace)> =
        (0..8).map(|n| (format!("pod{n}"), Namespace::new("crowdpod"))).collect();
    let called: Vec<Called> = std::thread::scope(|scope| {
        let call = |(name, pod): &(String, Namespace)| node.add(name, pod);
        let calls: Vec<_> = pods.iter().map(|pod| scope.spawn(move || call(pod))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let links = |pod: &Namespace| pod.exec(["ip", "-brief", "link"]).lines().count();
    let (mut attached, mut refused) = (Vec::new(), Vec::new());
    for (pod, called) in pods.iter().zip(called) {
        if called.success {
            attached.push(pod);
            continue;
        }
        let message = called.err(999);
        let says = |text: &str| message.contains(text);
        assert!(says(&format!("pod test/{}", pod.0)) && says("host-local ADD"), "{message}");
        assert!(says("no IP addresses available in range set"), "{message}");
        assert_eq!(links(&pod.1), 1, "{message}");
        refused.push(pod);
    }
    assert_eq!((attached.len(), refused.len()), (2, 6));
    assert_eq!((node.held().len(), node.ends().len(), stand_in.pods().len()), (4, 2, 2));
    // A runtime also deletes attachments that do not exist, repeatedly. That frees no other one's
    // address.
    for (name, pod) in refused.iter().chain(&refused) {
        node.del(name, pod).ok();
    }
    assert_eq!(node.held().len(), 4);
    let (gone, next) = (attached[0], refused[0]);
    assert!(!node.add(&next.0, &next.1).success);
    node.del(&gone.0, &gone.1).ok();
    node.add(&next.0, &next.1).ok();
    assert_eq!((node.held().len(), node.ends().len(), stand_in.pods().len()), (4, 2, 2));
    assert!(!node.add(&gone.0, &gone.1).success);
    assert_eq!(links(&gone.1), 1);
}

/// ADD with an IPAM plugin made of a shell script.
pub(crate) fn with_plugin(node: &mut Node, script: &str, pod: &Namespace) -> Called {
    set_plugin(node, script);
    call_plugin(node, "ADD", pod)
}

fn set_plugin(node: &mut Node, script: &str) {
    let program = node.folder.path().join("odd");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    node.config["ipam"]["type"] = json!("odd");
}

fn call_plugin(node: &Node, command: &str, pod: &Namespace) -> Called {
    node.call_with(&[
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "db"),
        ("CNI_NETNS", &pod.path().display().to_string()),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", &format!("/nowhere:{}", node.folder.path().display())),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=test;K8S_POD_NAME=db"),
    ])
}

#[test]
fn an_ipam_plugin_that_misbehaves() {
    requires_a_node!();
    let mut node = Node::new("odd");
    let pod = Namespace::new("oddpod");
    let stand_in = node.stand_in(Manner::Serves);
    let cases = [
        ("echo nonsense", 6, "answer of IPAM plugin odd"),
        ("echo '{}'", 7, "gave no address"),
        ("echo '{\"ips\":[{\"address\":\"10.0.0.300/8\"}]}'", 6, "answer of IPAM plugin odd"),
        ("echo oops; exit 3", 5, "exit status: 3"),
        (
            "echo '{\"code\":42,\"msg\":\"sold out\",\"details\":\"since May\"}'; exit 1",
            42,
            "sold out; since May",
        ),
        ("kill -9 $$", 5, "signal: 9"),
    ];
    for (script, code, text) in cases {
        let message = with_plugin(&mut node, script, &pod).err(code);
        assert!(message.contains(text), "{script}: {message}");
        node.assert_clean(&pod);
    }
    assert_eq!(stand_in.requests(), []);
}

#[test]
fn an_ipam_plugin_that_fails_is_called_to_delete() {
    requires_a_node!();
    let mut node = Node::new("undo");
    let pod = Namespace::new("undopod");
    let calls = node.folder.path().join("calls");
    let script = format!(
        "echo $CNI_COMMAND $CNI_CONTAINERID >> {}; [ $CNI_COMMAND = DEL ]",
        calls.display()
    );
    with_plugin(&mut node, &script, &pod).err(5);
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD db\nDEL db\n");
    node.assert_clean(&pod);
}

#[test]
fn an_ipam_plugin_that_hangs() {
    requires_a_node!();
    let mut node = Node::new("hangs");
    let pod = Namespace::new("hangspod");
    node.config["timeout"] = json!(0.5);
    let message = with_plugin(&mut node, "[ $CNI_COMMAND = DEL ] || exec sleep 1000", &pod).err(11);
    assert!(message.contains("odd ADD: no end after 500ms"), "{message}");
    node.assert_clean(&pod);
}

#[test]
fn an_address_the_kernel_refuses_is_given_back() {
    requires_a_node!();
    let mut node = Node::new("badaddr");
    let pod = Namespace::new("badaddrpod");
    let calls = node.folder.path().join("calls");
    let script = format!(
        "echo $CNI_COMMAND >> {}; echo '{{\"ips\":[{{\"address\":\"ff02::1/64\"}}]}}'",
        calls.display()
    );
    let message = with_plugin(&mut node, &script, &pod).err(100);
    assert!(message.contains("ff02::1"), "{message}");
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD\nDEL\n");
    node.assert_clean(&pod);
}

#[test]
fn the_ipam_plugin_is_not_installed() {
    requires_a_node!();
    let mut node = Node::new("noipam");
    let pod = Namespace::new("noipampod");
    node.config["ipam"]["type"] = json!("not-there");
    let message = node.add("db", &pod).err(7);
    assert!(message.contains("not-there") && message.contains(PLUGINS), "{message}");
    node.assert_clean(&pod);
}

#[test]
fn the_namespace_is_gone() {
    requires_a_node!();
    let node = Node::new("gone");
    let pod = Namespace::new("gonepod");
    let stand_in = node.stand_in(Manner::Serves);
    let message = node.call("ADD", "db", "/run/netns/not-there").err(3);
    assert!(message.contains("/run/netns/not-there"), "{message}");

    node.add("db", &pod).ok();
    let path = pod.path().display().to_string();
    drop(pod);
    node.call("DEL", "db", &path).ok();
    node.call("DEL", "db", "").ok();
    assert_eq!((node.ends(), node.held()), (vec![], vec![]));
    assert_eq!(stand_in.pods(), []);
}

#[test]
fn deleting_without_the_agent_gives_everything_back() {
    requires_a_node!();
    let node = Node::new("delaway");
    let pod = Namespace::new("delawaypod");
    let stand_in = node.stand_in(Manner::Serves);
    node.add("db", &pod).ok();
    drop(stand_in);
    node.del("db", &pod).ok();
    node.assert_clean(&pod);
    node.del("db", &pod).ok();
}

#[test]
fn adding_twice_leaves_the_first_one_alone() {
    requires_a_node!();
    let mut node = Node::new("twice");
    let pod = Namespace::new("twicepod");
    let stand_in = node.stand_in(Manner::Serves);
    let result = node.add("db", &pod).ok();
    let message = node.add("db", &pod).err(102);
    assert!(message.contains("container db is attached as eth0"), "{message}");
    node.check("db", &pod, &result).ok();
    assert_eq!(stand_in.requests().len(), 2, "one attach-pod, one check-pod");

    // Another container in the same namespace: the name inside is taken.
    let message = node.add("other", &pod).err(102);
    assert!(message.contains(&pod.path().display().to_string()), "{message}");
    assert_eq!((node.ends().len(), node.held().len()), (1, 2));
    node.check("db", &pod, &result).ok();
}

#[test]
fn of_many_at_the_same_time_one_wins() {
    requires_a_node!();
    let mut node = Node::new("race");
    let pod = Namespace::new("racepod");
    let stand_in = node.stand_in(Manner::Serves);
    let called: Vec<Called> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| node.add("db", &pod))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (won, lost): (Vec<_>, Vec<_>) = called.into_iter().partition(|called| called.success);
    for called in lost {
        called.err(102);
    }
    let [won] = won.try_into().unwrap();
    assert_eq!((stand_in.pods().len(), node.ends().len(), node.held().len()), (1, 1, 2));
    node.check("db", &pod, &won.ok()).ok();
}

/// A runtime that gives up an ADD may delete while it still runs.
#[test]
fn of_what_is_added_while_it_is_deleted_all_is_there_or_nothing() {
    requires_a_node!();
    let node = Node::new("crossed");
    let pod = Namespace::new("crossedpod");
    let stand_in = node.stand_in(Manner::Serves);
    for _ in 0..6 {
        std::thread::scope(|scope| {
            let adds: Vec<_> = (0..2).map(|_| scope.spawn(|| node.add("db", &pod))).collect();
            let deletes: Vec<_> = (0..2).map(|_| scope.spawn(|| node.del("db", &pod))).collect();
            deletes.into_iter().for_each(|thread| drop(thread.join().unwrap().ok()));
            adds.into_iter().for_each(|thread| drop(thread.join().unwrap()));
        });
        let parts = (node.ends().len(), node.held().len(), stand_in.pods().len());
        assert!([(0, 0, 0), (1, 2, 1)].contains(&parts), "ends, addresses, pods: {parts:?}");
        node.del("db", &pod).ok();
        node.assert_clean(&pod);
        assert!(stand_in.pods().is_empty());
    }
}

#[test]
fn a_delete_waits_for_the_end_of_an_add() {
    requires_a_node!();
    let mut node = Node::new("turns");
    let pod = Namespace::new("turnspod");
    let calls = node.folder.path().join("calls");
    // ADD lasts until DEL is called beside it, or a second.
    let script = format!(
        "calls={0}; echo $CNI_COMMAND >> $calls; [ $CNI_COMMAND = DEL ] && exit\n\
         for n in 1 2 3 4 5 6 7 8 9 10; do grep -q DEL $calls && break; sleep 0.1; done\n\
         echo end >> $calls; echo '{{\"ips\":[{{\"address\":\"10.77.0.2/32\"}}]}}'",
        calls.display()
    );
    let stand_in = node.stand_in(Manner::Serves);
    set_plugin(&mut node, &script);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| call_plugin(&node, "ADD", &pod));
        testkit::eventually("the IPAM plugin is called", || calls.exists().then_some(()));
        call_plugin(&node, "DEL", &pod).ok();
        added.join().unwrap().ok();
    });
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD\nend\nDEL\n");
    node.assert_clean(&pod);
    assert!(stand_in.pods().is_empty());
    assert!(!node.folder.path().join("db.lock").exists());
}

#[test]
fn the_nodes_own_namespace_is_no_pods() {
    requires_a_node!();
    let node = Node::new("own");
    let _stand_in = node.stand_in(Manner::Serves);
    let message = node.add("db", &node.namespace).err(4);
    assert!(message.contains("the node's own"), "{message}");
    assert_eq!((node.ends(), node.held()), (vec![], vec![]));
}
