//! Tables of nftables, and connection tracking.

use std::net::UdpSocket;
use std::time::Duration;

use ipnet::IpNet;
use linux_net::host_port::{self, HostPortConfig};
use linux_net::redirect::{Redirector, Redirects};
use linux_net::{ForwardPolicy, filter, in_namespace, masquerade};
use testkit::packet;

use crate::words;

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
        let rules = masquerade::Rules {
            pods: pods.clone(),
            cluster: Vec::new(),
            taken: [[(17, 5060)].into(), [(6, 80)].into()],
        };
        masquerade::Masquerader::default().set(&rules)?;
        let rules = filter::Rules { tunnel_port: Some(4789), pods: pods.clone() };
        filter::Filter::default().set(&rules)
    };
    in_namespace(namespace.path(), set).unwrap().unwrap();
    in_namespace(namespace.path(), set).unwrap().unwrap();
    // Without it the kernel resets connections that it masquerades.
    let liberal = namespace.exec(words("sysctl -n net.netfilter.nf_conntrack_tcp_be_liberal"));
    assert_eq!(liberal.trim(), "1");
    let tables = namespace.exec(words("nft list ruleset"));
    assert!(!tables.contains("odd") && !tables.contains("dormant"), "{tables}");
    assert!(tables.contains("masquerade") && tables.contains("table ip podgate"), "{tables}");
}

/// As Docker and ufw leave it.
#[test]
fn chains_that_drop_what_is_forwarded_are_found() {
    testkit::requires_root!();
    let node = testkit::Namespace::new("forward");
    let mut policy = ForwardPolicy::default();
    let mut found = || {
        let found = || policy.dropping("podgate-host").map(<[String]>::to_vec);
        in_namespace(node.path(), found).unwrap().unwrap()
    };
    assert!(found().is_empty());
    node.exec(words("nft add table ip filter"));
    let chain = "add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }";
    node.exec(["nft", chain]);
    assert_eq!(found(), ["ip filter FORWARD"]);
    assert_eq!(found(), ["ip filter FORWARD"], "nothing changed");
    node.exec(words("nft add rule ip filter FORWARD iifname podgate-host accept"));
    assert!(found().is_empty());
}

/// A process that never pauses, and a service that comes and goes.
#[test]
fn datagrams_of_a_process_follow_the_redirects() {
    testkit::requires_root!();
    let node = testkit::Namespace::new("redirect");
    for line in [
        "ip link set lo up",
        "ip link add eth0 type veth peer name far",
        "ip link set far up",
        "ip address add 192.0.2.1/24 dev eth0",
        "ip link set eth0 up",
        "ip route add 169.254.1.2 dev eth0",
    ] {
        node.exec(words(line));
    }
    let of = |ports: &[u16]| Redirects {
        node: ["192.0.2.1".parse().unwrap()].into(),
        node_ports: ports
            .iter()
            .map(|port| (17, *port, ([169, 254, 1, 2], *port).into()))
            .collect(),
        switch: ["169.254.1.2".parse().unwrap()].into(),
        ..Redirects::default()
    };
    let arrivals = in_namespace(node.path(), || {
        let receiver = UdpSocket::bind("192.0.2.1:8125").unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let sender = UdpSocket::bind("192.0.2.1:5000").unwrap();
        let mut redirector = Redirector::default();
        let wanted = [of(&[]), of(&[9]), of(&[8125]), of(&[9, 8125]), of(&[9])];
        wanted.map(|redirects| {
            redirector.set(&redirects).unwrap();
            // One that leaves by the interface may have no neighbour there.
            let _ = sender.send_to(b"x", "192.0.2.1:8125");
            receiver.recv(&mut [0; 9]).is_ok()
        })
    });
    assert_eq!(arrivals.unwrap(), [true, true, false, false, true]);
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
    let sources = ["2001:db8::1", "fd01::3", "2001:db8:7::7"];
    let counters = sources.map(|source| format!("ip6 saddr {source} counter; ")).concat();
    node.exec([
        "nft",
        &format!(
            "table inet count {{ chain routed {{ type filter hook forward priority 10; {counters} }}; }}"
        ),
    ]);
    // Datagrams that were routed, of each source.
    let routed = || {
        let table = node.exec(words("nft list table inet count"));
        let counts = table.split("packets ").skip(1).map(|rest| rest.split(' ').next().unwrap());
        let counts: Vec<u64> = counts.map(|count| count.parse().unwrap()).collect();
        <[u64; 3]>::try_from(counts).expect("three counters")
    };
    let send = |source: &str| {
        outside.enter(|| {
            let socket = std::net::UdpSocket::bind((source, 0)).unwrap();
            socket.send_to(b"x", "[fd01::2]:80").unwrap();
        });
    };
    // No node or pod has the last source. Its datagrams arrive after those of the others.
    let are_routed = || {
        let before = routed();
        sources.iter().for_each(|source| send(source));
        testkit::eventually("the last datagram", || {
            let now = routed();
            (now[2] > before[2]).then(|| [0, 1, 2].map(|n| now[n] > before[n]))
        })
    };
    for forged in sources {
        outside.exec(words(&format!("ip address add {forged}/128 dev lo")));
    }
    // The first ones wait for a neighbour.
    testkit::eventually("all, without the filter", || (are_routed() == [true; 3]).then_some(()));
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
    assert_eq!(are_routed(), [false, false, true]);
    assert_eq!(to_port(4789), Err(std::io::ErrorKind::PermissionDenied));
    assert_eq!(to_port(4790), Ok(()));
    // Another program flushes the table; setting the rules again restores it.
    node.exec(words("nft flush table inet podgate-filter"));
    node.enter(|| filter.set(&rules)).unwrap();
    assert_eq!(are_routed(), [false, false, true]);
}

/// A VXLAN device of another program on the port of the switch's overlay believes what comes to an address that the uplink's program
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
