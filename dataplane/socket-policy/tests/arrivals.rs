//! Packets that arrive at the sockets of a pod on the host network, and replies.

use std::net::IpAddr;
use std::sync::Arc;

use session_rules::{Action, End, Ports, Rule, Scope, Services, Transport};
use socket_policy::{Denied, Ended, Options, SocketPolicy, What};
use testkit::Namespace;

use crate::common::*;

pub(crate) const NODE: [&str; 2] = ["10.8.0.1", "fd08::1"];
/// Addresses of the host outside.
pub(crate) const FRIEND: [&str; 2] = ["10.8.0.2", "fd08::2"];
pub(crate) const STRANGER: [&str; 2] = ["10.8.0.3", "fd08::3"];

/// A node with a pod on its network, and a host outside.
pub(crate) struct Hosts {
    pub(crate) world: World,
    pub(crate) outside: Namespace,
    pub(crate) pod: std::path::PathBuf,
    pub(crate) policy: SocketPolicy,
}

impl Hosts {
    pub(crate) fn new(label: &str, options: impl FnOnce(&World) -> Options) -> Self {
        let (world, outside) = (World::new(label), Namespace::new(&format!("{label}-out")));
        let inside = outside.name();
        let pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", inside];
        world.namespace.exec(["ip"].into_iter().chain(pair));
        let of_outside = [FRIEND, STRANGER].concat();
        for (namespace, addresses) in [(&world.namespace, &NODE[..]), (&outside, &of_outside)] {
            for address in addresses {
                let length = if address.contains(':') { "64" } else { "24" };
                let address = format!("{address}/{length}");
                namespace.exec(["ip", "address", "add", &address, "dev", "eth0"]);
            }
            namespace.exec(["ip", "link", "set", "eth0", "up"]);
            namespace.exec(["ip", "link", "set", "lo", "up"]);
            namespace.exec(["sysctl", "-qw", "net.ipv4.tcp_fastopen=1027"]);
        }
        // An address is usable when it is known to be no other's.
        for namespace in [&world.namespace, &outside] {
            while namespace.exec(["ip", "-6", "address", "show", "tentative"]).contains("inet6") {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
        let pod = world.cgroup("pod");
        let policy = SocketPolicy::load(options(&world)).unwrap();
        policy.attach("default/a", &node(), &pod, true).unwrap();
        Self { world, outside, pod, policy }
    }

    pub(crate) fn with(label: &str, accepted: &[(Arc<str>, Rule)]) -> Self {
        let hosts = Self::new(label, |_| Options::default());
        hosts.accept(accepted);
        hosts
    }

    pub(crate) fn accept(&self, accepted: &[(Arc<str>, Rule)]) {
        self.policy.set_rules(&[], accepted, &Services::default(), &node()).unwrap();
    }

    /// A process of the node that is not the pod's.
    pub(crate) fn node_process(&self) -> Client {
        self.world.client(self.pod.parent().unwrap())
    }

    /// A process of the host outside.
    pub(crate) fn client(&self) -> Client {
        World::process(&self.outside, self.pod.parent().unwrap())
    }

    fn arrivals(&self) -> Vec<(IpAddr, u16, Transport)> {
        let arrival = |it: Denied| match it.what {
            What::Arrival { sender, port } => (sender.ip(), port, it.transport),
            What::Call { .. } => panic!("{it:?}"),
        };
        self.policy.denied().into_iter().map(arrival).collect()
    }
}

pub(crate) fn node() -> Vec<IpAddr> {
    NODE.map(|it| it.parse().unwrap()).into()
}

/// A rule about what the pod accepts.
pub(crate) fn accepts(from: Option<&str>, ports: Ports, action: Action) -> Vec<(Arc<str>, Rule)> {
    let rule = |transport| Rule {
        scope: Scope::Global,
        transport,
        local: End { net: None, ports },
        remote: End { net: from.map(|it| it.parse().unwrap()), ports: Ports::ANY },
        action,
        tag: "NetworkPolicy default/a ingress".into(),
    };
    [Transport::Tcp, Transport::Udp].map(|it| ("default/a".into(), rule(it))).into()
}

/// The friend reaches port 8080; everything else is denied.
pub(crate) fn only_the_friend() -> Vec<(Arc<str>, Rule)> {
    let allowed = [FRIEND[0], FRIEND[1]]
        .map(|it| format!("{it}/{}", if it.contains(':') { 128 } else { 32 }))
        .map(|it| accepts(Some(&it), Ports::one(8080), Action::Allow));
    [accepts(None, Ports::ANY, Action::Deny), allowed.concat()].concat()
}

const DENIED: [&str; 2] = ["timeout", "EINPROGRESS"];

/// Whether a client reaches a server that it is not to reach.
pub(crate) fn is_denied(client: &mut Client, what: &str) -> bool {
    !reaches(client, what, 1)
}

/// Whether a client reaches a server that it may reach.
pub(crate) fn is_open(client: &mut Client, what: &str) -> bool {
    reaches(client, what, 20)
}

/// Opens a connection and closes it, so that nothing of it is sent again afterwards.
fn reaches(client: &mut Client, what: &str, seconds: u32) -> bool {
    let [kind, host, port, own] = what.split(' ').collect::<Vec<_>>()[..] else { panic!() };
    let socket = match kind {
        "udp" => "DGRAM",
        "lite" => "lite",
        _ => "STREAM",
    };
    assert_eq!(client.ask(&format!("bound x {socket} {own} 0")), "ok");
    assert_eq!(client.ask(&format!("patience x {seconds}")), "ok");
    let connected = client.ask(&format!("held x {host} {port}"));
    let answer = if connected == "ok" { client.ask("echo x") } else { connected };
    assert_eq!(client.ask("close x"), "ok");
    assert!(DENIED.contains(&&*answer) || answer == "ok", "{what}: {answer}");
    answer == "ok"
}

#[test]
fn a_pod_on_the_host_network_gets_what_its_rules_allow() {
    testkit::requires_root!();
    let hosts = Hosts::with("ingress", &only_the_friend());
    let mut server = hosts.world.client(&hosts.pod);
    for what in ["tcp :: 8080", "tcp :: 8081", "udp :: 8080", "udp :: 8081", "tcp 0.0.0.0 8082"] {
        assert_eq!(server.ask(&format!("serve {what}")), "ok");
    }
    // Another process of the node, at a port that is the pod's with another protocol.
    let mut other = hosts.node_process();
    for what in ["tcp :: 9090", "udp :: 8082"] {
        assert_eq!(other.ask(&format!("serve {what}")), "ok");
    }
    let mut client = hosts.client();
    for family in 0..2 {
        let (node, friend, stranger) = (NODE[family], FRIEND[family], STRANGER[family]);
        for kind in ["tcp", "udp"] {
            let transport = if kind == "tcp" { Transport::Tcp } else { Transport::Udp };
            let of = |own: &str, port| (own.parse::<IpAddr>().unwrap(), port, transport);
            let allowed = of(friend, 8080);
            assert!(is_open(&mut client, &format!("{kind} {node} 8080 {friend}")), "{node}");
            assert!(!hosts.arrivals().contains(&allowed));
            for (port, own) in [(8080, stranger), (8081, friend)] {
                let what = format!("{kind} {node} {port} {own}");
                // The program is silent for a moment after each report.
                let is_reported = (0..20).any(|_| {
                    assert!(is_denied(&mut client, &what), "{what}");
                    let arrivals = hosts.arrivals();
                    assert!(!arrivals.contains(&allowed), "{arrivals:?}");
                    arrivals.contains(&of(own, port))
                });
                assert!(is_reported, "{what}");
            }
        }
        assert_eq!(
            client.ask(&format!("open a tcp {node} 9090 {stranger}")),
            "ok",
            "not the pod's"
        );
        assert_eq!(
            client.ask(&format!("open a udp {node} 8082 {stranger}")),
            "ok",
            "not the pod's"
        );
        // The node itself, as kubelet: by loopback and by its address.
        for to in [node, ["127.0.0.1", "::1"][family]] {
            assert_eq!(other.ask(&format!("open a tcp {to} 8081")), "ok", "{to}");
            assert_eq!(other.ask(&format!("open a udp {to} 8081")), "ok", "{to}");
        }
    }
    assert!(is_denied(&mut client, &format!("tcp {} 8082 {}", NODE[0], FRIEND[0])));
    assert!(hosts.policy.counters().kept_out >= 9);
    assert_eq!(&*hosts.policy.denied()[0].by, "NetworkPolicy default/a ingress");
    // A new generation holds for the next connection.
    hosts.accept(&accepts(None, Ports::one(8080), Action::Deny));
    assert!(is_denied(&mut client, &format!("tcp {} 8080 {}", NODE[0], FRIEND[0])));
    assert_eq!(client.ask(&format!("open a tcp {} 8081 {}", NODE[0], STRANGER[0])), "ok");
    hosts.accept(&[]);
    assert_eq!(client.ask(&format!("open a udp {} 8080 {}", NODE[1], STRANGER[1])), "ok");
}

#[test]
fn a_closed_pod_gets_the_replies_to_what_it_sends() {
    testkit::requires_root!();
    let hosts = Hosts::with("replies", &accepts(None, Ports::ANY, Action::Deny));
    let mut pod = hosts.world.client(&hosts.pod);
    let mut server = hosts.client();
    for (nth, host) in FRIEND.iter().enumerate() {
        for kind in ["tcp", "udp"] {
            assert_eq!(server.ask(&format!("serve {kind} {host} 53")), "ok");
            assert_eq!(pod.ask(&format!("open c{nth}{kind} {kind} {host} 53")), "ok");
            assert_eq!(pod.ask(&format!("echo c{nth}{kind}")), "ok");
        }
        // A resolver's way: a socket that is not connected.
        assert_eq!(pod.ask(&format!("bound u {} {} 5353", "DGRAM", NODE[nth])), "ok");
        assert_eq!(pod.ask(&format!("ask u {host} 53")), "ok");
        // Another port of that host, and another host.
        assert_eq!(pod.ask("patience u 1"), "ok");
        for own in [host, &STRANGER[nth]] {
            assert_eq!(server.ask(&format!("bound s DGRAM {own} 54")), "ok");
            assert_eq!(server.ask(&format!("tell s {} 5353", NODE[nth])), "ok");
            assert_eq!(pod.ask("get u"), "timeout", "{own}");
        }
    }
    // An IPv4-mapped socket of IPv6.
    assert_eq!(pod.ask("bound m DGRAM :: 5354"), "ok");
    assert_eq!(pod.ask(&format!("ask m ::ffff:{} 53", FRIEND[0])), "ok");
    // What it sends no more brings no replies.
    let denied = deny_to("default/a", FRIEND[0], Ports::ANY);
    let closed = accepts(None, Ports::ANY, Action::Deny);
    hosts.policy.set_rules(&denied, &closed, &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask(&format!("tell m ::ffff:{} 53", FRIEND[0])), "EPERM");
    assert_eq!(pod.ask("patience m 1"), "ok");
    assert_eq!(server.ask(&format!("bound r DGRAM {} 53", FRIEND[0])), "ok");
    assert_eq!(server.ask(&format!("tell r {} 5354", NODE[0])), "ok");
    assert_eq!(pod.ask("get m"), "timeout");
}

#[test]
fn a_pod_that_may_open_nothing_replies_to_datagrams() {
    testkit::requires_root!();
    let world = World::new("replying");
    let cgroup = world.cgroup("pod");
    let any = |transport| Rule {
        scope: Scope::Local("default/a".into()),
        transport,
        local: End::ANY,
        remote: End::ANY,
        action: Action::Deny,
        tag: "closed".into(),
    };
    let rules = [Transport::Tcp, Transport::Udp].map(any);
    let policy = policy_at(&cgroup, &rules, Options::default());
    let (mut server, mut client) = (world.client(&cgroup), world.client(cgroup.parent().unwrap()));
    for (host, other) in [(POD[0], OTHERS[0]), (POD[1], OTHERS[2])] {
        assert_eq!(server.ask(&format!("bound s DGRAM {host} 53")), "ok");
        assert_eq!(client.ask(&format!("bound c DGRAM {other} 5300")), "ok");
        assert_eq!(server.ask(&format!("tell s {other} 5300")), "EPERM", "it opens nothing");
        assert_eq!(client.ask(&format!("tell c {host} 53")), "ok");
        server.begin("get s");
        assert_eq!([server.line(), server.line()], ["5300", "ok"]);
        assert_eq!(server.ask(&format!("tell s {other} 5300")), "ok", "it replies");
        assert_eq!(server.ask(&format!("tell s {other} 5301")), "EPERM", "to this port alone");
        assert_eq!(server.ask(&format!("udp {other} 5300")), "EPERM", "from this port alone");
        // As servers of DTLS do: a socket for each client, at the same port.
        assert_eq!(server.ask(&format!("bound d DGRAM {host} 53")), "ok");
        assert_eq!(server.ask(&format!("held d {other} 5300")), "ok");
    }
    assert_eq!(policy.counters().denied, 6);
}

#[test]
fn connections_that_rules_deny_are_ended() {
    testkit::requires_root!();
    let hosts = Hosts::with("ended", &[]);
    let (mut pod, mut node) = (hosts.world.client(&hosts.pod), hosts.node_process());
    let mut outside = hosts.client();
    assert_eq!(pod.ask("serve tcp :: 8080"), "ok");
    assert_eq!(node.ask("serve tcp :: 9090"), "ok");
    assert_eq!(outside.ask("serve tcp :: 80"), "ok");
    // Replies are from the address that was asked.
    for own in [FRIEND, STRANGER].concat() {
        assert_eq!(outside.ask(&format!("serve udp {own} 53")), "ok");
    }
    let mut opened = Vec::new();
    for (nth, host) in NODE.iter().enumerate() {
        for (name, own) in [("friend", FRIEND[nth]), ("stranger", STRANGER[nth])] {
            // Accepted by the pod, accepted by the node, opened by both.
            assert_eq!(outside.ask(&format!("open in-{name}{nth} tcp {host} 8080 {own}")), "ok");
            assert_eq!(outside.ask(&format!("open other-{name}{nth} tcp {host} 9090 {own}")), "ok");
            for (kind, port) in [("tcp", 80), ("udp", 53)] {
                assert_eq!(pod.ask(&format!("open {kind}-{name}{nth} {kind} {own} {port}")), "ok");
                assert_eq!(node.ask(&format!("open {kind}-{name}{nth} {kind} {own} {port}")), "ok");
            }
            opened.push(format!("{name}{nth}"));
        }
    }
    assert_eq!(node.ask(&format!("open own tcp {} 8080", NODE[0])), "ok");
    let end = |rules: &[Rule], accepted: &[(Arc<str>, Rule)]| -> Vec<Ended> {
        hosts.policy.set_rules(rules, accepted, &Services::default(), &self::node()).unwrap();
        let ended = hosts.world.namespace.enter(|| hosts.policy.end_denied());
        let (mut ended, is_more) = ended.unwrap();
        assert!(!is_more);
        ended.sort_by_key(|it| (it.remote.ip(), it.remote.port()));
        ended
    };
    assert_eq!(end(&[], &[]), []);
    // What the pod accepts of the stranger, and what it opens to him.
    let ended = end(&[], &only_the_friend());
    let remotes: Vec<_> = ended.iter().map(|it| it.remote.ip().to_string()).collect();
    assert_eq!(remotes, STRANGER, "{ended:?}");
    assert!(ended.iter().all(|it| it.local.port() == 8080 && &*it.pod == "default/a"), "{ended:?}");
    let denied: Vec<Rule> =
        STRANGER.iter().flat_map(|it| deny_to("default/a", it, Ports::ANY)).collect();
    let ended = end(&denied, &only_the_friend());
    assert_eq!(ended.len(), 4, "{ended:?}");
    assert!(ended.iter().all(|it| STRANGER.contains(&&*it.remote.ip().to_string())), "{ended:?}");
    for name in &opened {
        let is_friend = name.starts_with("friend");
        let accepted = outside.ask(&format!("echo in-{name}"));
        assert_eq!(accepted == "ok", is_friend, "{name}: {accepted}");
        for kind in ["tcp", "udp"] {
            let own = pod.ask(&format!("echo {kind}-{name}"));
            // A socket of UDP has no peer any more.
            let ended = if kind == "tcp" { "ECONNABORTED" } else { "EDESTADDRREQ" };
            assert_eq!(own, if is_friend { "ok" } else { ended }, "{kind} {name}");
            assert_eq!(node.ask(&format!("echo {kind}-{name}")), "ok", "{kind} {name}");
        }
        assert_eq!(outside.ask(&format!("echo other-{name}")), "ok", "{name}");
    }
    assert_eq!(node.ask("echo own"), "ok", "the node reaches its pods");
    assert_eq!(end(&denied, &only_the_friend()), [], "all have ended");
}

#[test]
fn the_last_rules_hold_until_the_next_process_has_some() {
    testkit::requires_root!();
    let pinned = |world: &World| Options { pins: Some(world.pins()), ..Options::default() };
    let mut hosts = Hosts::new("kept", pinned);
    let mut pod = hosts.world.client(&hosts.pod);
    assert_eq!(pod.ask("serve tcp :: 8080"), "ok");
    let mut client = hosts.client();
    let denied = deny_to("default/a", FRIEND[0], Ports::ANY);
    let [to_friend, to_stranger] =
        [FRIEND, STRANGER].map(|own| format!("tcp {} 8080 {}", NODE[0], own[0]));
    let closed = accepts(Some("10.8.0.2/32"), Ports::ANY, Action::Deny);
    hosts.policy.set_rules(&denied, &closed, &Services::default(), &node()).unwrap();
    let mut holds = |to_friend_is_denied: bool, to_stranger_is_denied: bool| {
        for (to, denied) in
            [(&to_friend, to_friend_is_denied), (&to_stranger, to_stranger_is_denied)]
        {
            let holds = if denied { is_denied } else { is_open };
            assert!(holds(&mut client, to), "{to}: {denied}");
        }
        let opened = pod.ask(&format!("udp {} 1", FRIEND[0]));
        assert_eq!(opened == "EPERM", to_friend_is_denied);
    };
    holds(true, false);
    // The process ends, the next one attaches its programs, and knows no rules yet.
    hosts.policy = SocketPolicy::load(pinned(&hosts.world)).unwrap();
    holds(true, false);
    hosts.policy.attach("default/a", &node(), &hosts.pod, true).unwrap();
    holds(true, false);
    let denied = deny_to("default/a", STRANGER[0], Ports::ANY);
    let closed = accepts(Some("10.8.0.3/32"), Ports::ANY, Action::Deny);
    hosts.policy.set_rules(&denied, &closed, &Services::default(), &node()).unwrap();
    holds(false, true);
    hosts.policy.detach("default/a").unwrap();
    holds(false, false);
}

#[test]
fn raw_sockets_are_refused_where_nothing_else_asks_about_them() {
    testkit::requires_root!();
    let world = World::new("raw");
    let [host, pod] = ["host", "pod"].map(|it| world.cgroup(it));
    let policy = SocketPolicy::load(Options::default()).unwrap();
    policy.attach("default/a", &addresses(), &host, true).unwrap();
    policy.attach("default/b", &addresses(), &pod, false).unwrap();
    let (mut of_host, mut of_pod) = (world.client(&host), world.client(&pod));
    let raw = ["raw 4 1", "raw 4 255", "raw 6 58"];
    let mut set = |rules: &[Rule], wanted: [&str; 2]| {
        policy.set_rules(rules, &[], &Services::default(), &[]).unwrap();
        for what in raw {
            assert_eq!([of_host.ask(what), of_pod.ask(what)], wanted, "{what}");
        }
    };
    set(&[], ["ok", "ok"]);
    let mut rules = [
        deny_to("default/a", "10.9.0.2", Ports::ANY),
        deny_to("default/b", "10.9.0.2", Ports::ANY),
    ]
    .concat();
    // The rules of b allow it something, and the switch sees its packets.
    rules.push(Rule {
        action: Action::Allow,
        ..deny_to("default/b", "10.9.0.3", Ports::ANY).remove(0)
    });
    set(&rules, ["EPERM", "ok"]);
    rules.pop();
    set(&rules, ["EPERM", "EPERM"]);
    assert_eq!(policy.counters().raw, 9);
}
