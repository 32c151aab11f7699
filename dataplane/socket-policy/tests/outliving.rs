//! Programs that outlive the process that attached them.

use session_rules::Ports;
use socket_policy::{Options, remove_pins};

use crate::common::*;

#[test]
fn pinned_programs_stay_until_they_are_replaced_or_removed() {
    testkit::requires_root!();
    let world = World::new("pins");
    let cgroup = world.cgroup("pod");
    let options = || Options { pins: Some(world.pins()), ..Options::default() };
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let mut client = world.client(&cgroup);
    let [denied, allowed] = ["udp 10.9.0.2 1", "udp 10.9.0.3 1"];
    // The process ends; its programs and the last rules stay.
    drop(policy_at(&cgroup, &rules, options()));
    assert_eq!((client.ask(denied), client.ask(allowed)), ("EPERM".into(), "ok".into()));
    // The next one takes over; there are never two.
    let next = policy_at(&cgroup, &deny_to("default/a", "10.9.0.3", Ports::ANY), options());
    assert_eq!((client.ask(denied), client.ask(allowed)), ("ok".into(), "EPERM".into()));
    let other = world.cgroup("other");
    next.attach("default/b", &[], &other, false).unwrap();
    next.set_rules(&deny_to("default/b", "10.9.0.2", Ports::ANY), &[], &Default::default(), &[])
        .unwrap();
    assert_eq!(next.attached().len(), 2);
    drop(next);
    let mut second = world.client(&other);
    assert_eq!(second.ask(denied), "EPERM");
    // A process that knows one of the pods alone removes the pins of the other.
    let last = policy_at(&cgroup, &rules, options());
    assert_eq!(second.ask(denied), "EPERM", "until it knows all pods");
    last.detach_others().unwrap();
    assert_eq!(second.ask(denied), "ok");
    assert_eq!(client.ask(denied), "EPERM");
    drop(last);
    assert_eq!(client.ask(denied), "EPERM");
    remove_pins(&world.pins()).unwrap();
    assert_eq!(client.ask(denied), "ok");
    assert!(!world.pins().exists());
    remove_pins(&world.pins()).unwrap();
}
