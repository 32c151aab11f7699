//! Changes of the tables: by other programs, and under traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::ObjectRef;
use nftables::{Enforcer, Renderer};
use serde_json::json;
use testkit::packet::udp;

use crate::common::{control, pod, policy, reference_of};
use crate::connections::{A, B, C, change, enforced, lab, only, two};
use crate::lab::Network;

#[test]
fn somebody_elses_changes_are_found_and_mended() {
    testkit::requires_root!();
    let lab = lab(Network::Routed);
    let mut objects = two(json!({}));
    objects.push(only("1"));
    let (_, mut state) = enforced(&lab, objects);
    let packet = udp(&format!("{A}:1000"), &format!("{B}:53"));
    let verify = |state: &mut (Renderer, Enforcer)| lab.node.enter(|| state.1.verify()).unwrap();
    assert!(!lab.arrives("x/a", "x/b", &packet));
    lab.node.exec(["nft", "add", "table", "inet", "other"]);
    verify(&mut state);
    assert_eq!(state.1.written_whole(), 1, "another's table is not a concern");
    for command in
        ["flush chain inet podgate-policy-a forward-to", "delete table inet podgate-policy-b"]
    {
        lab.node.exec(["nft", command]);
        assert!(lab.arrives("x/a", "x/b", &packet), "{command}");
        verify(&mut state);
        assert!(!lab.arrives("x/a", "x/b", &packet), "{command}");
    }
    assert_eq!(state.1.written_whole(), 3);
    // A change that is refused because an element was deleted ends with everything written anew.
    lab.node.exec(["nft", "flush map inet podgate-policy-a from-original-4"]);
    let nothing = control(Vec::new()).view();
    let next = state.0.render(&nothing, &lab.site(&nothing));
    lab.node.enter(|| state.1.set(next)).unwrap();
    assert_eq!(state.1.written_whole(), 4);
}

#[test]
fn no_change_opens_what_is_denied_or_loses_more_than_packets_under_way() {
    testkit::requires_root!();
    let lab = lab(Network::Routed);
    let mut objects = two(json!({"app": "1"}));
    objects.extend([only("1"), pod("x/c", C, json!({"app": "9"}))]);
    let (mut control, mut state) = enforced(&lab, objects);
    let allowed = udp(&format!("{A}:1000"), &format!("{B}:53"));
    let denied = udp(&format!("{C}:1000"), &format!("{B}:53"));
    assert!(lab.arrives("x/a", "x/b", &allowed) && !lab.arrives("x/c", "x/b", &denied));
    const CHANGES: u64 = 60;
    let ended = AtomicBool::new(false);
    let (mut received, mut opened) = (0, 0);
    let sent = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                lab.send_frame("x/a", "x/b", &allowed);
                lab.send_frame("x/c", "x/b", &denied);
                sent += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            sent
        });
        for step in 0..CHANGES {
            // Peers that come and go in the set, other lists for the same pod, a list of its own.
            let value = match step % 4 {
                0 => pod("y/d", "10.0.1.1", json!({"app": "1"})),
                1 => policy(
                    "x/q",
                    json!({"podSelector": {}, "policyTypes": ["Ingress"],
                    "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}),
                ),
                2 => only("1"),
                _ => pod("x/c", C, json!({"app": step.to_string()})),
            };
            change(&lab, &mut control, &mut state, value);
            if step % 10 == 9 {
                // A new process does not know the rules of the earlier one.
                state = (Renderer::default(), Enforcer::default());
                lab.enforce(&mut state, &control.view());
            }
            if step % 4 == 3 {
                let gone: ObjectRef = reference_of("NetworkPolicy", "x", "q");
                control.delete(&gone);
                control.commit();
                lab.enforce(&mut state, &control.view());
            }
        }
        ended.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    testkit::transit(Duration::from_millis(50));
    for packet in lab.received("x/b") {
        match packet.get(12..16) {
            Some([10, 0, 0, 1]) => received += 1,
            Some([10, 0, 0, 3]) => opened += 1,
            _ => {}
        }
    }
    assert_eq!(opened, 0, "of {sent}");
    // A packet that is in the chains while a transaction replaces them may fall off their end.
    assert!(received <= sent && sent - received <= CHANGES, "{received} of {sent} arrived");
    assert_eq!(state.1.written_whole(), 1);
}
