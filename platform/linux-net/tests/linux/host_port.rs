//! The host port.

use ipnet::IpNet;
use linux_net::host_port::{self, HostPortConfig};
use linux_net::{in_namespace, sysctl};

use crate::words;

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
