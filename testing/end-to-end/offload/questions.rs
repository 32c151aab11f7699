//! Questions to resolvers take the kernel's way, and each is over with its answer.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::handshake::of_reasons;
use super::{ON, connections, offload};
use crate::cluster_node::PATIENCE;
use crate::pod::Pod;
use crate::policies::nothing_in;
use crate::storm::Raise;
use crate::{ClusterNode, requires_the_machine};

const QUESTIONS: u64 = 100;

/// A question that a policy denies.
const DENIED: &[u8] = b"a question that is denied, of forty bytes";

/// Answers all questions to a resolver while `work` runs, which gets the counter of denied ones.
fn while_answering<T>(resolver: &Pod<'_>, work: impl FnOnce(&AtomicU64) -> T) -> T {
    let (stop, denied) = (AtomicBool::new(false), AtomicU64::new(0));
    let socket = resolver.namespace.enter(|| UdpSocket::bind("[::]:53").unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    std::thread::scope(|scope| {
        let _stopping = Raise(&stop);
        let (stop, denied) = (&stop, &denied);
        scope.spawn(move || {
            let mut question = [0; 512];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut question) {
                    denied.fetch_add(u64::from(question[..length] == *DENIED), Ordering::SeqCst);
                    // A client that is gone refuses its answer.
                    let _ = socket.send_to(&question[..length], from);
                }
            }
        });
        work(denied)
    })
}

/// A socket of a fresh port.
fn client(pod: &Pod<'_>, resolver: IpAddr) -> UdpSocket {
    let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = pod.namespace.enter(|| UdpSocket::bind(any).unwrap());
    socket.connect(SocketAddr::new(resolver, 53)).unwrap();
    socket
}

fn asks(socket: &UdpSocket) {
    let question = [b'q'; 40];
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(&question).unwrap();
    let mut answer = [0; 512];
    assert_eq!(socket.recv(&mut answer).unwrap(), question.len());
}

/// Asks from fresh ports until the kernel has opened a connection itself.
fn make_template(node: &ClusterNode, pod: &Pod<'_>, resolver: IpAddr) {
    let opened = || offload(node)["opened"].as_u64().unwrap();
    node.eventually("a template", || {
        let before = opened();
        asks(&client(pod, resolver));
        (opened() > before).then_some(())
    });
}

#[test]
fn questions_take_the_kernels_way_and_are_all_seen() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let (pod, resolver) = (node.pod("client", "client"), node.pod("resolver", "resolver"));
    while_answering(&resolver, |_| {
        for to in [resolver.v4(), resolver.v6()] {
            make_template(&node, &pod, to);
            let of = |what: &str| offload(&node)[what].as_u64().unwrap();
            let punted = || of_reasons(&offload(&node));
            let ports = || {
                let is_opening = |it: &&serde_json::Value| {
                    it["reason"] == "policy-allowed" && it["to"]["ip"] == to.to_string()
                };
                let verdicts = node.verdicts(&[]);
                let port = |it: &serde_json::Value| it["from"]["port"].as_u64().unwrap();
                verdicts.iter().filter(is_opening).map(port).collect::<Vec<_>>()
            };
            let before = (of("opened"), punted());
            let mut asked = Vec::new();
            for _ in 0..QUESTIONS {
                let socket = client(&pod, to);
                asks(&socket);
                asked.push(u64::from(socket.local_addr().unwrap().port()));
            }
            node.eventually("the count of connections", || {
                (of("opened") > before.0 + QUESTIONS / 2).then_some(())
            });
            assert!(punted() < before.1 + QUESTIONS, "{to}: {}", offload(&node));
            node.eventually("all verdicts", || {
                let shown = ports();
                asked.iter().all(|port| shown.contains(port)).then_some(())
            });
            // Questions have no entries beyond their answers.
            node.eventually("the end of entries", || (connections(&node) == 0).then_some(()));
            // A port asks again, twice at once.
            let socket = client(&pod, to);
            asks(&socket);
            for _ in 0..2 {
                socket.send(b"a question of forty bytes, more or less").unwrap();
            }
            for _ in 0..2 {
                socket.recv(&mut [0; 512]).unwrap();
            }
        }
        let dropped = node.verdicts(&["--verdict", "dropped"]);
        assert!(dropped.iter().all(|it| it["from"]["port"] != 53), "{dropped:?}");
    });
}

/// Counted by the resolver: once the denial is in force, no question arrives.
#[test]
fn a_denial_holds_for_the_next_question_of_a_template() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let (pod, resolver) = (node.pod("client", "client"), node.pod("resolver", "resolver"));
    while_answering(&resolver, |denied| {
        for to in [resolver.v4(), resolver.v6()] {
            make_template(&node, &pod, to);
            node.apply("policy", &nothing_in("resolver"));
            let before = offload(&node)["opened"].clone();
            for _ in 0..20 {
                client(&pod, to).send(DENIED).unwrap();
            }
            node.eventually("their verdicts", || {
                let dropped = node.verdicts(&["--verdict", "dropped"]);
                let is_theirs = |it: &&serde_json::Value| it["to"]["ip"] == to.to_string();
                (dropped.iter().filter(is_theirs).count() >= 20).then_some(())
            });
            assert_eq!(offload(&node)["opened"], before, "{to}");
            node.withdraw("policy");
            // Behind them.
            asks(&client(&pod, to));
            assert_eq!(denied.load(Ordering::SeqCst), 0, "{to}");
        }
    });
}
