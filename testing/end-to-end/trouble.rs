//! Faults: of the process, of interfaces, of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::cluster_node::{PODGATE, flow_offload, text};
use crate::policies::nothing_in;
use crate::{ClusterNode, requires_the_machine};

#[test]
fn a_killed_switch_leaves_pods_closed_and_a_new_one_takes_them_up() {
    requires_the_machine!("ping", "redis-server", "redis-cli");
    let node = ClusterNode::start(&[]);
    node.apply("policy", &nothing_in("db"));
    let pods = ["db", "a", "b"].map(|name| node.pod(name, name));
    let ping = |to: std::net::IpAddr| pods[1].pings(to);
    let v4 = |n: usize| pods[n].v4();
    assert!(ping(v4(2)) && !ping(v4(0)));

    node.kill_switch();
    assert!(!ping(v4(2)), "nobody forwards");
    // Not even the kernel of the node, were it told to.
    node.namespace.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    assert!(!ping(v4(2)) && !ping("10.77.0.1".parse().unwrap()));

    node.start_switch();
    assert!(ping(v4(2)), "pods are taken up again");
    assert!(!ping(v4(0)), "with their policy");
}

#[test]
fn a_broken_manifest_changes_nothing_and_is_named() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (db, other) = (node.pod("db", "db"), node.pod("other", "other"));
    node.apply("policy", &nothing_in("db"));
    assert!(!other.pings(db.v4()));
    node.write(
        "policy",
        &nothing_in("db").replace("{matchLabels: {role: db}}", "{matchLabels: [7]}"),
    );
    let faults = node.eventually("the fault", || {
        let status = node.status();
        let faults = status["faults"].as_array().unwrap();
        (!faults.is_empty()).then(|| format!("{faults:?}"))
    });
    assert!(faults.contains("policy.yaml") && faults.contains("matchLabels"), "{faults}");
    assert!(!other.pings(db.v4()), "what was in force stays in force");
    assert!(node.metric("podgate_policy_faults") >= 1.0);
    node.apply("policy", &nothing_in("nobody"));
    assert!(other.pings(db.v4()));
    assert_eq!(node.status()["faults"].as_array().unwrap().len(), 0);
}

#[test]
fn an_interface_that_vanishes_is_counted_and_harms_nobody_else() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b, c) = (node.pod("a", "a"), node.pod("b", "b"), node.pod("c", "c"));
    assert!(a.pings(c.v4()));
    node.namespace.exec(["ip", "link", "delete", c.host_interface.as_str()]);
    node.eventually("the loss", || (node.metric("podgate_ports_lost_total") == 1.0).then_some(()));
    assert_eq!(node.status()["lost"][0]["name"], "default/c");
    assert!(a.pings(b.v4()) && node.is_well());
    let again = node.pod("d", "d");
    assert!(a.pings(again.v4()), "ports can still be opened");
}

#[test]
fn a_pod_cannot_send_as_another() {
    requires_the_machine!("ping");
    let node = ClusterNode::start(&[]);
    let (a, b, victim) = (node.pod("a", "a"), node.pod("b", "b"), node.pod("victim", "victim"));
    assert!(a.pings(b.v4()));
    let stolen = victim.v4().to_string();
    a.namespace.exec(["ip", "addr", "add", &format!("{stolen}/32"), "dev", "eth0"]);
    let target = b.v4().to_string();
    let ping = ["ping", "-c", "1", "-W", "1", "-I", stolen.as_str(), target.as_str()];
    assert!(!a.namespace.try_exec(ping).status.success());
    let spoofed = "podgate_packets_total{reason=\"spoofed-address\",verdict=\"drop\"}";
    assert!(node.metric(spoofed) >= 1.0);
    assert!(victim.pings(b.v4()), "the victim is not harmed");
}

#[test]
fn a_pod_whose_object_is_unknown_is_not_attached() {
    requires_the_machine!();
    let node = ClusterNode::start(&["--attach-timeout", "1s"]);
    let namespace = testkit::Namespace::new("unknown");
    let output = node.plugin("ADD", "unknown", &namespace);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success());
    assert_eq!(answer["code"], 11, "try again later: {answer}");
    assert!(answer["msg"].as_str().unwrap().contains("default/unknown"), "{answer}");
    let links = node.namespace.exec(["ip", "-brief", "link"]);
    assert!(!links.contains("\npg"), "nothing is left behind: {links}");
    assert_eq!(node.status()["ports"].as_array().unwrap().len(), 1, "the host port alone");
    assert!(node.is_well());
}

/// Whoever cleans up takes the files first and then asks the switch to end.
#[test]
fn a_switch_whose_files_are_gone_still_ends_when_asked() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    node.delete_files();
    assert!(node.stop_switch().success());
}

/// Each of these would conflict with a second switch's; a test's own options take precedence.
#[test]
fn input_that_cannot_be_used_is_told_before_another_switch_is_in_the_way() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let folder = testkit::TempDir::new("second");
    let manifest = folder.path().join("broken.yaml");
    let second = |manifest: &std::path::Path, state: &std::path::Path, more: &[&str]| {
        let mut command = node.namespace.command([PODGATE, "run"]);
        command.args(["--node-name", "node1", "--listen", "127.0.0.1:9470"]).args(more);
        command.arg("--manifests").arg(manifest).arg("--state-dir").arg(state);
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    std::fs::write(&manifest, "kind: [").unwrap();
    for state in [node.state_dir(), folder.path().join("state")] {
        let (code, said) = second(&manifest, &state, &[]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("broken.yaml"), "{said}");
    }
    std::fs::write(&manifest, "kind: Namespace\napiVersion: v1\nmetadata: {name: a}\n").unwrap();
    let (code, said) = second(&manifest, &folder.path().join("state"), &["--workers", "0"]);
    assert!(code == Some(2) && said.contains("workers"), "{code:?} {said}");
    let (code, said) = second(&manifest, &folder.path().join("state"), &[]);
    let other =
        format!("another podgate runs on this node (pid {}: ", node.switch_id().as_raw_nonzero());
    assert!(code == Some(1) && said.contains(&other), "{code:?} {said}");
    let (code, said) = second(&manifest, &node.state_dir(), &[]);
    assert!(code == Some(1) && said.contains("running with this folder"), "{code:?} {said}");
    assert!(node.is_well());
}

#[test]
fn a_start_that_fails_removes_what_it_has_made() {
    requires_the_machine!("ip", "nft");
    let (node, folder) = (testkit::Namespace::new("node"), testkit::TempDir::new("fails"));
    let manifest = folder.path().join("node.yaml");
    let object = "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nspec: {podCIDR: \
                  10.77.0.0/24}\n";
    std::fs::write(&manifest, object).unwrap();
    let there = || {
        let links = node.exec(["ip", "-o", "link"]);
        let links = links.lines().map(|line| line.split(' ').nth(1).unwrap_or_default().to_owned());
        (links.collect::<Vec<_>>(), node.exec(["nft", "list", "tables"]))
    };
    let start = |uplink: &str| {
        let mut command =
            node.command([PODGATE, "run", "--node-name", "node1", "--uplink", uplink]);
        command.args(["--listen", "127.0.0.1:9470"]);
        command.arg("--socket").arg(folder.path().join("socket"));
        command.arg("--manifests").arg(&manifest);
        command.arg("--state-dir").arg(folder.path().join("state"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let before = there();
    let said = start("wrong0");
    assert!(said.contains("uplink: look up interface wrong0: No such device"), "{said}");
    assert_eq!(there(), before);
    // Objects of an earlier switch are in use, and stay.
    node.exec("ip link add podgate0 type veth peer name podgate-host".split(' '));
    node.exec(["nft", "add table inet podgate"]);
    let before = there();
    start("wrong0");
    assert_eq!(there().0, before.0);
    assert!(there().1.contains("table inet podgate\n"));
}

/// Another tool that cleans up XDP programs leaves a pod without the switch for a second at most.
#[test]
fn an_xdp_program_that_somebody_takes_off_is_put_back() {
    requires_the_machine!("ping", "ip");
    let node = ClusterNode::start(&[]);
    let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
    assert!(a.pings(b.v4()));
    // With flow offload the punt link has the XDP program of all pods.
    let of_pods = if flow_offload() { "podgate-punt" } else { &a.host_interface };
    for interface in [of_pods, "podgate0"] {
        node.namespace.exec(["ip", "link", "set", "dev", interface, "xdp", "off"]);
        node.eventually("the program", || {
            let shown = node.namespace.exec(["ip", "link", "show", "dev", interface]);
            (shown.contains("xdp") && shown.contains("state UP")).then_some(())
        });
    }
    node.eventually("the way back", || a.pings(b.v4()).then_some(()));
    node.eventually("an empty list", || {
        node.status()["lost"].as_array().unwrap().is_empty().then_some(())
    });
    assert!(node.is_well());
}

/// Every test here runs so; this one reads what the kernel says of the process.
#[test]
fn the_switch_runs_with_few_privileges() {
    requires_the_machine!();
    let node = ClusterNode::start(&[]);
    let privileges = &node.status()["privileges"];
    let names: Vec<&str> = privileges["capabilities"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    assert_eq!(names, ["NET_ADMIN", "NET_RAW", "IPC_LOCK", "BPF"]);
    assert_eq!(
        (&privileges["no_new_privileges"], &privileges["seccomp"]),
        (&true.into(), &true.into())
    );
}

#[test]
fn the_switch_writes_its_own_files_and_no_others() {
    requires_the_machine!("ping", "nft");
    testkit::requires!(confine::files::version().is_some(), "the kernel has no Landlock");
    let mut node = ClusterNode::start(&[]);
    node.stop_switch();
    // In the place of `nft`, which the switch runs: a program that tries to write what root may.
    let programs = node.path("programs");
    fs::create_dir(&programs).unwrap();
    let tried = node.state_dir().join("tried").display().to_string();
    let cron = "/etc/cron.d/podgate-test";
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\n(echo x > {cron}) 2> /dev/null && echo wrote >> {tried} || echo refused >> {tried}\n\
         PATH={path} exec nft \"$@\"\n"
    );
    let nft = programs.join("nft");
    fs::write(&nft, script).unwrap();
    fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all("/etc/cron.d").unwrap();
    node.set_variable("PATH", format!("{}:{path}", programs.display()));
    node.start_switch();
    let (client, server) = (node.pod("client", "a"), node.pod("server", "b"));
    let said =
        node.eventually("a program that the switch runs", || fs::read_to_string(&tried).ok());
    let wrote = fs::remove_file(cron);
    assert!(said.lines().all(|line| line == "refused") && wrote.is_err(), "{said}");
    assert_eq!(node.status()["privileges"]["files"], true);
    assert!(client.pings(server.v4()), "and works");
}
