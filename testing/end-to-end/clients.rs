//! The clients that people use first when something does not work: curl, dig, ping, traceroute;
//! between pods, across nodes, by services and from outside.

use serde_json::{Value, json};
use testkit::Namespace;

use crate::cluster_node::text;
use crate::lan::{FAR, FAR_V6, Lan};
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::servers::{self, LARGE, LONG_NAME, LONG_TEXT, NAME, NAME_V4, NAME_V6, Web};

const CLUSTER: [&str; 2] = ["10.96.0.80", "fd96::80"];

/// A service for the web and one for names, both led to `pod` on node 2.
fn apply_services(lan: &Lan, pod: &Pod<'_>) {
    let ports = json!([
        {"name": "http", "protocol": "TCP", "port": 8080, "targetPort": 80, "nodePort": 30080},
        {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053},
        {"name": "dns-tcp", "protocol": "TCP", "port": 53, "nodePort": 30053}]);
    lan.apply(
        "service",
        &json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "server", "namespace": "default"},
            "spec": {"type": "NodePort", "clusterIP": CLUSTER[0], "clusterIPs": CLUSTER,
                "ipFamilies": ["IPv4", "IPv6"], "ports": ports}}),
    );
    for (family, address) in [("IPv4", pod.v4()), ("IPv6", pod.v6())] {
        let name = format!("server-{}", family.to_lowercase());
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "addressType": family,
            "metadata": {"name": name, "namespace": "default",
                "labels": {"kubernetes.io/service-name": "server"}},
            "endpoints": [{"addresses": [address], "nodeName": "node2",
                "conditions": {"ready": true}}],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80},
                {"name": "dns", "protocol": "UDP", "port": 53},
                {"name": "dns-tcp", "protocol": "TCP", "port": 53}]});
        lan.apply(&name, &slice);
    }
}

/// Lets friends in to the server, for web pages and for names over UDP.
fn only_friends() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "server", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": "server"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}],
                "ports": [{"protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": 53}]}]}})
}

/// A page as curl gets it; `None` if it gets none.
pub(crate) fn curl(client: &Namespace, host: &str, port: u16, page: &str) -> Option<String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let url = format!("http://{host}:{port}{page}");
    let output = client.try_exec([
        "curl",
        "--silent",
        "--show-error",
        "--fail",
        "--globoff",
        "--connect-timeout",
        "2",
        "--max-time",
        "20",
        &url,
    ]);
    output.status.success().then(|| text(&output.stdout))
}

/// dig's output for one question, with these options.
fn dig(client: &Namespace, server: &str, port: u16, options: &[&str]) -> Option<String> {
    let (at, port) = (format!("@{server}"), port.to_string());
    let command = ["dig", &at, "-p", &port, "+short", "+time=2", "+tries=1"];
    let output = client.try_exec([&command, options].concat());
    output.status.success().then(|| text(&output.stdout).trim().to_owned())
}

/// Everything a client may want of the server, at this address.
#[track_caller]
fn is_served(client: &Namespace, address: &str, [web, dns]: [u16; 2]) {
    assert_eq!(curl(client, address, web, "/").as_deref(), Some("server"), "{address}");
    let large = curl(client, address, web, "/large").map(|page| page.len());
    assert_eq!(large, Some(LARGE), "{address}");
    for (over, kind, known) in [("+notcp", "A", NAME_V4), ("+tcp", "AAAA", NAME_V6)] {
        let answer = dig(client, address, dns, &[over, NAME, kind]);
        assert_eq!(answer.as_deref(), Some(known), "{address} {over}");
    }
    // In fragments; and cut short, so that dig asks again over TCP.
    for size in ["+bufsize=4096", "+bufsize=512"] {
        let long = dig(client, address, dns, &[size, LONG_NAME, "TXT"]).unwrap_or_default();
        let letters = long.matches('t').count();
        assert_eq!(letters, LONG_TEXT, "{address} {size}: {long}");
    }
}

fn both(pod: &Pod<'_>) -> [String; 2] {
    [pod.v4().to_string(), pod.v6().to_string()]
}

#[test]
fn web_pages_and_names_are_served_to_those_who_may_ask() {
    requires_the_machine!("nginx", "curl", "dnsmasq", "dig", "ping");
    for underlay in ["vxlan", "routed"] {
        let services = ["--underlay", underlay, "--service-networks", "10.96.0.0/12,fd96::/112"];
        let lan = Lan::start(&services);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let (far, near) = (one.pod("far", "friend"), two.pod("near", "friend"));
        let stranger = one.pod("stranger", "stranger");
        let server = two.pod("server", "server");
        let _web = Web::start(&server);
        let _names = servers::serve_names(&server.namespace);
        apply_services(&lan, &server);
        let direct = both(&server).map(|address| (address, [80, 53]));
        let services = CLUSTER.map(|address| (address.to_owned(), [8080, 53]));
        let addresses: Vec<_> = direct.into_iter().chain(services).collect();
        // The underlay makes a difference where packets use it.
        let clients = if underlay == "vxlan" { &[&far, &near, &server][..] } else { &[&far] };
        for client in clients {
            for (address, ports) in &addresses {
                is_served(&client.namespace, address, *ports);
            }
        }
        for address in both(&server) {
            assert!(clients.iter().all(|client| client.namespace.pings(&address)), "{address}");
        }
        // By the node ports of either node, from outside and from a pod.
        for node in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"] {
            is_served(&lan.world, node, [30080, 30053]);
        }
        is_served(&far.namespace, "192.0.2.1", [30080, 30053]);
        is_served(&far.namespace, "2001:db8::2", [30080, 30053]);
        for address in CLUSTER {
            is_served(&one.namespace, address, [8080, 53]);
        }

        lan.apply("policy", &only_friends());
        for (address, [port, _]) in &addresses {
            for client in [&far, &near] {
                let page = curl(&client.namespace, address, *port, "/");
                assert_eq!(page.as_deref(), Some("server"), "{address}");
                let name = dig(&client.namespace, address, 53, &["+notcp", NAME, "A"]);
                assert_eq!(name.as_deref(), Some(NAME_V4), "{address}");
            }
        }
        // Denied connections run into their timeout, so they are tried at once.
        let (friend, stranger) = (&far.namespace, &stranger.namespace);
        std::thread::scope(|scope| {
            for (address, [port, _]) in &addresses {
                scope.spawn(|| refused(curl(stranger, address, *port, "/")));
                scope.spawn(|| refused(dig(stranger, address, 53, &["+notcp", NAME])));
                scope.spawn(|| refused(dig(friend, address, 53, &["+tcp", NAME])));
            }
            for address in both(&server) {
                scope.spawn(move || assert!(!friend.pings(&address), "no policy allows ICMP"));
            }
            for node in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"] {
                scope.spawn(|| refused(curl(&lan.world, node, 30080, "/")));
            }
        });
    }
}

#[track_caller]
fn refused(answer: Option<String>) {
    assert_eq!(answer, None);
}

/// The hops that traceroute shows, `*` for one that kept silent.
///
/// Linux queues an ICMP error at a raw socket first and then sets the socket's error
/// (`raw_err` of net/ipv4/raw.c). Where traceroute 2.1 has read the queue in between, `poll` returns
/// `POLLERR` from there on: traceroute spins on an empty queue and reads none of the answers. One that
/// used that much of the processor says nothing about the way, and is started again.
fn hops(client: &Namespace, to: &str, options: &[&str]) -> Vec<String> {
    // Without factors of the time that other hops took: on a busy machine that says nothing about this one.
    let run = r#"traceroute -n -q 1 -m 6 "$@"; times"#;
    let patience = if options.contains(&"-w") { &[][..] } else { &["-w", "20,0,0"] };
    let command = [&["sh", "-ec", run, "sh"], patience, options, &[to]].concat();
    for _ in 0..10 {
        let output = client.exec(command.iter().copied());
        let mut lines: Vec<&str> = output.lines().collect();
        let used: f64 = lines.pop().unwrap().split_whitespace().map(seconds).sum();
        if used < 0.1 {
            let hop = |line: &&str| line.split_whitespace().nth(1).unwrap_or_default().to_owned();
            // The header, and the shell's own time.
            return lines[1..lines.len() - 1].iter().map(hop).collect();
        }
    }
    panic!("traceroute {options:?} {to} spun ten times");
}

/// Reads a time that a shell prints, as `1m2.5s`.
fn seconds(time: &str) -> f64 {
    let (minutes, seconds) = time.trim_end_matches('s').split_once('m').expect("minutes");
    60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
}

#[test]
fn traceroute_shows_every_hop() {
    requires_the_machine!("traceroute", "nginx");
    for underlay in ["vxlan", "routed"] {
        for masquerade in ["kernel", "direct"] {
            let lan = Lan::start(&["--underlay", underlay, "--masquerade", masquerade]);
            let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
            let (client, near) = (one.pod("client", "client"), one.pod("near", "near"));
            let far = two.pod("far", "far");
            let _web = [&near, &far].map(Web::start);
            let modes: [&[&str]; 3] = [&[], &["-I"], &["-T", "-p", "80"]];
            for mode in modes {
                let shows = |to: &str, way: &[&str]| {
                    let hops = hops(&client.namespace, to, mode);
                    assert_eq!(hops, way, "{underlay} {masquerade} {mode:?}");
                };
                for (here, there, pods, world) in [
                    ("192.0.2.1", "192.0.2.2", [near.v4(), far.v4()], FAR),
                    ("2001:db8::1", "2001:db8::2", [near.v6(), far.v6()], FAR_V6),
                ] {
                    let [near, far] = pods.map(|address| address.to_string());
                    shows(&near, &[here, &near]);
                    shows(&far, &[here, there, &far]);
                    match masquerade {
                        // The kernel is one more router, of the same node.
                        "kernel" => shows(world, &[here, here, world]),
                        _ => shows(world, &[here, world]),
                    }
                }
            }
            // Who asks a service sees the service at the end of the way, and errors of routers
            // behind it are about what was asked.
            apply_services(&lan, &far);
            for (way, service) in
                [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]].iter().zip(CLUSTER)
            {
                let hops = hops(&client.namespace, service, &["-T", "-p", "8080"]);
                assert_eq!(hops, [way[0], way[1], service], "{underlay} {masquerade}");
            }
            // A policy hides the pod, and not the way to it.
            lan.apply("policy", &nothing_in("far"));
            let silent =
                hops(&client.namespace, &far.v4().to_string(), &["-m", "3", "-w", "2,0,0"]);
            assert_eq!(silent, ["192.0.2.1", "192.0.2.2", "*"], "{underlay}");
        }
    }
}

fn nothing_in(role: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "nothing-in", "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"role": role}}, "policyTypes": ["Ingress"]}})
}
