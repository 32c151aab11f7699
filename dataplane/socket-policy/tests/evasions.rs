//! Ways past the rules of a pod on the host network, which no other wall decides about.

use std::net::IpAddr;

use session_rules::{Action, Ports, Service, Services, Transport};
use testkit::Namespace;

use crate::arrivals::{
    FRIEND, Hosts, NODE, STRANGER, accepts, is_denied, is_open, node, only_the_friend,
};
use crate::common::*;

/// A further address of the node, of each family.
const SECOND: [&str; 2] = ["10.8.0.9", "fd08::9"];

/// Rules that deny what the pod opens to both of these addresses.
fn denied(to: [&str; 2]) -> Vec<session_rules::Rule> {
    to.iter().flat_map(|it| deny_to("default/a", it, Ports::ANY)).collect()
}

#[test]
fn ports_of_the_node_lead_to_nobody_who_is_denied() {
    testkit::requires_root!();
    let hosts = Hosts::with("node-ports", &[]);
    for (address, length) in SECOND.iter().zip(["24", "64"]) {
        let address = format!("{address}/{length}");
        hosts.world.namespace.exec(["ip", "address", "add", &address, "dev", "eth0", "nodad"]);
    }
    let mut pod = hosts.world.client(&hosts.pod);
    let mut services = Services::default();
    for (any, friend, own) in [("0.0.0.0", FRIEND[0], NODE[0]), ("::", FRIEND[1], NODE[1])] {
        let mut set = |port: u16, endpoint: &str| {
            let [any, endpoint] = [any, endpoint].map(|it| it.parse::<IpAddr>().unwrap());
            let endpoints = vec![(endpoint, 80).into()];
            let service = Service { endpoints, ..Service::default() };
            services.set((any, port).into(), Transport::Tcp, Some(service));
        };
        set(30080, friend);
        set(30081, own);
    }
    let addresses = [NODE, SECOND].concat();
    let node: Vec<_> = addresses.iter().map(|it| it.parse().unwrap()).collect();
    // The node is a part of the pod, and no rule is about it.
    let rules = [denied(FRIEND), denied(NODE), denied(SECOND)].concat();
    hosts.policy.set_rules(&rules, &[], &services, &node).unwrap();
    for (nth, own) in addresses.iter().enumerate() {
        assert_eq!(pod.ask(&format!("tcp {own} 30080")), "EPERM", "{own}");
        assert_eq!(&*only(&hosts.policy).pod, "default/a");
        if nth % 2 == 0 {
            assert_eq!(pod.ask(&format!("tcp ::ffff:{own} 30080")), "EPERM", "{own}");
            assert_eq!(&*only(&hosts.policy).pod, "default/a");
        }
        assert_ne!(pod.ask(&format!("tcp {own} 30081")), "EPERM", "a process of the node");
        assert_eq!(pod.ask(&format!("udp {own} 1")), "ok", "{own}");
    }
}

#[test]
fn nobody_lends_a_pod_the_name_of_a_denied_address() {
    testkit::requires_root!();
    let hosts = Hosts::with("names", &[]);
    let [mut pod, mut same, mut client] =
        [&hosts.pod, &hosts.pod, hosts.pod.parent().unwrap()].map(|it| hosts.world.client(it));
    hosts.policy.set_rules(&denied(FRIEND), &[], &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask("bound s DGRAM :: 5300"), "ok");
    assert_eq!(pod.ask("patience s 20"), "ok");
    // A process of the pod, and one of the node.
    for process in [&mut same, &mut client] {
        for to in ["::1", NODE[1]] {
            assert_eq!(process.ask(&format!("name {to} 5300 {} 53", FRIEND[1])), "ok");
            pod.begin("get s");
            assert_eq!([pod.line(), pod.line()], ["53", "ok"]);
            assert_eq!(pod.ask(&format!("tell s {} 53", FRIEND[1])), "EPERM", "{to}");
        }
    }
    // What comes from an address of the node is replied to, though nobody said that it is one, and from the address itself.
    hosts.world.namespace.exec(["ip", "address", "add", "10.7.0.1/32", "dev", "lo"]);
    let rules = [denied(FRIEND), deny_to("default/a", "10.7.0.1", Ports::ANY)].concat();
    hosts.policy.set_rules(&rules, &[], &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask("tell s ::ffff:10.7.0.1 53"), "EPERM");
    assert_eq!(client.ask("bound n DGRAM 10.7.0.1 53"), "ok");
    assert_eq!(client.ask(&format!("tell n {} 5300", NODE[0])), "ok");
    pod.begin("get s");
    assert_eq!([pod.line(), pod.line()], ["53", "ok"]);
    assert_eq!(pod.ask("tell s ::ffff:10.7.0.1 53"), "ok");
    let mut friend = hosts.client();
    assert_eq!(friend.ask(&format!("bound f DGRAM {} 53", FRIEND[1])), "ok");
    assert_eq!(friend.ask(&format!("tell f {} 5300", NODE[1])), "ok");
    pod.begin("get s");
    assert_eq!([pod.line(), pod.line()], ["53", "ok"]);
    assert_eq!(pod.ask(&format!("tell s {} 53", FRIEND[1])), "ok");
}

#[test]
fn a_group_at_an_interface_lends_a_pod_no_name() {
    testkit::requires_root!();
    let hosts = Hosts::with("groups", &[]);
    let [mut pod, mut same] = [&hosts.pod, &hosts.pod].map(|it| hosts.world.client(it));
    hosts.policy.set_rules(&denied(FRIEND), &[], &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask("bound s DGRAM :: 5300"), "ok");
    assert_eq!(pod.ask("patience s 20"), "ok");
    assert_eq!(pod.ask("group s ff12::77 eth0"), "ok");
    assert_eq!(same.ask(&format!("name ff12::77 5300 {} 53 eth0", FRIEND[1])), "ok");
    pod.begin("get s");
    assert_eq!([pod.line(), pod.line()], ["53", "ok"], "it came back at the interface");
    assert_eq!(pod.ask(&format!("tell s {} 53", FRIEND[1])), "EPERM");
}

#[test]
fn a_service_leads_a_pod_of_the_host_network_to_endpoints_that_are_allowed() {
    testkit::requires_root!();
    let hosts = Hosts::with("mixed", &[]);
    let mut outside = hosts.client();
    for address in [FRIEND, STRANGER].concat() {
        assert_eq!(outside.ask(&format!("serve tcp {address} 8080")), "ok");
        assert_eq!(outside.ask(&format!("serve udp {address} 8080")), "ok");
    }
    let mut services = Services::default();
    for (at, both) in [("10.96.0.1", 0), ("fd96::1", 1)] {
        for transport in [Transport::Tcp, Transport::Udp] {
            let endpoints = [STRANGER[both], FRIEND[both]].map(|it| it.parse::<IpAddr>().unwrap());
            let endpoints = endpoints.map(|it| (it, 8080).into()).into();
            let service = Service { endpoints, ..Service::default() };
            let at = at.parse::<IpAddr>().unwrap();
            services.set((at, 80).into(), transport, Some(service));
        }
    }
    let mut pod = hosts.world.client(&hosts.pod);
    let set = |rules: &[session_rules::Rule]| {
        hosts.policy.set_rules(rules, &[], &services, &node()).unwrap();
    };
    set(&denied(STRANGER));
    let ways = [("10.96.0.1", FRIEND[0]), ("::ffff:10.96.0.1", FRIEND[0]), ("fd96::1", FRIEND[1])];
    for (at, friend) in ways {
        for kind in ["tcp", "udp"] {
            for _ in 0..8 {
                assert_eq!(pod.ask(&format!("open c {kind} {at} 80")), "ok", "{kind} {at}");
                pod.begin("peer c");
                let peer = pod.line();
                assert_eq!(peer.trim_start_matches("::ffff:"), friend, "{kind} {at}");
                assert_eq!(pod.line(), "ok");
            }
        }
        // A datagram without a connection would be answered by an address that nobody asked.
        assert_eq!(pod.ask(&format!("send {at} 80")), "EPERM", "{at}");
    }
    set(&[denied(STRANGER), denied(FRIEND)].concat());
    for (at, _) in ways {
        assert_eq!(pod.ask(&format!("tcp {at} 80")), "EPERM", "{at}");
    }
    // Nothing is changed where every endpoint is allowed: the node translates the address, which it
    // does not here.
    set(&denied(SECOND));
    for (at, _) in ways {
        assert_eq!(pod.ask(&format!("udp {at} 80")), "ENETUNREACH", "{at}");
    }
}

#[test]
fn no_pod_has_the_exchanges_of_another_one_forgotten() {
    testkit::requires_root!();
    let hosts = Hosts::with("exchanges", &accepts(None, Ports::ANY, Action::Deny));
    let [quiet, loud] = [hosts.pod.clone(), hosts.world.cgroup("loud")];
    hosts.policy.attach("default/b", &node(), &loud, true).unwrap();
    let all = accepts(None, Ports::ANY, Action::Deny).into_iter();
    let both =
        all.flat_map(|(_, rule)| ["default/a", "default/b"].map(|pod| (pod.into(), rule.clone())));
    hosts.policy.set_rules(&[], &both.collect::<Vec<_>>(), &Services::default(), &node()).unwrap();
    let [mut quiet, mut loud, mut outside] =
        [hosts.world.client(&quiet), hosts.world.client(&loud), hosts.client()];
    for name in ["f", "g"] {
        let port = if name == "f" { 53 } else { 54 };
        assert_eq!(outside.ask(&format!("bound {name} DGRAM {} {port}", FRIEND[0])), "ok");
    }
    assert_eq!(quiet.ask(&format!("bound s DGRAM {} 5300", NODE[0])), "ok");
    assert_eq!(quiet.ask("patience s 20"), "ok");
    assert_eq!(quiet.ask(&format!("tell s {} 53", FRIEND[0])), "ok");
    assert_eq!(loud.ask(&format!("bound s DGRAM {} 5301", NODE[0])), "ok");
    for address in [STRANGER[0], FRIEND[0]] {
        assert_eq!(loud.ask(&format!("exchanges s {address} 65000")), "ok");
    }
    assert_eq!(outside.ask(&format!("tell f {} 5300", NODE[0])), "ok");
    quiet.begin("get s");
    assert_eq!([quiet.line(), quiet.line()], ["53", "ok"], "the answer comes");
    assert_eq!(outside.ask(&format!("tell g {} 5300", NODE[0])), "ok");
    assert_eq!(quiet.ask("patience s 0.5"), "ok");
    assert_eq!(quiet.ask("get s"), "timeout", "nobody asked port 54");
}

/// Packets that came to a host for these addresses.
fn arrived(host: &Namespace) -> u64 {
    let listed = host.exec(["nft", "list", "counter", "inet", "seen", "here"]);
    listed.split_whitespace().skip_while(|it| *it != "packets").nth(1).unwrap().parse().unwrap()
}

#[test]
fn nothing_leaves_by_a_way_that_nobody_asked_about() {
    testkit::requires_root!();
    let hosts = Hosts::with("ways", &[]);
    let mut pod = hosts.world.client(&hosts.pod);
    for rule in [
        "add table inet seen",
        "add counter inet seen here",
        "add chain inet seen input { type filter hook prerouting priority -300; }",
        &format!(
            "add rule inet seen input ip daddr {} ip protocol 17 counter name here",
            STRANGER[0]
        ),
        &format!(
            "add rule inet seen input ip daddr {} ip protocol 253 counter name here",
            STRANGER[0]
        ),
        &format!(
            "add rule inet seen input ip6 daddr {} ip6 nexthdr 43 counter name here",
            STRANGER[1]
        ),
    ] {
        hosts.outside.exec(["nft", rule]);
    }
    assert_eq!(pod.ask("hold-raw r 10.8.0.1"), "ok");
    let raw = format!("tell r {} 0", STRANGER[0]);
    let ways = [
        format!("way {} 9 {}", FRIEND[0], STRANGER[0]),
        format!("way-message {} 9 {}", FRIEND[0], STRANGER[0]),
        format!("way6 {} 9 {}", FRIEND[1], STRANGER[1]),
    ];
    let mut sends = |wanted: &str| {
        for what in ways.iter().chain([&raw]) {
            assert_eq!(pod.ask(what), wanted, "{what}");
        }
    };
    sends("ok");
    testkit::eventually("packets", || (arrived(&hosts.outside) == 4).then_some(()));
    hosts.policy.set_rules(&denied(STRANGER), &[], &Services::default(), &node()).unwrap();
    sends("EPERM");
    assert_eq!(hosts.policy.counters().raw, 4);
    // A packet that was sent after them has come, and they have not.
    assert_eq!(pod.ask(&format!("send {} 9", FRIEND[0])), "ok");
    hosts.policy.set_rules(&[], &[], &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask(&raw), "ok");
    testkit::eventually("packets", || (arrived(&hosts.outside) == 5).then_some(()));
}

#[test]
fn neither_udp_lite_nor_groups_lead_past_the_rules() {
    testkit::requires_root!();
    let hosts = Hosts::with("lite", &only_the_friend());
    let mut pod = hosts.world.client(&hosts.pod);
    let mut client = hosts.client();
    assert_eq!(pod.ask("serve lite :: 8080"), "ok");
    assert_eq!(client.ask("serve lite :: 80"), "ok");
    for nth in 0..2 {
        let [from_friend, from_stranger] =
            [FRIEND, STRANGER].map(|own| format!("lite {} 8080 {}", NODE[nth], own[nth]));
        assert!(is_open(&mut client, &from_friend), "{from_friend}");
        assert!(is_denied(&mut client, &from_stranger), "{from_stranger}");
    }
    // Its connect() runs no program: such sockets are refused, and open ones send nothing.
    assert_eq!(pod.ask(&format!("bound l lite {} 0", NODE[0])), "ok");
    assert_eq!(pod.ask(&format!("held l {} 80", FRIEND[0])), "ok");
    assert_eq!(pod.ask("alive l"), "ok");
    let groups = ["224.0.0.251", "ff02::fb"];
    let accepted = accepts(None, Ports::ANY, Action::Deny);
    hosts.policy.set_rules(&denied(groups), &accepted, &Services::default(), &node()).unwrap();
    assert_eq!(pod.ask("alive l"), "EPERM");
    assert_eq!(pod.ask(&format!("lite {} 80", FRIEND[0])), "EPERM");
    for group in groups {
        assert_eq!(pod.ask(&format!("send {group} 5353")), "EPERM");
    }
    assert_eq!(pod.ask(&format!("send {} 5353", FRIEND[0])), "ok");
}

#[test]
fn a_peer_leads_no_subflow_to_an_address_that_is_denied() {
    testkit::requires_root!();
    let hosts = Hosts::with("subflows", &[]);
    let (mut pod, mut server) = (hosts.world.client(&hosts.pod), hosts.client());
    assert_eq!(server.ask("serve mptcp :: 8080"), "ok");
    for namespace in [&hosts.outside, &hosts.world.namespace] {
        namespace.exec(["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"]);
    }
    let announced = ["ip", "mptcp", "endpoint", "add", STRANGER[0], "dev", "eth0", "signal"];
    hosts.outside.exec(announced);
    let joined = || -> u64 {
        let text = hosts.outside.exec(["nstat", "-asz", "MPTcpExtMPJoinAckRx"]);
        text.lines().last().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let mut opens = |name: &str, is_done: &dyn Fn() -> bool| {
        assert_eq!(pod.ask(&format!("open {name} mptcp {} 8080", FRIEND[0])), "ok");
        testkit::eventually("a subflow", || {
            assert_eq!(pod.ask(&format!("echo {name}")), "ok");
            is_done().then_some(())
        });
    };
    opens("a", &|| joined() > 0);
    let before = joined();
    hosts.policy.set_rules(&denied(STRANGER), &[], &Services::default(), &node()).unwrap();
    opens("b", &|| hosts.policy.counters().denied > 0);
    assert_eq!(joined(), before);
}

#[test]
fn connections_from_before_the_programs_are_ended() {
    testkit::requires_root!();
    let hosts = Hosts::with("before-them", &[]);
    let late = hosts.world.cgroup("late");
    let (mut pod, mut server) = (hosts.world.client(&late), hosts.client());
    assert_eq!(server.ask(&format!("serve tcp {} 80", FRIEND[0])), "ok");
    assert_eq!(server.ask(&format!("serve udp {} 80", FRIEND[0])), "ok");
    assert_eq!(pod.ask("serve tcp 0.0.0.0 8080"), "ok");
    for kind in ["tcp", "udp"] {
        assert_eq!(pod.ask(&format!("open {kind} {kind} {} 80", FRIEND[0])), "ok");
    }
    assert_eq!(server.ask(&format!("open in tcp {} 8080 {}", NODE[0], FRIEND[0])), "ok");
    hosts.policy.attach("default/late", &node(), &late, true).unwrap();
    let closed = accepts(None, Ports::ANY, Action::Deny);
    let closed: Vec<_> = closed.into_iter().map(|(_, it)| ("default/late".into(), it)).collect();
    let rules = deny_to("default/late", FRIEND[0], Ports::ANY);
    hosts.policy.set_rules(&rules, &closed, &Services::default(), &node()).unwrap();
    let (ended, is_more) = hosts.world.namespace.enter(|| hosts.policy.end_denied()).unwrap();
    assert!(ended.len() == 3 && !is_more, "{ended:?}");
    assert_eq!(pod.ask("echo tcp"), "ECONNABORTED");
    assert_eq!(pod.ask("echo udp"), "EDESTADDRREQ");
    assert_eq!(server.ask("echo in"), "ECONNRESET");
}
