//! The kernel's side of the agent, in namespaces of the tests' own.

use std::time::Duration;

use ipnet::IpNet;
use linux_net::MacAddress;
use linux_net::host_port::{self, HostPortConfig};
use linux_net::{
    LinkAddress, LinkEvent, LinkEvents, Namespace, Netlink, Route, VethEnd, VethPair, filter,
    in_namespace, keep_vlan_tags, masquerade, switch_off_offloads, switch_off_segmentation,
    switch_off_towards_switch, sysctl,
};
use testkit::{RawSender, packet};

/// Whether a feature of `ethtool -k` is on.
fn feature(namespace: &testkit::Namespace, interface: &str, feature: &str) -> bool {
    let text = namespace.exec(["ethtool", "-k", interface]);
    let line = text.lines().find(|line| line.trim().starts_with(&format!("{feature}:")));
    line.unwrap_or_else(|| panic!("{feature}: {text}")).contains(": on")
}

fn end(name: &str, last: u8) -> VethEnd {
    VethEnd { name: name.into(), mac: MacAddress([2, 0, 0, 0, 0, last]) }
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
fn routes_through_a_gateway_and_their_end() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("route");
    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    let (near, far) = (end("near", 1), end("far", 2));
    netlink.create_veth(&VethPair { near, far, far_namespace: None, mtu: 1500 }).unwrap();
    let link = netlink.link("near").unwrap().index;
    netlink.set_up(link).unwrap();
    let route = Route::via("0.0.0.0/0".parse().unwrap(), "169.254.1.1".parse().unwrap(), link);
    netlink.add_route(&route).unwrap();
    assert!(netlink.routes().unwrap().contains(&route), "{:?}", netlink.routes());
    let text = namespace.exec(["ip", "route"]);
    assert!(text.contains("default via 169.254.1.1 dev near"), "{text}");
    netlink.delete_route(&route).unwrap();
    assert!(netlink.delete_route(&route).unwrap_err().is_not_found());

    netlink.set_down(link).unwrap();
    let error = netlink.add_route(&route).unwrap_err().to_string();
    let words = format!(
        "add route to 0.0.0.0/0 via 169.254.1.1 on interface {link}: \
         Network is down (os error 100): Nexthop device is not up"
    );
    assert_eq!(error, words);

    let mixed = Route::via("::/0".parse().unwrap(), "169.254.1.1".parse().unwrap(), link);
    let error = netlink.add_route(&mixed).unwrap_err().to_string();
    assert!(error.contains("other address family"), "{error}");
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

#[test]
fn the_host_port_is_made_once_and_follows_its_configuration() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("hostport");
    let networks: Vec<IpNet> =
        ["10.1.4.0/24", "fd00:1:4::/64"].map(|network| network.parse().unwrap()).to_vec();
    let config = HostPortConfig {
        gateways: host_port::gateways(&networks),
        routes: networks,
        ..Default::default()
    };
    let set_up = |config: &HostPortConfig| {
        in_namespace(namespace.path(), || host_port::set_up(config)).unwrap()
    };
    let first = set_up(&config).unwrap();
    assert_eq!(set_up(&config).unwrap(), first);
    assert!(first.host.up && !first.switch.up && !first.switch.arp);
    assert_ne!(first.host.mac, first.switch.mac);

    namespace.exec(["ip", "link", "set", "podgate0", "up"]);
    let route = namespace.exec(["ip", "route", "get", "10.1.4.77"]);
    assert!(route.contains("10.1.4.77 dev podgate-host src 10.1.4.1"), "{route}");
    let route = namespace.exec(["ip", "-6", "route", "get", "fd00:1:4::77"]);
    assert!(route.contains("dev podgate-host") && route.contains("src fd00:1:4::1"), "{route}");
    let (forwarding, ipv6) = in_namespace(namespace.path(), || {
        (
            sysctl::read(sysctl::Family::V4, "podgate0", "forwarding").unwrap(),
            sysctl::read(sysctl::Family::V6, "podgate0", "disable_ipv6").unwrap(),
        )
    })
    .unwrap();
    assert_eq!((forwarding.as_str(), ipv6.as_str()), ("0", "1"));

    // Processes send from the address that the node is known by, if the kernel has it.
    namespace.exec(words("ip link add eth0 type veth peer name eth1"));
    namespace.exec(words("ip address add 192.0.2.1/24 dev eth0"));
    let known = HostPortConfig {
        node_addresses: ["192.0.2.7", "192.0.2.1"].map(|own| own.parse().unwrap()).to_vec(),
        ..config.clone()
    };
    set_up(&known).unwrap();
    let route = namespace.exec(["ip", "route", "get", "10.1.4.77"]);
    assert!(route.contains("10.1.4.77 dev podgate-host src 192.0.2.1"), "{route}");
    let route = namespace.exec(["ip", "-6", "route", "get", "fd00:1:4::77"]);
    assert!(route.contains("src fd00:1:4::1"), "{route}");
    let from_gateway = vec!["10.1.4.0/24".parse().unwrap()];
    set_up(&HostPortConfig { from_gateway, ..known }).unwrap();
    let route = namespace.exec(["ip", "route", "get", "10.1.4.77"]);
    assert!(route.contains("src 10.1.4.1"), "{route}");

    let other = HostPortConfig {
        mtu: 1400,
        routes: vec!["10.2.0.5/32".parse().unwrap()],
        ..Default::default()
    };
    let second = set_up(&other).unwrap();
    assert_eq!(
        (second.host.index, second.host.mtu, second.switch.mtu),
        (first.host.index, 1400, 1400)
    );
    let routes = namespace.exec(["ip", "route"]);
    assert_eq!(routes.trim(), "10.2.0.5 dev podgate-host proto static scope link src 169.254.1.1");
    let addresses = namespace.exec(["ip", "-4", "-brief", "address", "show", "podgate-host"]);
    assert!(addresses.contains("169.254.1.1/32") && !addresses.contains("10.1.4.1"), "{addresses}");

    in_namespace(namespace.path(), || host_port::remove(&other)).unwrap().unwrap();
    in_namespace(namespace.path(), || host_port::remove(&other)).unwrap().unwrap();
    assert!(!namespace.exec(["ip", "link"]).contains("podgate"));
}

/// A datagram that is too long for the way to a pod leaves an exception behind, which is no route and can
/// not be deleted as one.
#[test]
fn an_exception_of_a_route_is_no_route() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("exception");
    let networks: Vec<IpNet> = vec!["10.1.4.0/24".parse().unwrap()];
    let mut config = HostPortConfig {
        gateways: host_port::gateways(&networks),
        routes: networks,
        ..Default::default()
    };
    let set_up = |config: &HostPortConfig| {
        in_namespace(namespace.path(), || host_port::set_up(config)).unwrap().unwrap()
    };
    let port = set_up(&config);
    namespace.exec(words("ip link set podgate0 up"));
    // What the switch answers: the packet needs fragmentation, the next link's MTU is 1,450 bytes (RFC 1191).
    let asked = packet::pong("10.1.4.1", "10.1.4.7", 1, 1);
    let answer = packet::icmp_error("10.1.4.7", "10.1.4.1", 3, 4, &asked)
        .rest([0, 0, 0x05, 0xaa])
        .to_mac(port.host.mac.unwrap().0);
    let sender = in_namespace(namespace.path(), || RawSender::open("podgate0")).unwrap().unwrap();
    let cached = || namespace.exec(words("ip route show cache"));
    testkit::eventually("an exception", || {
        sender.send(&answer.build()).unwrap();
        cached().contains("10.1.4.7 dev podgate-host").then_some(())
    });

    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    let single: IpNet = "10.1.4.7/32".parse().unwrap();
    assert!(netlink.routes().unwrap().iter().all(|route| route.destination != single));
    config.routes.push("10.2.0.0/16".parse().unwrap());
    assert_eq!(set_up(&config).refused, Vec::<String>::new());
    assert!(namespace.exec(words("ip route")).contains("10.2.0.0/16 dev podgate-host"));
}

/// Whatever others add to the interface and its routes, all that the kernel takes is as configured.
#[test]
fn what_the_kernel_refuses_about_one_object_stops_no_other() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("refusals");
    let config = HostPortConfig {
        gateways: vec!["10.1.4.1".parse().unwrap(), "fd00:1:4::1".parse().unwrap()],
        routes: ["10.1.4.0/24", "fd00:1:4::/64"].map(|it| it.parse().unwrap()).to_vec(),
        ..Default::default()
    };
    let set_up = |config: &HostPortConfig| {
        in_namespace(namespace.path(), || host_port::set_up(config)).unwrap().unwrap()
    };
    set_up(&config);
    namespace.exec(words("ip link set podgate0 up"));
    for odd in [
        // With a primary address its secondary ones go, and the routes that have them as source.
        "address add 10.7.0.1/24 dev podgate-host",
        "address add 10.7.0.2/24 dev podgate-host",
        "address add 10.8.0.1 peer 10.8.0.2 dev podgate-host",
        "address add 10.1.4.1/16 dev podgate-host",
        // Without a carrier it stays tentative.
        "address del fd00:1:4::1/128 dev podgate-host",
        "link set podgate0 down",
        "address add fd00:1:4::1/128 dev podgate-host",
        "link set podgate0 up",
        "address add fd00:7::1/64 dev podgate-host nodad",
        "route add 10.9.0.0/16 dev podgate-host src 10.7.0.2",
        "route add 10.10.0.0/16 dev podgate-host metric 7",
        "route add 10.11.0.0/16 dev podgate-host proto 99 scope global",
        "route add 10.1.4.0/24 dev podgate-host metric 7",
        "-6 route add fd00:9::/64 dev podgate-host metric 7 proto 99",
        "route add blackhole 10.12.0.0/16",
        "route add 10.13.0.0/16 tos 0x10 dev podgate-host",
        "nexthop add id 4 dev podgate-host",
        "route add 10.14.0.0/16 nhid 4",
        "-6 nexthop add id 6 dev podgate-host",
        "-6 route add fd00:a::/64 nhid 6",
        "neigh add 10.1.4.9 lladdr 02:00:00:00:00:09 dev podgate-host",
        "rule add from 10.1.4.0/24 lookup main priority 99",
    ] {
        namespace.exec(words(&format!("ip {odd}")));
    }
    let mut more = config.clone();
    more.routes.push("10.2.0.0/16".parse().unwrap());
    assert_eq!(set_up(&more).refused, Vec::<String>::new());
    let addresses = namespace.exec(words("ip -o address show dev podgate-host scope global"));
    let addresses: Vec<&str> =
        addresses.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert_eq!(addresses, ["10.1.4.1/32", "fd00:1:4::1/128"]);
    let routes = namespace.exec(words("ip route")) + &namespace.exec(words("ip -6 route"));
    for gone in [
        "10.7.0", "10.8.0", "10.9.0", "10.10.0", "10.11.0", "10.13.0", "10.14.0", "fd00:7",
        "fd00:9", "fd00:a",
    ] {
        assert!(!routes.contains(gone), "{gone}: {routes}");
    }
    for kept in ["10.1.4.0/24", "10.2.0.0/16", "fd00:1:4::/64", "blackhole 10.12.0.0/16"] {
        assert!(routes.contains(kept), "{kept}: {routes}");
    }

    // What it refuses is in the result, and all others are made.
    namespace.exec(words("sysctl -qw net.ipv6.conf.podgate-host.disable_ipv6=1"));
    more.routes.push("10.3.0.0/16".parse().unwrap());
    // More than the driver takes.
    more.mtu = 70_000;
    let refused = set_up(&more).refused;
    for what in ["fd00:1:4::/64", "MTU of interface"] {
        assert!(refused.iter().any(|error| error.contains(what)), "{what}: {refused:?}");
    }
    assert!(namespace.exec(words("ip route")).contains("10.3.0.0/16"));
}

/// An address that is not verified yet (no carrier, duplicate address detection) cannot be a route's source.
#[test]
fn a_tentative_address_of_one_family_leaves_the_other_alone() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("tentative");
    namespace.exec(words("ip link add eth0 type veth peer name eth1"));
    namespace.exec(words("ip link set eth0 up"));
    namespace.exec(words("ip address add 192.0.2.1/24 dev eth0"));
    namespace.exec(words("ip address add 2001:db8::1/64 dev eth0"));
    let shown = namespace.exec(words("ip -6 address show dev eth0"));
    assert!(shown.contains("2001:db8::1/64 scope global tentative"), "{shown}");
    let config = HostPortConfig {
        gateways: vec!["10.1.4.1".parse().unwrap(), "fd00:1:4::1".parse().unwrap()],
        routes: ["10.1.4.0/24", "fd00:1:4::/64"].map(|it| it.parse().unwrap()).to_vec(),
        node_addresses: ["192.0.2.1", "2001:db8::1"].map(|it| it.parse().unwrap()).to_vec(),
        ..Default::default()
    };
    let set_up = || in_namespace(namespace.path(), || host_port::set_up(&config)).unwrap();
    let way = |to: &str| namespace.exec(words(&format!("ip route get {to}")));
    assert_eq!(set_up().unwrap().refused, Vec::<String>::new());
    namespace.exec(words("ip link set podgate0 up"));
    assert!(way("10.1.4.7").contains("src 192.0.2.1"), "{}", way("10.1.4.7"));
    assert!(way("fd00:1:4::7").contains("src fd00:1:4::1"), "{}", way("fd00:1:4::7"));
    // With a carrier the address is verified after a second, and becomes the source.
    namespace.exec(words("ip link set eth1 up"));
    testkit::eventually("the address as source", || {
        set_up().unwrap();
        way("fd00:1:4::7").contains("src 2001:db8::1").then_some(())
    });
}

#[test]
fn odd_neighbours_and_routes_hide_no_next_hop() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("hops");
    for line in [
        "link set lo up",
        // Without a carrier, and the one that the kernel lists first.
        "link add dead type veth peer name other",
        "link set dead up",
        "link add eth0 type veth peer name eth1",
        "link set eth0 up",
        "link set eth1 up",
        "address add 192.0.2.1/24 dev eth0",
        // As routing daemons announce a node's address.
        "address add 198.51.100.1/32 dev lo",
        "route add default via 192.0.2.2",
        "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 nud noarp dev eth0",
        "neigh add 192.0.2.3 lladdr 02:00:00:00:00:03 nud permanent dev eth0",
        "neigh add proxy 192.0.2.4 dev eth0",
        "route add blackhole 203.0.113.1",
        "route add unreachable 203.0.113.2",
        "route add prohibit 203.0.113.3",
        "route add 203.0.113.4 nexthop via 192.0.2.2 nexthop via 192.0.2.2 weight 2",
        "nexthop add id 7 via 192.0.2.3 dev eth0",
        "route add 203.0.113.5 nhid 7",
        "route add default dev dead metric 0 tos 0x10",
    ] {
        namespace.exec(words(&format!("ip {line}")));
    }
    let mut netlink = in_namespace(namespace.path(), Netlink::open).unwrap().unwrap();
    let mut mac = |to: &str| {
        let hop = netlink.next_hop(to.parse().unwrap()).map_err(|error| error.to_string());
        hop.map(|hop| hop.mac.map(|mac| mac.0[5]))
    };
    for (to, last) in [("192.0.2.2", 2), ("192.0.2.3", 3), ("203.0.113.4", 2), ("203.0.113.5", 3)] {
        assert_eq!(mac(to), Ok(Some(last)), "{to}");
    }
    for to in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        assert!(mac(to).is_err(), "{to}");
    }
    assert_eq!(mac("192.0.2.4"), Ok(None), "it is resolved");
    for addresses in [&["198.51.100.1", "192.0.2.1"][..], &["198.51.100.1"], &[]] {
        let addresses: Vec<_> = addresses.iter().map(|it| it.parse().unwrap()).collect();
        let uplink = netlink.uplink(&addresses).unwrap().map(|link| link.name);
        assert_eq!(uplink.as_deref(), Some("eth0"), "{addresses:?}");
    }
}

#[test]
fn odd_tables_of_the_switchs_names_are_replaced_and_others_stay() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("tables");
    namespace.exec(words("nft add table ip podgate"));
    namespace.exec(["nft", "add table inet podgate { flags dormant; }"]);
    namespace.exec(["nft", "add chain inet podgate odd { type filter hook input priority 0; }"]);
    namespace.exec(["nft", "add rule inet podgate odd counter drop"]);
    namespace.exec(["nft", "add table inet podgate-filter"]);
    namespace
        .exec(["nft", "add set inet podgate-filter odd { type ifname; elements = { \"x\" }; }"]);
    let pods: Vec<IpNet> = vec!["10.1.4.0/24".parse().unwrap()];
    let set = || {
        let rules = masquerade::Rules { pods: pods.clone(), cluster: Vec::new() };
        masquerade::Masquerader::default().set(&rules)?;
        let rules = filter::Rules { tunnel_port: Some(4789), pods: pods.clone() };
        filter::Filter::default().set(&rules)
    };
    assert_eq!(in_namespace(namespace.path(), set).unwrap(), Ok(()));
    let tables = namespace.exec(words("nft list ruleset"));
    assert!(!tables.contains("odd") && !tables.contains("dormant"), "{tables}");
    assert!(tables.contains("masquerade") && tables.contains("table ip podgate"), "{tables}");
}

/// Whatever the kernel's defaults are.
#[test]
fn the_kernels_own_stack_has_no_part_in_the_switchs_end() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("closed");
    let settings =
        [("forwarding", "0"), ("rp_filter", "1"), ("arp_ignore", "8"), ("proxy_arp", "0")];
    for (setting, other) in settings.map(|(setting, it)| (setting, if it == "0" { 1 } else { 0 })) {
        namespace.exec(words(&format!("sysctl -qw net.ipv4.conf.default.{setting}={other}")));
    }
    in_namespace(namespace.path(), || {
        // Twice: also where an earlier one was changed since.
        for _ in 0..2 {
            host_port::set_up(&Default::default()).unwrap();
            for (setting, wanted) in settings {
                let found = sysctl::read(sysctl::Family::V4, "podgate0", setting).unwrap();
                assert_eq!(found, wanted, "{setting}");
                let other = if wanted == "0" { "1" } else { "0" };
                sysctl::set(sysctl::Family::V4, "podgate0", setting, other).unwrap();
            }
        }
    })
    .unwrap();
}

#[test]
fn a_foreign_interface_is_not_taken_for_the_host_port() {
    testkit::requires_root!();
    let namespace = testkit::Namespace::new("foreign");
    namespace.exec(["ip", "link", "add", "podgate0", "type", "veth", "peer", "name", "mine"]);
    namespace.exec(["ip", "link", "add", "podgate-host", "type", "veth", "peer", "name", "yours"]);
    let result = in_namespace(namespace.path(), || host_port::set_up(&Default::default()));
    let error = result.unwrap().unwrap_err().to_string();
    assert!(error.contains("podgate0") && error.contains("not the other end"), "{error}");
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn the_kernel_routes_no_forged_sources_to_pods_and_no_tunnel_packets() {
    testkit::requires_root!();
    let (node, outside) = (testkit::Namespace::new("filter"), testkit::Namespace::new("filter-o"));
    let name = outside.name();
    node.exec(words(&format!(
        "ip link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 netns {name}"
    )));
    for (namespace, own) in [(&node, "2001:db8::1/64"), (&outside, "2001:db8::9/64")] {
        namespace.exec(words("ip link set eth0 up"));
        namespace.exec(words(&format!("ip address add {own} dev eth0 nodad")));
    }
    // The way through it leads over another address than the one that is forged.
    node.exec(words("ip address add 2001:db8::100/64 dev eth0 nodad"));
    node.exec(words("sysctl -qw net.ipv6.conf.all.forwarding=1"));
    let networks: Vec<IpNet> = vec!["fd01::/64".parse().unwrap()];
    let config = HostPortConfig {
        gateways: host_port::gateways(&networks),
        routes: networks.clone(),
        ..Default::default()
    };
    in_namespace(node.path(), || host_port::set_up(&config)).unwrap().unwrap();
    node.exec(words("ip link set podgate0 up"));
    outside.exec(words("ip -6 route add fd01::/64 via 2001:db8::100"));
    // The kernel would look for it from an address that is the node's own.
    outside.exec(words("ip neigh add 2001:db8::100 lladdr 02:00:00:00:00:01 dev eth0"));
    // Behind the filter, what the kernel routes is counted.
    node.exec([
        "nft",
        "table inet count { chain routed { type filter hook forward priority 10; counter; }; }",
    ]);
    let routed = || {
        let table = node.exec(words("nft list table inet count"));
        let mut words = table.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a counter")
    };
    let is_routed = |source: &str| {
        let before = routed();
        outside.enter(|| {
            let socket = std::net::UdpSocket::bind((source, 0)).unwrap();
            socket.send_to(b"x", "[fd01::2]:80").unwrap();
        });
        // The wire is a veth pair: a datagram is there when it is sent, but for the first one.
        std::thread::sleep(std::time::Duration::from_millis(200));
        routed() > before
    };
    let sources = ["2001:db8::1", "fd01::3", "2001:db8:7::7"];
    for forged in sources {
        outside.exec(words(&format!("ip address add {forged}/128 dev lo")));
    }
    assert!(sources.iter().all(|source| is_routed(source)), "without the filter");
    let to_port = |port: u16| {
        node.enter(|| {
            let socket = std::net::UdpSocket::bind("[2001:db8::1]:0").unwrap();
            socket.send_to(b"x", ("2001:db8::9", port)).map(|_| ()).map_err(|error| error.kind())
        })
    };
    assert_eq!(to_port(4789), Ok(()));
    let rules = filter::Rules { tunnel_port: Some(4789), pods: networks };
    let mut filter = filter::Filter::default();
    node.enter(|| filter.set(&rules)).unwrap();
    assert_eq!(sources.map(is_routed), [false, false, true]);
    assert_eq!(to_port(4789), Err(std::io::ErrorKind::PermissionDenied));
    assert_eq!(to_port(4790), Ok(()));
    // Somebody flushes it; setting it again restores it.
    node.exec(words("nft flush table inet podgate-filter"));
    node.enter(|| filter.set(&rules)).unwrap();
    assert_eq!(sources.map(is_routed), [false, false, true]);
}

/// Somebody's VXLAN device on the port of the switch's overlay believes what comes to an address that the uplink's program
/// passes to the kernel.
#[test]
fn a_tunnel_device_on_the_overlays_port_gets_nothing() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let (node, outside) = (testkit::Namespace::new("stray"), testkit::Namespace::new("stray-o"));
    let name = outside.name();
    node.exec(words(&format!("ip link add eth0 type veth peer name eth0 netns {name}")));
    for (namespace, own) in [(&node, 1), (&outside, 9)] {
        namespace.exec(words("ip link set eth0 up"));
        namespace.exec(words(&format!("ip address add 192.0.2.{own}/24 dev eth0")));
        namespace.exec(words(&format!("ip address add 2001:db8::{own}/64 dev eth0 nodad")));
    }
    for (device, local) in [("flannel.1", "192.0.2.1"), ("flannel-v6.1", "2001:db8::1")] {
        node.exec(words(&format!(
            "ip link add {device} type vxlan id 7 local {local} dstport 4789 nolearning"
        )));
        node.exec(words(&format!("ip link set {device} address 02:00:00:00:07:07 up")));
    }
    node.exec(words("ip route add 10.2.0.0/24 dev flannel.1"));
    let victim = node.enter(|| std::net::UdpSocket::bind("192.0.2.1:9").unwrap());
    // A pod of another node, as a process of this one sees it.
    let inner = packet::udp("10.2.0.9:5", "192.0.2.1:9").payload(b"forged");
    let inner = inner.to_mac([2, 0, 0, 0, 7, 7]).build();
    let wrapped = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
    let send = || {
        for (from, to) in [("0.0.0.0:0", "192.0.2.1:4789"), ("[::]:0", "[2001:db8::1]:4789")] {
            let socket = outside.enter(|| std::net::UdpSocket::bind(from).unwrap());
            // The kernel may report that nothing takes it.
            let _ = socket.send_to(&wrapped, to);
        }
    };
    let received = |patience: Duration| {
        victim.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 16];
        victim.recv(&mut bytes).is_ok_and(|length| bytes[..length] == *b"forged")
    };
    send();
    let long = Duration::from_secs(20);
    assert!(received(long) && received(long), "the attack is one, over each family");
    let rules = filter::Rules { tunnel_port: Some(4789), pods: Vec::new() };
    node.enter(|| filter::Filter::default().set(&rules)).unwrap();
    send();
    assert!(!received(Duration::from_millis(500)));
}

/// Something else made the kernel track connections while this one was open, and the server sent first.
#[test]
fn a_connection_that_conntrack_took_for_the_other_ends_is_turned_round() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "nft is not installed");
    let (node, outside) =
        (testkit::Namespace::new("tracked"), testkit::Namespace::new("trackedout"));
    let inside = outside.name();
    node.exec(words(&format!("ip link add eth0 type veth peer name eth0 netns {inside}")));
    for (namespace, last) in [(&node, 1), (&outside, 9)] {
        namespace.exec(words(&format!("ip address add 192.0.2.{last}/24 dev eth0")));
        namespace.exec(words("ip link set eth0 up"));
    }
    let server = node.enter(|| std::net::TcpListener::bind("192.0.2.1:8080").unwrap());
    let client = outside.enter(|| std::net::TcpStream::connect("192.0.2.1:8080").unwrap());
    let (mut accepted, from) = server.accept().unwrap();
    for line in [
        "add table ip t",
        "add chain ip t c { type filter hook input priority 0; }",
        "add rule ip t c ct state new counter",
    ] {
        node.exec(["nft", line]);
    }
    std::io::Write::write_all(&mut accepted, b"first").unwrap();
    let tracked = || node.exec(["cat", "/proc/net/nf_conntrack"]);
    let is_of = |line: &str| {
        let port = from.port();
        line.contains(&format!("src=192.0.2.9 dst=192.0.2.1 sport={port} dport=8080 src=192.0.2.1"))
    };
    testkit::eventually("the entry", || tracked().contains("dport=8080").then_some(()));
    assert!(!tracked().lines().any(is_of), "it is the server's: {}", tracked());
    let track = || in_namespace(node.path(), linux_net::track_open_connections).unwrap().unwrap();
    assert_eq!(track(), 1);
    assert!(tracked().lines().any(is_of), "{}", tracked());
    assert_eq!(track(), 0, "those that are right stay");
    // It goes on.
    std::io::Write::write_all(&mut &client, b"second").unwrap();
    std::io::Read::read_exact(&mut accepted, &mut [0; 6]).unwrap();
    assert!(tracked().lines().any(is_of), "{}", tracked());
}
