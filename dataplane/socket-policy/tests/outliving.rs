//! Programs that outlive the process that attached them, and their end.
#![allow(unsafe_code, reason = "a process that stops between fork and exec")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

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

/// A process has all descriptors of the one that made it until it executes a program.
#[test]
fn programs_end_at_once_while_another_process_is_being_made() {
    testkit::requires_root!();
    let world = World::new("ends");
    let cgroup = world.cgroup("pod");
    let mut client = world.client(&cgroup);
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    for is_dropped in [false, true] {
        let policy = policy_at(&cgroup, &rules, Options::default());
        assert_eq!(client.ask("udp 10.9.0.2 1"), "EPERM");
        let (mut own, mut of_child) = UnixStream::pair().unwrap();
        let mut command = Command::new("true");
        let stop = move || of_child.write_all(b"x").and_then(|()| of_child.read_exact(&mut [0]));
        // SAFETY: between fork and exec it reads and writes a descriptor alone.
        unsafe { command.pre_exec(stop) };
        std::thread::scope(|scope| {
            let child = scope.spawn(|| command.status().unwrap());
            own.read_exact(&mut [0]).unwrap();
            match is_dropped {
                true => drop(policy),
                false => policy.detach("default/a").unwrap(),
            }
            let said = client.ask("udp 10.9.0.2 1");
            own.write_all(b"x").unwrap();
            assert!(child.join().unwrap().success());
            assert_eq!(said, "ok", "{is_dropped}");
        });
    }
}
