//! Forged addresses, tags, and pods that are not rendered.

use nftables::{Enforcer, Renderer};
use serde_json::json;
use testkit::packet::{Packet, neighbour_advertisement, udp};

use crate::connections::{A, B, C, WORLD, change, enforced, lab, only, socket, two};
use crate::lab::{Lab, Network};

/// A bridge passes tagged frames by the hooks that evaluate packets, and a pod looks behind the tag of
/// VLAN 0.
#[test]
fn no_tag_leads_past_the_policies() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let tagged = |tag: fn(Packet) -> Packet| {
            [(A, B), ("fd00::1", "fd00::2")]
                .map(|(from, to)| tag(udp(&socket(from, 1000), &socket(to, 53)).payload(b"x")))
        };
        let frames = [
            tagged(|packet| packet.vlan(0)),
            tagged(|packet| packet.service_vlan(0)),
            tagged(|packet| packet.vlan(5)),
            tagged(|packet| packet.service_vlan(0).vlan(0)),
        ];
        let arrive = |lab: &Lab| {
            let all = frames.iter().flatten();
            all.filter(|packet| lab.arrives("x/a", "x/b", packet)).count()
        };
        let outward = udp(&socket(A, 1000), &socket(WORLD, 53)).payload(b"x");
        let outward = [outward.clone().vlan(0), outward.service_vlan(5)];
        let leave =
            |lab: &Lab| outward.iter().filter(|packet| lab.arrives("x/a", "world", packet)).count();
        if network == Network::Bridged {
            assert!(arrive(&lab) >= 6 && leave(&lab) == 2, "without rules");
        }
        let mut objects = two(json!({"app": "1"}));
        objects.push(only("2"));
        let (mut control, mut state) = enforced(&lab, objects);
        assert_eq!(arrive(&lab), 0, "{network:?}");
        // Where they cannot be evaluated, they do not pass if they are allowed either.
        change(&lab, &mut control, &mut state, only("1"));
        assert!(lab.arrives("x/a", "x/b", &udp(&format!("{A}:1000"), &format!("{B}:53"))));
        assert!(network == Network::Routed || arrive(&lab) + leave(&lab) == 0);
    }
}

#[test]
fn forged_addresses_go_nowhere() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let (_, _state) = enforced(&lab, two(json!({})));
        let forged = |from: &str, to: &str| udp(&socket(from, 1000), &socket(to, 53));
        let expect = |from: &str, to: &str, packet: &Packet, arrives: bool| {
            assert_eq!(lab.arrives(from, to, packet), arrives, "{network:?} {from} {packet:?}");
        };
        expect("x/a", "x/b", &forged(A, B), true);
        expect("world", "x/b", &forged(WORLD, B), true);
        expect("x/a", "x/b", &forged("fd00::1", "fd00::2"), true);
        // Another pod's address, an outside one, an unassigned one: none is the pod's own.
        for source in [B, WORLD, C, "203.0.113.9"] {
            expect("x/a", "x/b", &forged(source, B), false);
        }
        expect("x/a", "x/b", &forged("fd00::7", "fd00::2"), false);
        expect("x/a", "x/b", &forged("fe80::7", "fd00::2"), false);
        // A pod's address from elsewhere.
        expect("world", "x/b", &forged(A, B), false);
        expect("world", "x/b", &forged("fd00::1", "fd00::2"), false);
        // Packets for an unassigned address at the pod's interface.
        if network == Network::Bridged {
            expect("world", "x/b", &forged(WORLD, "192.0.2.99"), false);
            // Claims to be another pod.
            expect("x/a", "world", &neighbour_advertisement("fd00::1", "ff02::1"), true);
            expect("x/a", "world", &neighbour_advertisement("fd00::2", "ff02::1"), false);
            expect("world", "x/a", &neighbour_advertisement("fd00::2", "ff02::1"), false);
        }
    }
}

#[test]
fn pods_that_are_not_rendered_are_closed() {
    testkit::requires_root!();
    for network in [Network::Routed, Network::Bridged] {
        let lab = lab(network);
        let (control, mut state) = enforced(&lab, two(json!({})));
        let to = |from: &str, to: &str| udp(&socket(from, 1000), &socket(to, 53));
        // No known pod has c's address.
        assert!(lab.arrives("x/c", "world", &to(C, WORLD)));
        let mut site = lab.site(&control.view());
        site.networks = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let set = |state: &mut (Renderer, Enforcer), site: &nftables::Site| {
            let ruleset = state.0.render(&control.view(), site);
            lab.node.enter(|| state.1.set(ruleset)).unwrap();
        };
        set(&mut state, &site);
        assert!(!lab.arrives("x/c", "world", &to(C, WORLD)));
        assert!(!lab.arrives("world", "x/c", &to(WORLD, C)));
        assert!(!lab.arrives("x/a", "x/c", &to("fd00::1", "fd00::3")));
        assert!(lab.arrives("x/a", "x/b", &to(A, B)));
        // A pod whose interface is not known.
        site.attachments.retain(|key, _| key.to_string() != "x/a");
        set(&mut state, &site);
        assert!(!lab.arrives("x/a", "x/b", &to(A, B)));
        assert!(!lab.arrives("world", "x/a", &to(WORLD, A)));
        assert!(lab.arrives("world", "x/b", &to(WORLD, B)));
        if network == Network::Bridged {
            // Where the kernel does not pass bridged frames to the hooks that evaluate them.
            site = lab.site(&control.view());
            site.bridge_filter = false;
            set(&mut state, &site);
            assert!(!lab.arrives("x/a", "x/b", &to(A, B)));
        }
        // Removed, nothing is enforced.
        lab.node.enter(|| state.1.remove()).unwrap();
        assert!(lab.arrives("x/a", "x/b", &to(A, B)));
        assert_eq!(lab.node.exec(["nft", "list", "tables"]).trim(), "");
    }
}
