//! Ways around the programs: by other calls, other processes, and sockets of others.

use session_rules::{Action, Ports};
use socket_policy::Options;

use crate::arrivals::{
    FRIEND, Hosts, NODE, STRANGER, accepts, is_denied, is_open, node, only_the_friend,
};
use crate::common::*;

#[test]
fn no_other_call_opens_what_connect_may_not() {
    testkit::requires_root!();
    let world = World::new("calls");
    let cgroup = world.cgroup("pod");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let policy = policy_at(&cgroup, &rules, Options::default());
    let mut client = world.client(&cgroup);
    for what in [
        "fast HOST 80",
        "mptcp HOST 80",
        "late HOST 80",
        "repaired HOST 80",
        "uring HOST 80",
        "uring-worker HOST 80",
        "device HOST 80",
        // Another source address: the cgroup decides, and not the address.
        "transparent HOST 80 10.9.0.3",
        "pktinfo HOST 80 10.9.0.3",
        "fork tcp HOST 80",
        "fork send HOST 80",
        // Other calls, families, and states of a socket.
        "sendmmsg HOST 80 10.9.0.3",
        "again HOST 80 10.9.0.3",
        "aside HOST 80 10.9.0.3",
        "unspec HOST 80",
        "v4-of-v6 HOST 80",
        "v4-connect-of-v6 HOST 80",
        "addrform HOST 80 10.9.0.3",
    ] {
        assert_eq!(client.ask(&what.replace("HOST", "10.9.0.2")), "EPERM", "{what}");
        assert_eq!(&*only(&policy).by, "NetworkPolicy default/a egress", "{what}");
        assert_ne!(client.ask(&what.replace("HOST", "10.9.0.3")), "EPERM", "{what}");
    }
}

#[test]
fn a_socket_is_of_the_cgroup_that_opened_it() {
    testkit::requires_root!();
    let world = World::new("owner");
    let cgroup = world.cgroup("pod");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let policy = policy_at(&cgroup, &rules, Options::default());
    let root = cgroup.parent().unwrap();
    let (mut inside, mut outside) = (world.client(&cgroup), world.client(root));
    let move_to = |client: &Client, cgroup: &std::path::Path| {
        std::fs::write(cgroup.join("cgroup.procs"), client.id().to_string()).unwrap();
    };
    // A socket that another process holds now.
    assert_eq!(inside.ask("hold a STREAM 10.9.0.2"), "ok");
    let way = world.folder.path().join("way");
    outside.begin(&format!("take a {}", way.display()));
    assert_eq!(outside.line(), "listening");
    assert_eq!(inside.ask(&format!("give a {}", way.display())), "ok");
    assert_eq!(outside.line(), "ok");
    assert_eq!(outside.ask("held a 10.9.0.2 80"), "EPERM");
    let denied = only(&policy);
    assert_eq!((&*denied.pod, denied.process.0), ("default/a", outside.id()), "who called");
    assert_eq!(outside.ask("tcp 10.9.0.2 80"), "ok", "a socket of its own");
    // A process that leaves takes its sockets along, and one that comes brings none.
    assert_eq!(inside.ask("hold b STREAM 10.9.0.2"), "ok");
    move_to(&inside, root);
    assert_eq!(inside.ask("held b 10.9.0.2 80"), "EPERM");
    assert_eq!(inside.ask("tcp 10.9.0.2 80"), "ok");
    move_to(&outside, &cgroup);
    assert_eq!(outside.ask("tcp 10.9.0.2 80"), "EPERM");
}

#[test]
fn rules_reach_sockets_that_were_open_before_the_programs() {
    testkit::requires_root!();
    let world = World::new("before");
    let cgroup = world.cgroup("pod");
    let mut client = world.client(&cgroup);
    assert_eq!(client.ask("hold a STREAM 10.9.0.2"), "ok");
    assert_eq!(client.ask("hold b DGRAM 10.9.0.2"), "ok");
    let rules = deny_to("default/a", "10.9.0.2", Ports::ANY);
    let _policy = policy_at(&cgroup, &rules, Options::default());
    assert_eq!(client.ask("held a 10.9.0.2 80"), "EPERM");
    assert_eq!(client.ask("held b 10.9.0.2 80"), "EPERM");
}

#[test]
fn a_socket_that_was_accepted_opens_no_more_than_others() {
    testkit::requires_root!();
    let world = World::new("accepted");
    let cgroup = world.cgroup("pod");
    let _policy =
        policy_at(&cgroup, &deny_to("default/a", "10.9.0.2", Ports::ANY), Options::default());
    let (mut inside, mut outside) = (world.client(&cgroup), world.client(cgroup.parent().unwrap()));
    assert_eq!(inside.ask("listen l tcp 10.9.0.100 7000"), "ok");
    // Accepted by the pod, and by another process.
    let way = world.folder.path().join("way");
    for is_given in [false, true] {
        if is_given {
            outside.begin(&format!("take l {}", way.display()));
            assert_eq!(outside.line(), "listening");
            assert_eq!(inside.ask(&format!("give l {}", way.display())), "ok");
            assert_eq!(outside.line(), "ok");
        }
        assert_eq!(outside.ask("tcp 10.9.0.100 7000"), "ok");
        let accepting = if is_given { &mut outside } else { &mut inside };
        assert_eq!(accepting.ask("accept l a"), "ok");
        assert_eq!(accepting.ask("disconnect a"), "ok");
        assert_eq!(accepting.ask("held a 10.9.0.2 80"), "EPERM");
        assert_eq!(accepting.ask("held a 10.9.0.3 80"), "ok");
    }
}

#[test]
fn a_program_inside_a_pod_permits_nothing() {
    testkit::requires_root!();
    let world = World::new("inside");
    for (name, refuse, denied) in [("eperm", false, "EPERM"), ("refused", true, "ECONNREFUSED")] {
        let cgroup = world.cgroup(name);
        let options = Options { refuse, ..Options::default() };
        let _policy = policy_at(&cgroup, &deny_to("default/a", "10.9.0.2", Ports::ANY), options);
        // BPF_F_ALLOW_MULTI, and BPF_F_PREORDER where the kernel has it: this one runs before those of cgroups inside.
        for (nested, flags) in [("last", 2), ("first", 2 | 64)] {
            let nested = cgroup.join(nested);
            std::fs::create_dir(&nested).unwrap();
            let mut client = world.client(&nested);
            let permitted = client.ask(&format!("permit {} {flags}", nested.display()));
            assert!(permitted == "ok" || flags & 64 != 0 && permitted == "EINVAL", "{permitted}");
            assert_eq!(client.ask("tcp 10.9.0.2 80"), denied, "{}", nested.display());
            assert_eq!(client.ask("tcp 10.9.0.3 80"), "ok");
            drop(client);
            while let Err(error) = std::fs::remove_dir(&nested) {
                assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// Denies a pod on the host network everything but what the friend sends to port 8080.
fn closed(label: &str) -> Hosts {
    Hosts::with(label, &only_the_friend())
}

#[test]
fn a_listener_is_of_the_cgroup_that_opened_it() {
    testkit::requires_root!();
    let hosts = closed("listeners");
    let (root, nested) = (hosts.pod.parent().unwrap(), hosts.pod.join("container"));
    std::fs::create_dir(&nested).unwrap();
    let [mut pod, mut inside, mut moved] =
        [&hosts.pod, &nested, &hosts.pod].map(|it| hosts.world.client(it));
    let (mut other, mut client) = (hosts.node_process(), hosts.client());
    let to = |port: u16| format!("tcp {} {port} {}", NODE[0], STRANGER[0]);
    assert_eq!(inside.ask("serve tcp 0.0.0.0 81"), "ok");
    assert!(is_denied(&mut client, &to(81)), "a cgroup inside");
    // A process that leaves.
    assert_eq!(moved.ask("listen m tcp 0.0.0.0 82"), "ok");
    std::fs::write(root.join("cgroup.procs"), moved.id().to_string()).unwrap();
    assert_eq!(moved.ask("serving m tcp"), "ok");
    assert!(is_denied(&mut client, &to(82)), "its process has left");
    assert_eq!(moved.ask("serve tcp 0.0.0.0 83"), "ok");
    assert!(is_open(&mut client, &to(83)), "a socket that is not the pod's");
    // A listener that another process gets.
    let way = hosts.world.folder.path().join("way");
    let give = |from: &mut Client, to: &mut Client, name: &str| {
        let way = format!("{}-{name}", way.display());
        to.begin(&format!("take {name} {way}"));
        assert_eq!(to.line(), "listening");
        assert_eq!(from.ask(&format!("give {name} {way}")), "ok");
        assert_eq!(to.line(), "ok");
        assert_eq!(to.ask(&format!("serving {name} tcp")), "ok");
    };
    assert_eq!(pod.ask("listen g tcp 0.0.0.0 84"), "ok");
    give(&mut pod, &mut other, "g");
    assert!(is_denied(&mut client, &to(84)), "it was given away");
    assert_eq!(other.ask("listen h tcp 0.0.0.0 85"), "ok");
    give(&mut other, &mut pod, "h");
    assert!(is_open(&mut client, &to(85)), "a process outside gave it to the pod");
    // A thread in a cgroup of threads.
    drop(inside);
    let threads = hosts.world.cgroup("threads");
    let (thread, policy) = (threads.join("thread"), &hosts.policy);
    std::fs::create_dir(&thread).unwrap();
    std::fs::write(thread.join("cgroup.type"), "threaded").unwrap();
    policy.attach("default/a", &node(), &threads, true).unwrap();
    hosts.accept(&only_the_friend());
    let mut threaded = hosts.world.client(&threads);
    assert_eq!(threaded.ask(&format!("thread {} t tcp 0.0.0.0 86", thread.display())), "ok");
    assert_eq!(threaded.ask("serving t tcp"), "ok");
    assert!(is_denied(&mut client, &to(86)), "a thread's");
    drop(threaded);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let _ = [thread, nested].map(std::fs::remove_dir);
}

#[test]
fn a_port_that_a_pod_shares_leads_to_others_alone() {
    testkit::requires_root!();
    let hosts = closed("reuseport");
    let (mut pod, mut other) = (hosts.world.client(&hosts.pod), hosts.node_process());
    assert_eq!(pod.ask("listen l tcp 0.0.0.0 8080"), "ok");
    assert_eq!(other.ask("serve tcp 0.0.0.0 8080"), "ok");
    let mut client = hosts.client();
    let what = format!("tcp {} 8080 {}", NODE[0], STRANGER[0]);
    let denied = (0..12).filter(|_| is_denied(&mut client, &what)).count();
    assert!((1..12).contains(&denied), "{denied} of 12");
    assert_eq!(pod.ask("accept l"), "timeout", "nobody came to the pod");
}

#[test]
fn neither_data_in_a_syn_nor_another_subflow_gets_in() {
    testkit::requires_root!();
    let hosts = Hosts::with("syn", &[]);
    let (mut pod, mut client) = (hosts.world.client(&hosts.pod), hosts.client());
    assert_eq!(pod.ask("listen f fast 0.0.0.0 8081"), "ok");
    assert_eq!(pod.ask("serve mptcp :: 8080"), "ok");
    let counted = |name: &str| -> u64 {
        let text = hosts.world.namespace.exec(["nstat", "-asz", name]);
        text.lines().last().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    // A cookie for the next connection, which comes with its data.
    let fast = |nth: u8| format!("open f{nth} fast {} 8081 {}", NODE[0], STRANGER[0]);
    assert_eq!(pod.ask("serving f tcp"), "ok");
    assert_eq!(client.ask(&fast(0)), "ok");
    assert_eq!(client.ask(&fast(1)), "ok");
    assert_eq!(counted("TcpExtTCPFastOpenPassive"), 1, "with data in the SYN");
    // A friend's connection, and one more subflow from another address.
    for namespace in [&hosts.outside, &hosts.world.namespace] {
        namespace.exec(["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"]);
    }
    let endpoint = ["ip", "mptcp", "endpoint", "add", STRANGER[0], "dev", "eth0", "subflow"];
    hosts.outside.exec(endpoint);
    let mptcp = format!("open m mptcp {} 8080 {}", NODE[0], FRIEND[0]);
    let mut joins = |is_denied: bool| {
        let (before, kept_out) = (counted("MPTcpExtMPJoinAckRx"), hosts.policy.counters().kept_out);
        assert_eq!(client.ask(&mptcp), "ok");
        for _ in 0..400 {
            assert_eq!(client.ask("echo m"), "ok");
            let is_kept_out = hosts.policy.counters().kept_out > kept_out;
            if is_kept_out || counted("MPTcpExtMPJoinAckRx") > before {
                assert_eq!(is_kept_out, is_denied);
                assert_eq!(counted("MPTcpExtMPJoinAckRx") == before, is_denied);
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("no other subflow");
    };
    joins(false);
    hosts.accept(&only_the_friend());
    joins(true);
    let mptcp = format!("open s mptcp {} 8080 {}", NODE[0], STRANGER[0]);
    assert_ne!(client.ask(&mptcp), "ok");
    assert_ne!(client.ask(&fast(2)), "ok");
    assert_eq!(counted("TcpExtTCPFastOpenPassive"), 1);
}

#[test]
fn datagrams_from_outside_take_no_room_from_what_a_pod_sent() {
    testkit::requires_root!();
    let hosts = closed("flood");
    let (mut pod, mut server, mut client) =
        (hosts.world.client(&hosts.pod), hosts.client(), hosts.client());
    assert_eq!(pod.ask("serve udp 0.0.0.0 8080"), "ok");
    assert_eq!(pod.ask(&format!("bound q DGRAM {} 5300", NODE[0])), "ok");
    assert_eq!(server.ask(&format!("bound s DGRAM {} 53", STRANGER[0])), "ok");
    assert_eq!(pod.ask(&format!("tell q {} 53", STRANGER[0])), "ok");
    // More ends than there is room for.
    assert_eq!(client.ask(&format!("flood {} 40000 {} 8080", FRIEND[0], NODE[0])), "ok");
    assert_eq!(server.ask(&format!("tell s {} 5300", NODE[0])), "ok");
    pod.begin("get q");
    assert_eq!([pod.line(), pod.line()], ["53", "ok"]);
}

#[test]
fn a_connection_that_both_ends_open_is_the_pods() {
    testkit::requires_root!();
    let hosts = Hosts::with("both", &accepts(None, Ports::ANY, Action::Deny));
    let (mut pod, mut client) = (hosts.world.client(&hosts.pod), hosts.client());
    // The pod's SYN is lost, and meets that of the other end.
    for rule in [
        "add table inet lost",
        "add chain inet lost input { type filter hook input priority 0; }",
        "add rule inet lost input tcp dport 7001 tcp flags & (syn | ack) == syn drop",
    ] {
        hosts.outside.exec(["nft", rule]);
    }
    assert_eq!(pod.ask(&format!("bound p STREAM {} 7000", NODE[0])), "ok");
    assert_eq!(client.ask(&format!("bound c STREAM {} 7001", FRIEND[0])), "ok");
    assert_eq!(pod.ask("patience p 20"), "ok");
    assert_eq!(client.ask("patience c 20"), "ok");
    pod.begin(&format!("held p {} 7001", FRIEND[0]));
    let connects = |namespace: &testkit::Namespace| {
        namespace.exec(["ss", "-Htn", "state", "syn-sent"]).contains(":7001")
    };
    while !connects(&hosts.world.namespace) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(client.ask(&format!("held c {} 7000", NODE[0])), "ok");
    assert_eq!(pod.line(), "ok");
    // What the pod may not open, nobody opens for it.
    let denied = deny_to("default/a", FRIEND[0], Ports::ANY);
    let closed = accepts(None, Ports::ANY, Action::Deny);
    hosts.policy.set_rules(&denied, &closed, &Default::default(), &node()).unwrap();
    assert_eq!(pod.ask(&format!("bound q STREAM {} 7002", NODE[0])), "ok");
    assert_eq!(pod.ask(&format!("held q {} 7001", FRIEND[0])), "EPERM");
}

#[test]
fn sockets_that_outlive_their_cgroup_are_held_to_its_rules() {
    testkit::requires_root!();
    let hosts = closed("removed");
    let nested = hosts.pod.join("container");
    std::fs::create_dir(&nested).unwrap();
    let denied = deny_to("default/a", FRIEND[0], Ports::ANY);
    let set = || {
        let accepted = only_the_friend();
        hosts.policy.set_rules(&denied, &accepted, &Default::default(), &node()).unwrap();
    };
    set();
    let (mut pod, mut client) = (hosts.world.client(&nested), hosts.client());
    let mut heir = hosts.node_process();
    assert_eq!(pod.ask("listen l tcp 0.0.0.0 81"), "ok");
    assert_eq!(pod.ask(&format!("hold c STREAM {}", FRIEND[0])), "ok");
    for name in ["l", "c"] {
        let way = hosts.world.folder.path().join(name);
        heir.begin(&format!("take {name} {}", way.display()));
        assert_eq!(heir.line(), "listening");
        assert_eq!(pod.ask(&format!("give {name} {}", way.display())), "ok");
        assert_eq!(heir.line(), "ok");
    }
    drop(pod);
    for cgroup in [&nested, &hosts.pod] {
        while let Err(error) = std::fs::remove_dir(cgroup) {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        }
    }
    let to_81 = format!("tcp {} 81 {}", NODE[0], STRANGER[0]);
    assert_eq!(heir.ask("serving l tcp"), "ok");
    set();
    assert!(is_denied(&mut client, &to_81));
    assert_eq!(heir.ask(&format!("held c {} 80", FRIEND[0])), "EPERM");
    // A cgroup of the same name is another one.
    std::fs::create_dir(&hosts.pod).unwrap();
    let mut next = hosts.world.client(&hosts.pod);
    assert_eq!(next.ask("serve tcp 0.0.0.0 82"), "ok");
    assert_eq!(next.ask(&format!("udp {} 1", FRIEND[0])), "ok");
    hosts.policy.attach("default/a", &node(), &hosts.pod, true).unwrap();
    set();
    assert_eq!(next.ask(&format!("udp {} 1", FRIEND[0])), "EPERM");
    assert!(is_denied(&mut client, &format!("tcp {} 82 {}", NODE[0], STRANGER[0])));
}
