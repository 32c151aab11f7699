//! Attaching and detaching, as it should be.

use linux_net::{in_namespace, sysctl};
use local_api::Request;
use serde_json::json;
use testkit::Namespace;

use crate::node::{Node, attachment};
use crate::requires_a_node;
use crate::stand_in::Manner;

#[test]
fn a_pod_gets_its_interface_and_gives_it_back() {
    requires_a_node!();
    let mut node = Node::new("add");
    let pod = Namespace::new("addpod");
    let stand_in = node.stand_in(Manner::Serves);

    let result = node.add("db", &pod).ok();
    let request = stand_in.pods().pop().unwrap();
    assert_eq!((request.namespace.as_str(), request.name.as_str()), ("test", "db"));
    assert_eq!(request.attachment(), attachment("db"));
    assert_eq!(request.netns, pod.path());
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            { "name": request.host_interface, "mac": result["interfaces"][0]["mac"] },
            { "name": "eth0", "mac": request.mac, "sandbox": pod.path() }
        ],
        "ips": [
            { "address": "10.77.0.2/32", "gateway": "169.254.1.1", "interface": 1 },
            { "address": "fd00:77::2/128", "gateway": "fe80::1", "interface": 1 }
        ],
        "routes": [
            { "dst": "0.0.0.0/0", "gw": "169.254.1.1" },
            { "dst": "::/0", "gw": "fe80::1" }
        ],
        "dns": {}
    });
    assert_eq!(result, expected);
    assert_eq!(node.held(), ["10.77.0.2", "fd00:77::2"]);

    let [end] = node.ends().try_into().unwrap();
    assert_eq!((end.name.as_str(), end.mtu), (request.host_interface.as_str(), 1400));
    assert_eq!(json!(end.mac), result["interfaces"][0]["mac"]);
    assert_eq!(end.alias, "podgate:pods:db:eth0");
    assert!(end.running && !end.arp);

    node.check("db", &pod, &result).ok();
    node.del("db", &pod).ok();
    node.assert_clean(&pod);
    assert_eq!(stand_in.pods(), []);
    node.del("db", &pod).ok();
}

#[test]
fn inside_the_pod_everything_goes_to_the_switch() {
    requires_a_node!();
    let node = Node::new("inside");
    let pod = Namespace::new("insidepod");
    let _stand_in = node.stand_in(Manner::Serves);
    node.add("db", &pod).ok();

    let routes = pod.exec(["ip", "route"]);
    assert_eq!(
        routes.lines().map(str::trim).collect::<Vec<_>>(),
        [
            "default via 169.254.1.1 dev eth0 proto static onlink",
            "169.254.1.1 dev eth0 proto static scope link"
        ]
    );
    let route = pod.exec(["ip", "route", "get", "10.77.0.3"]);
    assert!(route.contains("via 169.254.1.1 dev eth0 src 10.77.0.2"), "{route}");
    let route = pod.exec(["ip", "-6", "route", "get", "fd00:77::3"]);
    assert!(route.contains("via fe80::1 dev eth0") && route.contains("src fd00:77::2"), "{route}");
    let addresses = pod.exec(["ip", "-6", "address", "show", "dev", "eth0", "scope", "global"]);
    assert!(
        addresses.contains("fd00:77::2/128") && !addresses.contains("tentative"),
        "{addresses}"
    );
    let offloads = pod.exec(["ethtool", "-k", "eth0"]);
    for feature in ["tx-checksumming", "generic-segmentation-offload", "tcp-segmentation-offload"] {
        assert!(offloads.contains(&format!("{feature}: off")), "{offloads}");
    }
}

#[test]
fn the_switch_gets_an_end_that_is_closed() {
    requires_a_node!();
    let node = Node::new("closed");
    let pod = Namespace::new("closedpod");
    // The node forwards, as nodes do; the pod's interface must not.
    node.namespace.exec(["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]);
    let stand_in = node.stand_in(Manner::Serves);
    node.add("db", &pod).ok();

    let [end] = stand_in.handed_over().try_into().unwrap();
    assert!(!end.up && !end.arp, "{end:?}");
    let text = node.namespace.exec(["ip", "-brief", "address", "show", "dev", &end.name]);
    assert_eq!(text.split_whitespace().count(), 2, "it has an address: {text}");
    let settings = in_namespace(node.namespace.path(), || {
        let v4 = |name| sysctl::read(sysctl::Family::V4, &end.name, name).unwrap();
        let v6 = sysctl::read(sysctl::Family::V6, &end.name, "disable_ipv6").unwrap();
        (v4("forwarding"), v4("rp_filter"), v4("arp_ignore"), v6)
    });
    let settings = settings.unwrap();
    assert_eq!(settings, ("0".into(), "1".into(), "8".into(), "1".into()));

    // Up by now, and nothing serves it: what the pod sends must not reach the kernel's own stack.
    node.namespace.exec(["ip", "address", "add", "10.77.9.9/32", "dev", "lo"]);
    let mac = end.mac.unwrap().to_string();
    pod.exec(["ip", "neigh", "replace", "169.254.1.1", "lladdr", &mac, "dev", "eth0"]);
    let ping = pod.try_exec(["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.77.9.9"]);
    assert!(!ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
    let counters = node.namespace.exec(["cat", "/proc/net/snmp"]);
    let mut icmp = counters.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (icmp.next().unwrap(), icmp.next().unwrap());
    let echos = names.split(' ').position(|name| name == "InEchos").unwrap();
    assert_eq!(values.split(' ').nth(echos), Some("0"), "{counters}");
}

#[test]
fn one_family_alone_leaves_the_other_off() {
    requires_a_node!();
    let mut node = Node::new("family");
    let pod = Namespace::new("familypod");
    let _stand_in = node.stand_in(Manner::Serves);

    node.config["ipam"]["ranges"] = json!([[{ "subnet": "10.77.0.0/24" }]]);
    let result = node.add("four", &pod).ok();
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "169.254.1.1" }]));
    assert_eq!(pod.exec(["ip", "-6", "address", "show", "dev", "eth0"]), "");
    let disabled = |of: &str| {
        let read = || sysctl::read(sysctl::Family::V6, of, "disable_ipv6").unwrap();
        in_namespace(pod.path(), read).unwrap()
    };
    assert_eq!((disabled("eth0"), disabled("default")), ("1".to_owned(), "0".to_owned()));
    node.check("four", &pod, &result).ok();
    node.del("four", &pod).ok();

    // Container runtimes leave a namespace like this.
    pod.exec(["sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1"]);
    pod.exec(["sysctl", "-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"]);
    node.config["ipam"]["ranges"] = json!([[{ "subnet": "fd00:77::/64" }]]);
    let result = node.add("six", &pod).ok();
    assert_eq!(result["routes"], json!([{ "dst": "::/0", "gw": "fe80::1" }]));
    assert_eq!(pod.exec(["ip", "-4", "route"]), "");
    node.check("six", &pod, &result).ok();
    node.del("six", &pod).ok();
}

#[test]
fn every_version_of_the_specification() {
    requires_a_node!();
    let mut node = Node::new("versions");
    let pod = Namespace::new("versionspod");
    let _stand_in = node.stand_in(Manner::Serves);
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        node.config["cniVersion"] = json!(version);
        let result = node.add("db", &pod).ok();
        assert_eq!(result["cniVersion"], version);
        let checked = node.check("db", &pod, &result);
        if version == "0.3.1" {
            assert!(checked.err(1).contains("CHECK needs cniVersion 0.4.0"));
        } else {
            checked.ok();
        }
        node.del("db", &pod).ok();
        node.assert_clean(&pod);
    }
}

#[test]
fn what_the_pod_object_is_called_travels_along() {
    requires_a_node!();
    let node = Node::new("uid");
    let pod = Namespace::new("uidpod");
    let stand_in = node.stand_in(Manner::Serves);
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b.c;K8S_POD_UID=1234-ab;X=y";
    let netns = pod.path().display().to_string();
    let call = |command| {
        node.call_with(&[
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", "net1"),
            ("CNI_PATH", crate::node::PLUGINS),
            ("CNI_ARGS", args),
        ])
    };
    call("ADD").ok();
    let Some(Request::AttachPod(request)) = stand_in.requests().pop() else {
        panic!("{:?}", stand_in.requests())
    };
    assert_eq!(request.uid.as_deref(), Some("1234-ab"));
    assert_eq!((request.name.as_str(), request.interface.as_str()), ("b.c", "net1"));
    call("DEL").ok();
    node.assert_clean(&pod);
}
