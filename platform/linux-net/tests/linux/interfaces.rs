//! Interfaces: pairs, queues, offloads, events.

use std::time::Duration;

use ipnet::IpNet;
use linux_net::MacAddress;
use linux_net::{
    LinkAddress, LinkEvent, LinkEvents, Namespace, Netlink, Route, VethPair, in_namespace,
    keep_vlan_tags, switch_off_offloads, switch_off_segmentation, switch_off_towards_switch,
};

use crate::end;

/// Returns whether a feature of `ethtool -k` is on.
fn feature(namespace: &testkit::Namespace, interface: &str, feature: &str) -> bool {
    let text = namespace.exec(["ethtool", "-k", interface]);
    let line = text.lines().find(|line| line.trim().starts_with(&format!("{feature}:")));
    line.unwrap_or_else(|| panic!("{feature}: {text}")).contains(": on")
}

#[test]
fn a_pair_across_namespaces_carries_packets_both_ways() {
    testkit::requires_root!();
    let (left, right) = (testkit::Namespace::new("left"), testkit::Namespace::new("right"));
    let far_namespace = Namespace::open(right.path()).unwrap();
    let mut near = in_namespace(left.path(), Netlink::open).unwrap().unwrap();
    let mut far = far_namespace.run(Netlink::open).unwrap().unwrap();

    let pair = VethPair {
        near: end("near", 1),
        far: end("far", 2),
        far_namespace: Some(&far_namespace),
        mtu: 1400,
    };
    near.create_veth(&pair).unwrap();
    assert!(near.create_veth(&pair).unwrap_err().is_exists());
    assert_eq!(near.find_link("far").unwrap(), None);

    for (netlink, name, mac, networks) in [
        (&mut near, "near", 1, ["10.9.0.1/32", "fd00:9::1/128"]),
        (&mut far, "far", 2, ["10.9.0.2/32", "fd00:9::2/128"]),
    ] {
        let link = netlink.link(name).unwrap();
        assert_eq!((link.name.as_str(), link.mtu, link.kind.as_str()), (name, 1400, "veth"));
        assert_eq!(link.mac, Some(MacAddress([2, 0, 0, 0, 0, mac])));
        assert!(!link.up && !link.running && link.arp);
        for network in networks {
            let address: IpNet = network.parse().unwrap();
            netlink.add_address(link.index, address).unwrap();
            assert!(netlink.add_address(link.index, address).unwrap_err().is_exists());
            let own = LinkAddress { link: link.index, address, peer: None, tentative: false };
            assert!(netlink.addresses().unwrap().contains(&own));
        }
        netlink.set_up(link.index).unwrap();
        for network in ["10.9.0.0/24", "fd00:9::/64"] {
            let route = Route::direct(network.parse().unwrap(), link.index);
            netlink.add_route(&route).unwrap();
            assert!(netlink.add_route(&route).unwrap_err().is_exists());
            assert!(netlink.routes().unwrap().contains(&route), "{:?}", netlink.routes());
        }
    }
    assert!(near.link("near").unwrap().running);
    left.exec(["ping", "-c", "1", "-W", "5", "10.9.0.2"]);
    left.exec(["ping", "-c", "1", "-W", "5", "fd00:9::2"]);

    let text = left.exec(["ip", "-details", "link", "show", "near"]);
    assert!(text.contains("numtxqueues 1 numrxqueues 1"), "{text}");
}

#[test]
fn a_queue_takes_the_place_of_none() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("queue");
    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    let pair =
        VethPair { near: end("near", 1), far: end("far", 2), far_namespace: None, mtu: 1500 };
    netlink.create_veth(&pair).unwrap();
    let link = netlink.link("near").unwrap().index;
    // Twice: a queue that is there is replaced.
    for _ in 0..2 {
        netlink.put_queue(link).unwrap();
        netlink.set_up(link).unwrap();
        let shown = namespace.exec(["ip", "link", "show", "near"]);
        assert!(shown.contains("qdisc") && !shown.contains("noqueue"), "{shown}");
    }
    assert!(netlink.put_queue(4000).is_err());
}

#[test]
fn offloads_are_off_at_once_and_for_good() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("ethtool"), "ethtool is not installed");
    let namespace = testkit::Namespace::new("offload");
    let features = [
        "tx-checksumming",
        "scatter-gather",
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
        "tx-udp-segmentation",
        "tx-sctp-segmentation",
        "tx-vlan-offload",
    ];
    in_namespace(namespace.path(), || {
        let mut netlink = Netlink::open().unwrap();
        let (near, far) = (end("near", 1), end("far", 2));
        netlink.create_veth(&VethPair { near, far, far_namespace: None, mtu: 1500 }).unwrap();
        assert!(feature(&namespace, "near", "tx-checksumming"), "veth starts with offloads");
        switch_off_offloads("near").unwrap();
        switch_off_offloads("near").unwrap();
        let error = switch_off_offloads("away").unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains("away"), "{error}");
    })
    .unwrap();
    for name in features {
        assert!(!feature(&namespace, "near", name), "{name}");
    }
    // The switch's end gives long packets to the kernel in pieces.
    in_namespace(namespace.path(), || switch_off_segmentation("far").unwrap()).unwrap();
    for name in features {
        let stays = ["tx-checksumming", "scatter-gather"].contains(&name);
        assert_eq!(feature(&namespace, "far", name), stays, "{name}");
    }
    assert!(!feature(&namespace, "far", "tx-checksum-sctp"));
    // So do pods whose packets are long.
    let both = |mtu| move || switch_off_towards_switch("far", mtu).unwrap();
    in_namespace(namespace.path(), both(9000)).unwrap();
    assert!(feature(&namespace, "far", "scatter-gather"));
    in_namespace(namespace.path(), both(1500)).unwrap();
    assert!(!feature(&namespace, "far", "tx-checksumming"));
}

/// On a trunk, a host of another VLAN must not look like one of the uplink's own link.
#[test]
fn tags_stay_in_the_frames_that_come() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("ethtool"), "ethtool is not installed");
    let namespace = testkit::Namespace::new("tags");
    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    let (near, far) = (end("near", 1), end("far", 2));
    netlink.create_veth(&VethPair { near, far, far_namespace: None, mtu: 1500 }).unwrap();
    assert!(feature(&namespace, "near", "rx-vlan-offload"), "veth starts with it");
    for _ in 0..2 {
        in_namespace(namespace.path(), || keep_vlan_tags("near").unwrap()).unwrap();
        assert!(!feature(&namespace, "near", "rx-vlan-offload"));
    }
    assert!(feature(&namespace, "near", "tx-vlan-offload"), "nothing else is changed");
    let error = in_namespace(namespace.path(), || keep_vlan_tags("away")).unwrap().unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[test]
fn a_vxlan_device_has_the_port_of_its_tunnels() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("vxlan");
    let device = ["type", "vxlan", "id", "1", "local", "192.0.2.1", "dstport", "8472"];
    namespace.exec(["ip", "link", "add", "flannel.1"].into_iter().chain(device));
    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    assert_eq!(netlink.link("flannel.1").unwrap().tunnel_port, Some(8472));
    assert_eq!(netlink.link("lo").unwrap().tunnel_port, None);
}

#[test]
fn an_interface_that_vanishes_is_told() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("events");
    let (mut netlink, mut events) =
        in_namespace(namespace.path(), || (Netlink::open().unwrap(), LinkEvents::open().unwrap()))
            .unwrap();
    assert_eq!(events.next_within(Duration::ZERO).unwrap(), None);
    let (near, far) = (end("near", 1), end("far", 2));
    netlink.create_veth(&VethPair { near, far, far_namespace: None, mtu: 1500 }).unwrap();
    let made = netlink.link("near").unwrap();
    netlink.set_alias_without_arp(made.index, "a word about it").unwrap();
    assert_eq!(netlink.link("near").unwrap().alias, "a word about it");
    netlink.delete_link(made.index).unwrap();
    assert!(netlink.delete_link(made.index).unwrap_err().is_not_found());

    let mut born = false;
    for event in events {
        match event.unwrap() {
            LinkEvent::Changed(link) => born |= link.index == made.index,
            LinkEvent::Gone(link) if link.index == made.index => {
                assert_eq!(link.name, "near");
                break;
            }
            _ => {}
        }
    }
    assert!(born, "its birth was told before its end");
}

#[test]
fn what_is_no_namespace_is_refused() {
    testkit::requires_root!();
    let folder = testkit::TempDir::new("ns");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.clone(), folder.path().join("away")] {
        let error = in_namespace(&path, || ()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}
