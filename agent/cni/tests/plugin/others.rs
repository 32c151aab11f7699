//! CHECK, GC, STATUS, VERSION, privileges, and input that is none.

use local_api::ErrorKind;
use serde_json::{Value, json};
use testkit::Namespace;

use crate::failures::with_plugin;
use crate::node::Node;
use crate::requires_a_node;
use crate::stand_in::Manner;

#[test]
fn check_sees_what_changed() {
    requires_a_node!();
    let mut node = Node::new("check");
    let pod = Namespace::new("checkpod");
    let stand_in = node.stand_in(Manner::Serves);
    let result = node.add("db", &pod).ok();
    let end = node.ends().remove(0).name;

    let changes: [(&[&str], &[&str], &str); 3] = [
        (
            &["ip", "address", "del", "10.77.0.2/32", "dev", "eth0"],
            &["ip", "address", "add", "10.77.0.2/32", "dev", "eth0"],
            "lost address 10.77.0.2",
        ),
        (
            &["ip", "-6", "route", "del", "default"],
            &["ip", "-6", "route", "add", "default", "via", "fe80::1", "dev", "eth0"],
            "route to ::/0",
        ),
        (
            &["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"],
            &[
                "ip",
                "link",
                "set",
                "eth0",
                "address",
                result["interfaces"][1]["mac"].as_str().unwrap(),
            ],
            "another address",
        ),
    ];
    for (change, repair, text) in changes {
        pod.exec(change);
        let message = node.check("db", &pod, &result).err(103);
        assert!(message.contains("pod test/db") && message.contains(text), "{message}");
        pod.exec(repair);
        // Removing an address removed the routes that send from it.
        let link = ["ip", "route", "replace", "169.254.1.1", "dev", "eth0"];
        pod.exec(link.into_iter().chain(["proto", "static", "scope", "link"]));
        let default = ["ip", "route", "replace", "default", "via", "169.254.1.1", "dev", "eth0"];
        pod.exec(default.into_iter().chain(["proto", "static", "onlink"]));
        node.check("db", &pod, &result).ok();
    }

    node.namespace.exec(["ip", "link", "set", &end, "down"]);
    assert!(node.check("db", &pod, &result).err(103).contains("is down"));
    node.namespace.exec(["ip", "link", "set", &end, "up"]);

    stand_in.forget_pods();
    assert!(node.check("db", &pod, &result).err(101).contains("no such pod is attached"));
    drop(stand_in);
    assert!(node.check("db", &pod, &result).err(11).contains("podgate is not running"));

    node.namespace.exec(["ip", "link", "del", &end]);
    assert!(node.check("db", &pod, &result).err(103).contains(&end));
    let netns = pod.path().display().to_string();
    assert!(node.call("CHECK", "db", &netns).err(7).contains("prevResult"));
}

#[test]
fn garbage_is_what_no_valid_attachment_has() {
    requires_a_node!();
    let mut node = Node::new("gc");
    let pods = [Namespace::new("gc1"), Namespace::new("gc2"), Namespace::new("gc3")];
    let stand_in = node.stand_in(Manner::Serves);
    node.config["cniVersion"] = json!("1.1.0");
    node.add("stays", &pods[0]).ok();
    node.add("forgotten", &pods[1]).ok();
    node.config["name"] = json!("other");
    node.add("elsewhere", &pods[2]).ok();
    node.config["name"] = json!("pods");

    let collect =
        |node: &Node| node.call_with(&[("CNI_COMMAND", "GC"), ("CNI_PATH", crate::node::PLUGINS)]);
    assert!(collect(&node).err(7).contains("valid-attachments"));
    assert_eq!(node.ends().len(), 3);

    node.config["cni.dev/valid-attachments"] =
        json!([{ "containerID": "stays", "ifname": "eth0" }]);
    collect(&node).ok();
    let aliases: Vec<String> = node.ends().into_iter().map(|end| end.alias).collect();
    assert_eq!(aliases, ["podgate:pods:stays:eth0", "podgate:other:elsewhere:eth0"]);
    assert_eq!(node.held(), ["10.77.0.2", "fd00:77::2"]);
    let served: Vec<String> = stand_in.pods().into_iter().map(|pod| pod.name).collect();
    assert_eq!(served, ["stays", "elsewhere"]);
    collect(&node).ok();
}

#[test]
fn status_tells_whether_pods_can_be_attached() {
    requires_a_node!();
    let mut node = Node::new("status");
    let status = |node: &Node| {
        node.call_with(&[("CNI_COMMAND", "STATUS"), ("CNI_PATH", crate::node::PLUGINS)])
    };
    assert!(status(&node).err(1).contains("STATUS needs cniVersion 1.1.0"));
    node.config["cniVersion"] = json!("1.1.0");
    assert!(status(&node).err(51).contains("podgate is not running"));
    let stand_in = node.stand_in(Manner::Refuses(ErrorKind::NotReady));
    assert!(status(&node).err(50).contains("the stand-in refuses"));
    stand_in.set_manner(Manner::Serves);
    assert_eq!(status(&node).ok(), Value::Null);
    node.config["ipam"]["type"] = json!("not-there");
    assert!(status(&node).err(50).contains("not-there"));
}

#[test]
fn the_log_file_gets_a_line_a_call() {
    requires_a_node!();
    let mut node = Node::new("log");
    let pod = Namespace::new("logpod");
    let log = node.folder.path().join("cni.log");
    node.config["logFile"] = json!(log);
    node.add("db", &pod).err(11);
    node.del("db", &pod).ok();
    let text = std::fs::read_to_string(&log).unwrap();
    let [first, second] = text.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(first.contains("Z ADD db eth0 test/db error 11: attach pod test/db"), "{first}");
    assert!(second.ends_with("Z DEL db eth0 ok"), "{second}");

    node.config["logFile"] = json!("/nowhere/cni.log");
    node.del("db", &pod).ok();
}

/// Calls the plugin where it stands; these calls change nothing.
fn call(variables: &[(&str, &str)], input: &str) -> cni::Outcome {
    let variable = |name: &str| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    };
    cni::run(variable, || {}, input.as_bytes())
}

#[test]
fn version_needs_nothing() {
    for (input, version) in [("", "1.1.0"), ("{\"cniVersion\":\"0.4.0\"}", "0.4.0")] {
        let outcome = call(&[("CNI_COMMAND", "VERSION")], input);
        assert_eq!(outcome.code, 0);
        let answer: Value = serde_json::from_str(&outcome.output).unwrap();
        assert_eq!(answer["cniVersion"], version);
        assert_eq!(answer["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
    }
}

#[test]
fn input_that_is_none_is_an_error_object() {
    let config = r#"{"cniVersion":"1.0.0","name":"pods","ipam":{"type":"host-local"}}"#;
    let long = format!("{{\"name\":\"{}\"", "x".repeat(1024 * 1024));
    let cases = [
        ("", config, 4, "CNI_COMMAND is not set"),
        ("EXPLODE", config, 4, "CNI_COMMAND 'EXPLODE'"),
        ("ADD", "", 6, "network configuration"),
        ("ADD", "{\"cniVersion\":", 6, "network configuration"),
        ("ADD", long.as_str(), 6, "longer than"),
        ("ADD", "{\"cniVersion\":\"0.2.0\"}", 1, "cniVersion '0.2.0'"),
        ("ADD", config, 4, "CNI_CONTAINERID is not set"),
        ("GC", config, 1, "GC needs cniVersion 1.1.0"),
    ];
    for (command, input, code, text) in cases {
        let outcome = call(&[("CNI_COMMAND", command)], input);
        assert_eq!(outcome.code, 1, "{text}");
        let error: Value = serde_json::from_str(&outcome.output).unwrap();
        assert_eq!(error["code"], code, "{error}");
        assert!(error["msg"].as_str().unwrap().contains(text), "{error}");
    }
}

/// As cri-dockerd passes it, of a process with privileges that the plugin gives up.
#[test]
fn a_namespace_is_opened_while_the_plugin_may() {
    requires_a_node!();
    let node = Node::new("proc");
    let pod = Namespace::new("procpod");
    let _stand_in = node.stand_in(Manner::Serves);
    let sandbox = pod.spawn(["sleep", "60"]);
    let netns = format!("/proc/{}/ns/net", sandbox.id());
    node.call("ADD", "c1", &netns).ok();
    node.call("DEL", "c1", &netns).ok();
    node.assert_clean(&pod);
}

#[test]
fn plugins_have_few_privileges() {
    requires_a_node!();
    let mut node = Node::new("few");
    let pod = Namespace::new("fewpod");
    let _stand_in = node.stand_in(Manner::Serves);
    let status = node.folder.path().join("status");
    let script = format!("cat /proc/self/status > {}; exit 1", status.display());
    with_plugin(&mut node, &script, &pod).err(5);
    let status = std::fs::read_to_string(status).unwrap();
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {name} in\n{status}")).trim().to_owned()
    };
    // NET_ADMIN is 12, SYS_ADMIN 21 (linux/capability.h).
    let both = format!("{:016x}", 1 << 12 | 1 << 21);
    assert_eq!([field("CapEff"), field("CapPrm"), field("CapBnd")], [(); 3].map(|()| both.clone()));
    assert_eq!(field("NoNewPrivs"), "1");
}
