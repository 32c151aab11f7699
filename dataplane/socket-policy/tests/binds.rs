//! `bind()` and `listen()` are not asked about: what comes to a socket is, however it got its port.

use session_rules::{Action, Ports};
use testkit::eventually;

use crate::arrivals::{
    FRIEND, Hosts, NODE, STRANGER, accepts, is_denied, is_open, only_the_friend,
};
use crate::common::*;

/// The port of a socket of a process.
fn port(client: &mut Client, name: &str) -> u16 {
    client.begin(&format!("port {name}"));
    let port = client.line().parse().unwrap();
    assert_eq!(client.line(), "ok");
    port
}

#[test]
fn a_listener_is_asked_about_however_it_was_bound() {
    testkit::requires_root!();
    let hosts = Hosts::new("bound", |_| socket_policy::Options::default());
    let (mut pod, mut node, mut client) =
        (hosts.world.client(&hosts.pod), hosts.node_process(), hosts.client());
    // One that listens before the rules.
    assert_eq!(pod.ask("listen early tcp 0.0.0.0 0"), "ok");
    hosts.accept(&only_the_friend());
    let mut listening = vec!["early"];
    for (name, what) in [
        ("any", "listen any tcp 0.0.0.0 0"),
        ("both", "listen both tcp :: 0"),
        ("own", "listen own tcp 10.8.0.1 0"),
        ("mptcp", "listen mptcp mptcp 0.0.0.0 0"),
        ("never", "unbound never tcp 10.8.0.1"),
        ("never6", "unbound never6 tcp ::"),
    ] {
        // A pod that nothing may reach listens all the same: rules change, and its node reaches it.
        assert_eq!(pod.ask(what), "ok");
        listening.push(name);
    }
    for name in listening {
        assert_eq!(pod.ask(&format!("serving {name} tcp")), "ok");
        let port = port(&mut pod, name);
        assert!(
            is_denied(&mut client, &format!("tcp {} {port} {}", NODE[0], STRANGER[0])),
            "{name}"
        );
        assert_eq!(node.ask(&format!("open {name} tcp {} {port}", NODE[0])), "ok", "{name}");
        let open = [only_the_friend(), accepts(None, Ports::one(port), Action::Allow)];
        hosts.accept(&open.concat());
        assert!(is_open(&mut client, &format!("tcp {} {port} {}", NODE[0], STRANGER[0])), "{name}");
        hosts.accept(&only_the_friend());
    }
}

#[test]
fn a_port_that_sending_binds_is_open_to_replies_alone() {
    testkit::requires_root!();
    let hosts = Hosts::with("sends", &accepts(None, Ports::ANY, Action::Deny));
    let (mut pod, mut client) = (hosts.world.client(&hosts.pod), hosts.client());
    for (nth, host) in FRIEND.iter().enumerate() {
        assert_eq!(pod.ask(&format!("hold s DGRAM {host}")), "ok");
        assert_eq!(pod.ask("patience s 20"), "ok");
        assert_eq!(pod.ask(&format!("tell s {host} 53")), "ok");
        let port = port(&mut pod, "s");
        // A reply comes behind what others send, which never does.
        for own in [STRANGER[nth], host] {
            assert_eq!(client.ask(&format!("bound c DGRAM {own} 53")), "ok");
            assert_eq!(client.ask(&format!("tell c {} {port}", NODE[nth])), "ok");
        }
        pod.begin("get s");
        assert_eq!([pod.line(), pod.line()], ["53", "ok"]);
        assert_eq!(pod.ask("patience s 0.2"), "ok");
        assert_eq!(pod.ask("get s"), "timeout");
        let kept_out = 1 + nth as u64;
        eventually("the denial", || (hosts.policy.counters().kept_out == kept_out).then_some(()));
    }
}
