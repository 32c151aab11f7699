//! Routes, and the next hops behind them.

use ipnet::IpNet;
use linux_net::host_port::{self, HostPortConfig};
use linux_net::{Netlink, Route, VethPair, in_namespace};
use testkit::{RawSender, packet};

use crate::{end, words};

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
