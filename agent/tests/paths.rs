//! Ways out of a node: next hops, neighbours, the uplink, and what is heard of changes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use agent::run::{InterfaceEvent, Interfaces, KernelInterfaces};
use dataplane::port::af_xdp::{Umem, UmemConfig, UplinkFilter};
use linux_net::MacAddress;
use linux_net::{Netlink, NextHop, PathEvent, PathEvents, in_namespace};
use testkit::Namespace;

const PATIENCE: Duration = Duration::from_secs(60);

/// A node and its router, joined by a wire.
struct Rig {
    node: Namespace,
    router: Namespace,
    netlink: Netlink,
    wire: u32,
}

impl Rig {
    fn new(label: &str) -> Self {
        let node = Namespace::new(&format!("{label}-n"));
        let router = Namespace::new(&format!("{label}-r"));
        run(&node, &format!("link add wire type veth peer name wire netns {}", router.name()));
        for (namespace, last) in [(&node, 1), (&router, 2)] {
            run(namespace, &format!("link set wire address 02:00:00:00:00:0{last}"));
            run(namespace, "link set wire up");
            run(namespace, &format!("address add 192.0.2.{last}/24 dev wire"));
            run(namespace, &format!("address add 2001:db8::{last}/64 dev wire nodad"));
        }
        let mut netlink = in_namespace(node.path(), Netlink::open).unwrap().unwrap();
        let wire = netlink.link("wire").unwrap().index;
        Self { node, router, netlink, wire }
    }

    fn next_hop(&mut self, address: &str) -> NextHop {
        self.netlink.next_hop(ip(address)).unwrap()
    }

    fn events(&self) -> PathEvents {
        in_namespace(self.node.path(), PathEvents::open).unwrap().unwrap()
    }
}

fn run(namespace: &Namespace, line: &str) {
    namespace.exec(["ip"].into_iter().chain(line.split_whitespace()));
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const ROUTER: Option<MacAddress> = Some(MacAddress([2, 0, 0, 0, 0, 2]));

/// Waits for an event that `wanted` accepts.
fn wait_for(events: &mut PathEvents, wanted: impl Fn(&PathEvent) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no such event");
        if events.next_within(left).unwrap().is_some_and(|event| wanted(&event)) {
            return;
        }
    }
}

#[test]
fn the_next_hop_is_found_out() {
    testkit::requires_root!();
    let mut rig = Rig::new("hops");
    run(&rig.node, "route add 203.0.113.0/24 via 192.0.2.2");
    run(&rig.node, "route add 2001:db8:f::/48 via 2001:db8::2");
    for (far, near, own) in
        [("203.0.113.9", "192.0.2.2", "192.0.2.1"), ("2001:db8:f::9", "2001:db8::2", "2001:db8::1")]
    {
        let mut events = rig.events();
        let unknown = NextHop {
            link: rig.wire,
            source: Some(ip(own)),
            neighbour: ip(near),
            mac: None,
            mtu: None,
        };
        assert_eq!(rig.next_hop(far), unknown);
        let found = PathEvent::Neighbour { link: rig.wire, address: ip(near), mac: ROUTER };
        wait_for(&mut events, |event| *event == found);
        assert_eq!(rig.next_hop(far), NextHop { mac: ROUTER, ..unknown });
        assert_eq!(rig.next_hop(near), NextHop { mac: ROUTER, ..unknown });
    }
}

#[test]
fn a_bound_of_the_route_is_found_out() {
    testkit::requires_root!();
    let mut rig = Rig::new("mtu");
    for (family, far, near) in
        [("-4", "203.0.113.0/24", "192.0.2.2"), ("-6", "2001:db8:f::/48", "2001:db8::2")]
    {
        run(&rig.node, &format!("{family} route add {far} via {near} mtu 1400"));
        assert_eq!(rig.next_hop(far.split('/').next().unwrap()).mtu, Some(1400));
        assert_eq!(rig.next_hop(near).mtu, None);
    }
}

#[test]
fn a_neighbour_that_changes_is_heard_of() {
    testkit::requires_root!();
    let mut rig = Rig::new("moves");
    run(&rig.node, "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev wire nud permanent");
    assert_eq!(rig.next_hop("192.0.2.2").mac, ROUTER);
    let mut events = rig.events();
    run(&rig.node, "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:77 dev wire nud permanent");
    let moved = Some(MacAddress([2, 0, 0, 0, 0, 0x77]));
    let address = ip("192.0.2.2");
    let event = |mac| PathEvent::Neighbour { link: rig.wire, address, mac };
    wait_for(&mut events, |heard| *heard == event(moved));
    run(&rig.node, "neigh delete 192.0.2.2 dev wire");
    wait_for(&mut events, |heard| *heard == event(None));
}

#[test]
fn a_neighbour_that_does_not_answer_stays_unknown() {
    testkit::requires_root!();
    let mut rig = Rig::new("silent");
    // One question instead of three, a second apart.
    rig.node.exec(["sysctl", "-qw", "net.ipv4.neigh.wire.mcast_solicit=1"]);
    run(&rig.router, "link set wire arp off");
    let mut events = rig.events();
    assert_eq!(rig.next_hop("192.0.2.2").mac, None);
    let (link, address) = (rig.wire, ip("192.0.2.2"));
    wait_for(&mut events, |heard| *heard == PathEvent::Neighbour { link, address, mac: None });
    assert_eq!(rig.next_hop("192.0.2.2").mac, None);
}

#[test]
fn there_is_no_way_to_everywhere() {
    testkit::requires_root!();
    let mut rig = Rig::new("nowhere");
    for (address, why) in [("203.0.113.9", "unreachable"), ("192.0.2.1", "Local")] {
        let error = rig.netlink.next_hop(ip(address)).unwrap_err().to_string();
        assert!(error.contains(address) && error.contains(why), "{error}");
    }
    run(&rig.node, "route add blackhole 203.0.113.0/24");
    rig.netlink.next_hop(ip("203.0.113.9")).unwrap_err();
}

#[test]
fn routes_that_change_are_heard_of() {
    testkit::requires_root!();
    let rig = Rig::new("routes");
    let mut events = rig.events();
    run(&rig.node, "route add 203.0.113.0/24 via 192.0.2.2");
    wait_for(&mut events, |event| *event == PathEvent::Routes);
    run(&rig.node, "route delete 203.0.113.0/24");
    wait_for(&mut events, |event| *event == PathEvent::Routes);
}

#[test]
fn the_uplink_has_the_cluster_nodes_address_or_the_default_route() {
    testkit::requires_root!();
    let mut rig = Rig::new("auto");
    let uplink = |rig: &mut Rig, addresses: &[&str]| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
        rig.netlink.uplink(&addresses).unwrap().map(|link| link.name)
    };
    assert_eq!(uplink(&mut rig, &[]), None);
    for name in ["second", "third"] {
        run(&rig.node, &format!("link add {name} type veth peer name {name}-end"));
        run(&rig.node, &format!("link set {name}-end up"));
        run(&rig.node, &format!("link set {name} up"));
    }
    run(&rig.node, "address add 198.51.100.1/24 dev second");
    run(&rig.node, "route add default dev third metric 500");
    assert_eq!(uplink(&mut rig, &[]).as_deref(), Some("third"));
    run(&rig.node, "route add default via 192.0.2.2 metric 100");
    assert_eq!(uplink(&mut rig, &[]).as_deref(), Some("wire"));
    run(&rig.node, "-6 route add default dev second metric 1");
    assert_eq!(uplink(&mut rig, &["10.0.0.1"]).as_deref(), Some("wire"), "IPv4's comes first");
    assert_eq!(uplink(&mut rig, &["10.0.0.1", "198.51.100.1"]).as_deref(), Some("second"));
    assert_eq!(uplink(&mut rig, &["2001:db8::1"]).as_deref(), Some("wire"));
}

#[test]
fn the_running_switch_takes_an_uplink_and_gives_it_back() {
    testkit::requires_root!();
    let rig = Rig::new("interfaces");
    let shown = || rig.node.exec(["ip", "link", "show", "wire"]);
    rig.node.enter(|| {
        let config = UmemConfig { frames: 256, hugepages: false };
        let (umem, _memory, _frames) = Umem::create(&config).unwrap();
        let mut interfaces = KernelInterfaces::new(umem, 64, None).unwrap();
        let mut network = interfaces.host_network().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        interfaces.watch(Box::new(move |event| drop(tell.send(event)))).unwrap();

        assert_eq!(network.find_uplink(&[ip("192.0.2.1")]).unwrap(), "wire");
        network.find_uplink(&[]).unwrap_err();
        interfaces.set_uplink_filter(&UplinkFilter::default()).unwrap_err();
        let opened = interfaces.open_uplink("wire").unwrap();
        let port = &opened.port;
        assert_eq!((port.index, port.mode.starts_with("native, copy")), (rig.wire, true));
        assert!(shown().contains("xdp"));
        let filter = UplinkFilter { vxlan_port: Some(4789), ..UplinkFilter::default() };
        interfaces.set_uplink_filter(&filter).unwrap();
        // The kernel goes on with what is its own: the neighbour is found through the program.
        assert_eq!(network.next_hop(ip("192.0.2.2")).unwrap().mac, None);
        let found = InterfaceEvent::Neighbour(rig.wire, ip("192.0.2.2"), ROUTER.map(|mac| mac.0));
        while told.recv_timeout(PATIENCE).expect("the neighbour is told") != found {}
        assert_eq!(network.next_hop(ip("192.0.2.2")).unwrap().mac, ROUTER);
        interfaces.release_uplink().unwrap();
        assert!(!shown().contains("xdp"));
    });
}
