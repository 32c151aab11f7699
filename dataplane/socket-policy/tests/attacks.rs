//! Ways around the programs: by other calls, other processes, and sockets of others.

use session_rules::Ports;
use socket_policy::Options;

use crate::common::*;

#[test]
fn no_other_call_opens_what_connect_may_not() {
    testkit::requires_root!();
    let world = World::new("calls");
    let cgroup = world.cgroup("pod");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let policy = policy_at(&cgroup, &rules, Options::default());
    let mut client = world.client(&cgroup);
    for what in [
        "fast HOST 80",
        "mptcp HOST 80",
        "uring HOST 80",
        "device HOST 80",
        // Another source address: the cgroup decides, and not the address.
        "transparent HOST 80 10.9.0.3",
        "pktinfo HOST 80 10.9.0.3",
        "fork tcp HOST 80",
        "fork send HOST 80",
    ] {
        assert_eq!(client.ask(&what.replace("HOST", "10.9.0.2")), "EPERM", "{what}");
        assert_eq!(&*only(&policy).by, "NetworkPolicy default/a egress", "{what}");
        assert_ne!(client.ask(&what.replace("HOST", "10.9.0.3")), "EPERM", "{what}");
    }
}

#[test]
fn a_socket_is_of_the_cgroup_that_opened_it() {
    testkit::requires_root!();
    let world = World::new("owner");
    let cgroup = world.cgroup("pod");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let policy = policy_at(&cgroup, &rules, Options::default());
    let root = cgroup.parent().unwrap();
    let (mut inside, mut outside) = (world.client(&cgroup), world.client(root));
    let move_to = |client: &Client, cgroup: &std::path::Path| {
        std::fs::write(cgroup.join("cgroup.procs"), client.id().to_string()).unwrap();
    };
    // A socket that another process holds now.
    assert_eq!(inside.ask("hold a STREAM 10.9.0.2"), "ok");
    let way = world.folder.path().join("way");
    outside.begin(&format!("take a {}", way.display()));
    assert_eq!(outside.line(), "listening");
    assert_eq!(inside.ask(&format!("give a {}", way.display())), "ok");
    assert_eq!(outside.line(), "ok");
    assert_eq!(outside.ask("held a 10.9.0.2 80"), "EPERM");
    let denied = only(&policy);
    assert_eq!((&*denied.pod, denied.process.0), ("default/a", outside.id()), "who called");
    assert_eq!(outside.ask("tcp 10.9.0.2 80"), "ok", "a socket of its own");
    // A process that leaves takes its sockets along, and one that comes brings none.
    assert_eq!(inside.ask("hold b STREAM 10.9.0.2"), "ok");
    move_to(&inside, root);
    assert_eq!(inside.ask("held b 10.9.0.2 80"), "EPERM");
    assert_eq!(inside.ask("tcp 10.9.0.2 80"), "ok");
    move_to(&outside, &cgroup);
    assert_eq!(outside.ask("tcp 10.9.0.2 80"), "EPERM");
}

#[test]
fn rules_reach_sockets_that_were_open_before_the_programs() {
    testkit::requires_root!();
    let world = World::new("before");
    let cgroup = world.cgroup("pod");
    let mut client = world.client(&cgroup);
    assert_eq!(client.ask("hold a STREAM 10.9.0.2"), "ok");
    assert_eq!(client.ask("hold b DGRAM 10.9.0.2"), "ok");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let _policy = policy_at(&cgroup, &rules, Options::default());
    assert_eq!(client.ask("held a 10.9.0.2 80"), "EPERM");
    assert_eq!(client.ask("held b 10.9.0.2 80"), "EPERM");
}
