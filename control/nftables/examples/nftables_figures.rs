//! Costs of rules in the kernel: first load, one pod's change, one policy's change, a packet.
//!
//! ```text
//! cargo run --release -p nftables --example nftables_figures [PODS [POLICIES [PACKETS]]]     (as root)
//! ```
//!
//! By default 100,000 pods in 2,000 namespaces, 10,000 policies, 100 pods on this node in
//! namespaces of their own with five policies each; every local policy names 1,000 pods or more. A
//! change is measured beside the plain algorithm, which writes all rules anew.
//!
//! Packets of one flow go from one pod to another through the kernel's routing, with a policy that
//! names the sender among 1,000 and among PODS addresses, beside an empty ruleset and beside conntrack
//! alone. The sender's thread does all the work, so its time for a packet is the path's.
//!
//! Everything happens in network namespaces of the example's own. A figure is a median, with the least
//! and the most in brackets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::objects::{Read, read};
use control::{Control, Object, PodKey, Scope, View};
use nftables::{Attachment, Enforcer, Renderer, Site};
use serde_json::{Value, json};
use testkit::packet::{SWITCH_MAC, udp};
use testkit::{Namespace, RawSender};

const NAMESPACES: usize = 2_000;
const PODS: usize = 100_000;
const POLICIES: usize = 10_000;
const PACKETS: usize = 200_000;
const LOCAL: usize = 100;
/// Changes of each kind, and everything written anew.
const ROUNDS: usize = 30;
const LOADS: usize = 5;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        args.get(at)
            .map_or(default, |text| text.parse().expect("PODS, POLICIES and PACKETS are numbers"))
    };
    let (pods, policies, count) = (number(0, PODS), number(1, POLICIES), number(2, PACKETS));
    assert!(pods >= 2 * LOCAL && policies > 7 && count > 0, "too few");
    let namespace = Namespace::new("figures");
    namespace.enter(|| changes(pods, policies));
    drop(namespace);
    packets(pods, count);
}

/// The median, the least and the most.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{:.2?} ({:.2?} to {:.2?})", times[times.len() / 2], times[0], times[times.len() - 1])
}

fn object(value: Value) -> Object {
    match read(value) {
        Read::Object(object, faults) if faults.is_empty() => object,
        other => panic!("{other:?}"),
    }
}

fn pod(index: usize, labels: Value) -> Object {
    let (a, b, c) = (index >> 16, index >> 8 & 255, index & 255);
    let node = if index < LOCAL { "here" } else { "elsewhere" };
    object(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": format!("n{}", index % NAMESPACES), "name": format!("p{index}"),
            "labels": labels},
        "spec": {"nodeName": node, "containers": []},
        "status": {"podIPs": [{"ip": format!("10.{a}.{b}.{c}")}]}}))
}

/// Lets the pods of a team in, a hundredth of all.
fn policy(index: usize, team: usize, port: u16) -> Object {
    object(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": format!("n{}", index % NAMESPACES), "name": format!("q{index}")},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"namespaceSelector": {}, "podSelector":
                {"matchLabels": {"team": team.to_string()}}}], "ports": [{"port": port}]}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.2.0/24"]}}]}]}}))
}

fn site(view: &View) -> Site {
    let attachment = |(index, key): (usize, &PodKey)| {
        (key.clone(), Attachment { interface: format!("veth{index}"), bridge: None })
    };
    Site {
        node: Some("here".into()),
        attachments: view.pods.keys().enumerate().map(attachment).collect(),
        bridge_filter: true,
        ..Site::default()
    }
}

fn changes(pods: usize, policies: usize) {
    let mut objects: Vec<Object> = (0..NAMESPACES)
        .map(|index| {
            object(json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": format!("n{index}")}}))
        })
        .collect();
    objects.extend((0..pods).map(|index| pod(index, json!({"team": (index % 100).to_string()}))));
    objects.extend((0..policies).map(|index| policy(index, index % 100, 8080)));
    let mut control = Control::new(Scope::Node("here".into()));
    control.list_peer_sets();
    control.resync(objects);
    control.commit();
    let (mut renderer, mut enforcer) = (Renderer::default(), Enforcer::default());
    let (mut rendered, mut in_force) = (Vec::new(), Vec::new());
    let mut sizes = [0; 4];
    for _ in 0..LOADS {
        enforcer.remove().unwrap();
        (renderer, enforcer) = Default::default();
        let began = Instant::now();
        let ruleset = renderer.render(&control.view(), &site(&control.view()));
        rendered.push(began.elapsed());
        sizes = ruleset.sizes();
        enforcer.set(ruleset).unwrap();
        in_force.push(began.elapsed());
    }
    let [sets, elements, chains, rules] = sizes;
    println!("{pods} pods, {policies} policies, {LOCAL} local pods");
    println!("{sets} sets with {elements} elements, {chains} chains with {rules} rules");
    println!("first load: {} to render, {} in force", spread(rendered), spread(in_force));
    let mut step = |what: &str, change: &mut dyn FnMut(&mut Control, usize)| {
        let [mut viewed, mut rendered, mut done] = [const { Vec::new() }; 3];
        for round in 0..ROUNDS {
            let began = Instant::now();
            change(&mut control, round);
            control.commit();
            viewed.push(began.elapsed());
            let ruleset = renderer.render(&control.view(), &site(&control.view()));
            rendered.push(began.elapsed());
            enforcer.set(ruleset).unwrap();
            done.push(began.elapsed());
        }
        let [viewed, rendered, done] = [viewed, rendered, done].map(spread);
        println!("{what}: {viewed} to the view, {rendered} rendered, {done} in force");
    };
    let other = pods / 2;
    step("one pod's change (another team)", &mut |control, round| {
        control.apply(pod(other, json!({"team": (round % 50).to_string()})));
    });
    step("one pod's change (in no set)", &mut |control, round| {
        control.apply(pod(other + 1, json!({"x": round.to_string()})));
    });
    step("one policy's change (another port)", &mut |control, round| {
        control.apply(policy(7, 7, 9000 + round as u16));
    });
    step("one policy's change (another peer)", &mut |control, round| {
        control.apply(policy(7, round % 90, 8080));
    });
    assert_eq!(enforcer.written_whole(), 1, "all later changes were differences");
    let anew = (0..LOADS).map(|round| {
        let began = Instant::now();
        control.apply(policy(7, 7, 9100 + round as u16));
        control.commit();
        let ruleset = Renderer::default().render(&control.view(), &site(&control.view()));
        Enforcer::default().set(ruleset).unwrap();
        began.elapsed()
    });
    println!("one policy's change, all rules written anew: {} in force", spread(anew.collect()));
}

/// Measurements of each kind.
const TIMES: usize = 5;
const SENDER: &str = "10.200.0.1";
const RECEIVER: &str = "10.200.0.2";

fn packets(pods: usize, packets: usize) {
    let [node, sender, receiver] = ["figures", "sender", "receiver"].map(Namespace::new);
    node.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    for (n, (pod, address)) in [(&sender, SENDER), (&receiver, RECEIVER)].into_iter().enumerate() {
        let (inside, mac) = (pod.name(), format!("02:00:00:00:01:0{n}"));
        let switch: Vec<String> = SWITCH_MAC.iter().map(|byte| format!("{byte:02x}")).collect();
        let switch = switch.join(":");
        let script = format!(
            "set -e; ip link add veth{n} address {switch} type veth peer name eth0 netns {inside} \
             address {mac}; ip link set veth{n} up; ip route add {address} dev veth{n}; \
             ip neigh add {address} dev veth{n} lladdr {mac} nud permanent"
        );
        node.exec(["sh", "-c", &script]);
        pod.exec(["ip", "link", "set", "eth0", "up"]);
    }
    let socket = sender.enter(|| RawSender::open("eth0").unwrap());
    let packet = udp(&format!("{SENDER}:1000"), &format!("{RECEIVER}:53"));
    let frame = packet.from_mac([2, 0, 0, 0, 1, 0]).to_mac(SWITCH_MAC).build();
    let received = || -> usize {
        let path = "/sys/class/net/eth0/statistics/rx_packets";
        receiver.exec(["cat", path]).trim().parse().expect("a number")
    };
    let mut measured: Vec<(String, Vec<Duration>)> = Vec::new();
    for _ in 0..TIMES {
        let mut measure = |what: String| {
            let before = received();
            let began = Instant::now();
            (0..packets).for_each(|_| socket.send(&frame).unwrap());
            let time = began.elapsed() / packets as u32;
            assert!(received() - before >= packets * 99 / 100, "{what}: packets were lost");
            match measured.iter_mut().find(|(name, _)| *name == what) {
                Some((_, times)) => times.push(time),
                None => measured.push((what, vec![time])),
            }
        };
        measure("an empty ruleset".to_owned());
        let chain = "chain c { type filter hook forward priority 0; ct state invalid drop; }";
        node.exec(["nft", &format!("table inet conntrack {{ {chain}; }}")]);
        measure("conntrack alone".to_owned());
        node.exec(["nft", "delete", "table", "inet", "conntrack"]);
        for count in [1_000, pods] {
            let view = neighbours(count);
            let at = |key: &PodKey| {
                let interface = if &*key.name == "sender" { "veth0" } else { "veth1" };
                (key.clone(), Attachment { interface: interface.to_owned(), bridge: None })
            };
            let attachments = view.pods.keys().map(at).collect();
            let site = Site { node: Some("here".into()), attachments, ..Site::default() };
            let ruleset = Renderer::default().render(&view, &site);
            let mut enforcer = Enforcer::default();
            node.enter(|| enforcer.set(ruleset)).unwrap();
            measure(format!("a policy with {count} addresses"));
            node.enter(|| enforcer.remove()).unwrap();
        }
    }
    for (what, times) in measured {
        println!("a packet, {what}: {}", spread(times));
    }
}

/// Two local pods, and so many elsewhere that the receiver's policy lets in as well.
fn neighbours(count: usize) -> Arc<View> {
    let mut control = Control::new(Scope::Node("here".into()));
    control.list_peer_sets();
    let local = |name: &str, address: &str| {
        object(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "n", "name": name, "labels": {"peer": "yes"}},
            "spec": {"nodeName": "here", "containers": []},
            "status": {"podIPs": [{"ip": address}]}}))
    };
    let mut objects = vec![local("sender", SENDER), local("receiver", RECEIVER)];
    objects.extend((LOCAL..LOCAL + count).map(|index| pod(index, json!({"peer": "yes"}))));
    let peers = json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"peer": "yes"}}}]);
    let ports = json!([{"port": 53, "protocol": "UDP"}]);
    objects.push(object(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "n", "name": "p"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": ports}], "egress": [{"to": peers}]}})));
    control.resync(objects);
    control.commit();
    control.view()
}
