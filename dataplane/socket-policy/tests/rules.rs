//! Calls that are denied, reported, or not asked about.

use session_rules::{Action, End, Ports, Rule, Scope, Service, Services, Transport};
use socket_policy::{Options, Overflow, SocketPolicy};

use crate::common::*;

#[test]
fn a_denied_call_fails_at_once_and_names_its_policy() {
    testkit::requires_root!();
    let world = World::new("rules");
    let cgroup = world.cgroup("pod");
    let mut rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    rules.extend(deny_to("default/a", "fd09::2", Ports::one(80)));
    rules.extend(deny_to("default/b", "10.9.0.3", Ports::ANY));
    let policy = policy_at(&cgroup, &rules, Options::default());
    // A container has a cgroup of its own inside.
    let mut inside = world.client(&cgroup);
    let mut outside = world.client(cgroup.parent().unwrap());
    for what in [
        "tcp 10.9.0.2 80",
        "tcp ::ffff:10.9.0.2 80",
        "udp 10.9.0.2 53",
        "udp ::ffff:10.9.0.2 53",
        "send 10.9.0.2 53",
        "send ::ffff:10.9.0.2 53",
        "tcp fd09::2 80",
        "udp fd09::2 80",
        "send fd09::2 80",
    ] {
        assert_eq!(inside.ask(what), "EPERM", "{what}");
        let denied = only(&policy);
        assert_eq!(&*denied.by, "NetworkPolicy default/a egress", "{what}");
        assert_eq!((&*denied.pod, denied.process.1.as_str()), ("default/a", "python3"), "{what}");
        assert_eq!((denied.process.0, denied.user), (inside.id(), 0), "{what}");
        let udp = !what.starts_with("tcp");
        assert_eq!(denied.transport == Transport::Udp, udp, "{what}");
        let [_, address, port] = what.split(' ').collect::<Vec<_>>()[..] else { panic!() };
        let address: std::net::IpAddr = address.trim_start_matches("::ffff:").parse().unwrap();
        let target = (address, port.parse::<u16>().unwrap());
        assert_eq!(denied.target, target.into(), "{what}");
        assert_ne!(outside.ask(what), "EPERM", "{what}");
    }
    // Other addresses and ports; the pod itself; the host's loopback.
    for what in [
        "tcp 10.9.0.3 80",
        "tcp fd09::3 80",
        "udp fd09::2 81",
        "send fd09::2 81",
        "udp 10.9.0.100 1",
        "udp 127.0.0.1 1",
        "udp ::1 1",
        "udp 0.0.0.0 1",
    ] {
        assert_eq!(inside.ask(what), "ok", "{what}");
    }
    assert_eq!(policy.denied(), []);
    let counters = policy.counters();
    assert_eq!((counters.denied, counters.closed, counters.lost), (9, 0, 0));
    assert_eq!(counters.asked, 9 + 8);
}

#[test]
fn a_generation_is_swapped_whole() {
    testkit::requires_root!();
    let world = World::new("swap");
    let cgroup = world.cgroup("pod");
    let policy = policy_at(&cgroup, &[], Options { refuse: true, ..Options::default() });
    let mut client = world.client(&cgroup);
    let [one, other] = ["10.9.0.2", "10.9.0.3"].map(|it| deny_to("default/a", it, Ports::ANY));
    for turn in 0..40 {
        let (rules, denied, allowed) = match turn % 2 {
            0 => (&one, "udp 10.9.0.2 1", "udp 10.9.0.3 1"),
            _ => (&other, "udp 10.9.0.3 1", "udp 10.9.0.2 1"),
        };
        policy.set_rules(rules, &[], &Services::default(), &[]).unwrap();
        assert_eq!(client.ask(denied), "ECONNREFUSED", "{turn}");
        assert_eq!(client.ask(allowed), "ok", "{turn}");
        assert_eq!(policy.denied().len(), 1);
    }
    // Rules that find no room close their pod, and it alone.
    let many = |pod: &str, count: u32| -> Vec<Rule> {
        let address = |n| std::net::Ipv4Addr::from(0x0b00_0000 + n).to_string();
        (0..count).flat_map(|n| deny_to(pod, &address(n), Ports::ANY)).collect()
    };
    policy.attach("default/b", &[], &world.cgroup("other"), false).unwrap();
    for (rules, closed) in [
        ([many("default/b", 150_000), one.clone()].concat(), "default/b"),
        (many("default/a", 150_000), "default/a"),
    ] {
        let no_room = policy.set_rules(&rules, &[], &Services::default(), &[]).unwrap();
        assert_eq!(no_room, [Overflow::Pod(closed.into())]);
        let allowed = if closed == "default/a" { "ECONNREFUSED" } else { "ok" };
        assert_eq!(client.ask("udp 10.9.0.3 1"), allowed);
        assert_eq!(client.ask("udp 10.9.0.2 1"), "ECONNREFUSED");
    }
    policy.detach("default/a").unwrap();
    assert_eq!(client.ask("udp 10.9.0.3 1"), "ok");
}

#[test]
fn rules_about_what_arrives_at_a_pod_hold_for_its_address() {
    testkit::requires_root!();
    let world = World::new("arrives");
    let cgroup = world.cgroup("pod");
    let rule = |remote: Option<&str>, ports, action, tag: &str| Rule {
        scope: Scope::Global,
        transport: Transport::Tcp,
        local: End { net: Some("10.9.0.2/32".parse().unwrap()), ports },
        remote: End { net: remote.map(|it| it.parse().unwrap()), ports: Ports::ANY },
        action,
        tag: tag.into(),
    };
    let closed = rule(None, Ports::ANY, Action::Deny, "closed");
    let policy = policy_at(&cgroup, std::slice::from_ref(&closed), Options::default());
    let mut client = world.client(&cgroup);
    assert_eq!(client.ask("tcp 10.9.0.2 80"), "EPERM");
    assert_eq!(&*only(&policy).by, "closed");
    assert_eq!(client.ask("tcp 10.9.0.3 80"), "ok");
    // The pod's own address decides, and not the one that a socket is bound to.
    let own = rule(Some("10.9.0.100/32"), Ports::one(80), Action::Allow, "own");
    policy.set_rules(&[closed, own], &[], &Services::default(), &[]).unwrap();
    assert_eq!(client.ask("tcp 10.9.0.2 80"), "ok");
    assert_eq!(client.ask("tcp 10.9.0.2 81"), "EPERM");
}

#[test]
fn a_service_is_denied_if_each_of_its_endpoints_is() {
    testkit::requires_root!();
    let world = World::new("service");
    let cgroup = world.cgroup("pod");
    let mut rules = deny_to("default/a", "10.9.0.2", Ports::one(80));
    // Isolation denies everything else too; the cluster address is not what is decided about.
    let any = |transport, action, net: Option<&str>| Rule {
        scope: Scope::Local("default/a".into()),
        transport,
        local: End::ANY,
        remote: End { net: net.map(|it| it.parse().unwrap()), ports: Ports::ANY },
        action,
        tag: "isolated".into(),
    };
    rules.push(any(Transport::Tcp, Action::Deny, None));
    rules.push(any(Transport::Tcp, Action::Allow, Some("10.9.0.3/32")));
    let policy = policy_at(&cgroup, &rules, Options::default());
    let mut client = world.client(&cgroup);
    let mut services = Services::default();
    let service = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|it| it.parse().unwrap()).collect();
        Some(Service { endpoints, ..Service::default() })
    };
    // Nothing answers at the cluster address: a call that goes on fails otherwise, or waits.
    let mut set = |at: &str, endpoints: &[&str]| {
        services.set(at.parse().unwrap(), Transport::Tcp, service(endpoints));
        let node = ["10.9.0.3".parse().unwrap()];
        policy.set_rules(&rules, &[], &services, &node).unwrap();
    };
    set("10.9.0.100:99", &["10.9.0.2:80"]);
    set("10.9.0.3:99", &["10.9.0.2:80"]);
    set("10.9.0.2:98", &["10.9.0.3:80"]);
    set("10.9.0.2:97", &["10.9.0.2:80", "10.9.0.3:80"]);
    set("10.9.0.2:96", &[]);
    let many: Vec<String> = (1..200).map(|port| format!("10.9.0.2:{port}")).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    set("10.9.0.2:94", &many);
    many.push("10.9.0.3:80");
    set("10.9.0.2:93", &many);
    set("10.9.0.2:92", &[format!("{}:80", POD[0]).as_str()]);
    set("0.0.0.0:30080", &["10.9.0.2:80"]);
    assert_eq!(client.ask("tcp 10.9.0.3 99"), "EPERM", "each endpoint is denied");
    assert_eq!(only(&policy).target, "10.9.0.3:99".parse().unwrap(), "as it was asked for");
    assert_eq!(client.ask("tcp ::ffff:10.9.0.3 99"), "EPERM");
    assert_eq!(client.ask("tcp 10.9.0.3 30080"), "EPERM", "a node port");
    assert_eq!(client.ask("tcp 10.9.0.3 30081"), "ECONNREFUSED", "no node port");
    assert_eq!(client.ask("tcp 10.9.0.2 98"), "ECONNREFUSED", "the endpoint is allowed");
    assert_eq!(client.ask("tcp 10.9.0.2 97"), "ECONNREFUSED", "one of two is allowed");
    assert_eq!(client.ask("tcp 10.9.0.2 96"), "ECONNREFUSED", "none: the node refuses it");
    assert_eq!(client.ask("tcp 10.9.0.2 95"), "EPERM", "no service");
    assert_eq!(client.ask("tcp 10.9.0.2 94"), "EPERM", "each of many");
    assert_eq!(client.ask("tcp 10.9.0.2 93"), "ECONNREFUSED", "the last of many is allowed");
    assert_eq!(client.ask("tcp 10.9.0.2 92"), "ECONNREFUSED", "a pod may reach itself");
}

#[test]
fn without_rules_a_cgroup_is_open_or_closed_as_the_option_says() {
    testkit::requires_root!();
    let world = World::new("closed");
    for closed in [false, true] {
        let cgroup = world.cgroup(if closed { "closed" } else { "open" });
        let policy = SocketPolicy::load(Options { closed, ..Options::default() }).unwrap();
        policy.attach("default/a", &addresses(), &cgroup, false).unwrap();
        let mut client = world.client(&cgroup);
        let before = if closed { "EPERM" } else { "ok" };
        assert_eq!(client.ask("tcp 10.9.0.3 80"), before);
        assert_eq!(client.ask("udp 127.0.0.1 1"), "ok");
        assert_eq!(policy.counters().closed, u64::from(closed));
        policy.set_rules(&[], &[], &Services::default(), &[]).unwrap();
        assert_eq!(client.ask("tcp 10.9.0.3 80"), "ok");
        // A pod that comes later waits for the next rules.
        let later = world.cgroup(if closed { "later-closed" } else { "later-open" });
        policy.attach("default/b", &[], &later, false).unwrap();
        let mut client = world.client(&later);
        assert_eq!(client.ask("tcp 10.9.0.3 80"), before);
        policy.set_rules(&[], &[], &Services::default(), &[]).unwrap();
        assert_eq!(client.ask("tcp 10.9.0.3 80"), "ok");
    }
}

#[test]
fn a_pod_on_the_host_network_is_asked_about_what_it_opens_and_never_closed() {
    testkit::requires_root!();
    let world = World::new("host");
    let cgroup = world.cgroup("pod");
    let policy = SocketPolicy::load(Options { closed: true, ..Options::default() }).unwrap();
    policy.attach("default/a", &addresses(), &cgroup, true).unwrap();
    let mut client = world.client(&cgroup);
    assert_eq!(client.ask("tcp 10.9.0.3 80"), "ok", "before there are rules");
    let mut rules = deny_to("default/a", "10.9.0.3", Ports::ANY);
    // Pods let their own node in.
    rules.push(Rule {
        scope: Scope::Global,
        transport: Transport::Tcp,
        local: End { net: Some("10.9.0.2/32".parse().unwrap()), ports: Ports::ANY },
        remote: End::ANY,
        action: Action::Deny,
        tag: "closed".into(),
    });
    policy.set_rules(&rules, &[], &Services::default(), &[]).unwrap();
    assert_eq!(client.ask("tcp 10.9.0.3 80"), "EPERM");
    assert_eq!(client.ask("tcp 10.9.0.2 80"), "ok");
}
