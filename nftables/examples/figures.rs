//! What rules in the kernel cost: first load, one pod's change, one policy's change.
//!
//! ```text
//! cargo run --release -p nftables --example figures      (as root)
//! ```
//!
//! 100,000 pods in 2,000 namespaces, 10,000 policies, 100 pods on this cluster node in namespaces of
//! their own with five policies each; every local policy names 1,000 pods or more. Rules go into a
//! network namespace of the example's own. Times are medians.

use std::time::{Duration, Instant};

use control::objects::{Read, read};
use control::{Control, Object, PodKey, Scope, View};
use nftables::{Attachment, Enforcer, Renderer, Site};
use serde_json::{Value, json};
use testkit::Namespace;

const NAMESPACES: usize = 2_000;
const PODS: usize = 100_000;
const POLICIES: usize = 10_000;
const LOCAL: usize = 100;
const ROUNDS: usize = 30;

fn main() {
    let namespace = Namespace::new("figures");
    namespace.enter(measure);
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

fn measure() {
    let mut objects: Vec<Object> = (0..NAMESPACES)
        .map(|index| {
            object(json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": format!("n{index}")}}))
        })
        .collect();
    objects.extend((0..PODS).map(|index| pod(index, json!({"team": (index % 100).to_string()}))));
    objects.extend((0..POLICIES).map(|index| policy(index, index % 100, 8080)));
    let mut control = Control::new(Scope::Node("here".into()));
    control.list_peer_sets();
    control.resync(objects);
    control.commit();
    let (mut renderer, mut enforcer) = (Renderer::default(), Enforcer::default());
    let began = Instant::now();
    let ruleset = renderer.render(&control.view(), &site(&control.view()));
    let rendered = began.elapsed();
    let [sets, elements, chains, rules] = ruleset.sizes();
    println!("{PODS} pods, {POLICIES} policies, {LOCAL} local pods");
    println!("{sets} sets with {elements} elements, {chains} chains with {rules} rules");
    enforcer.set(ruleset).unwrap();
    println!("first load: {rendered:?} to render, {:?} in force", began.elapsed());
    let mut step = |what: &str, change: &mut dyn FnMut(&mut Control, usize)| {
        let mut times: Vec<[Duration; 3]> = (0..ROUNDS)
            .map(|round| {
                let began = Instant::now();
                change(&mut control, round);
                control.commit();
                let viewed = began.elapsed();
                let ruleset = renderer.render(&control.view(), &site(&control.view()));
                let rendered = began.elapsed();
                enforcer.set(ruleset).unwrap();
                [viewed, rendered, began.elapsed()]
            })
            .collect();
        times.sort_by_key(|it| it[2]);
        let [viewed, rendered, done] = times[ROUNDS / 2];
        println!("{what}: {viewed:?} to the view, {rendered:?} rendered, {done:?} in force");
    };
    step("one pod's change (another team)", &mut |control, round| {
        control.apply(pod(50_000, json!({"team": (round % 50).to_string()})));
    });
    step("one pod's change (in no set)", &mut |control, round| {
        control.apply(pod(50_001, json!({"x": round.to_string()})));
    });
    step("one policy's change (another port)", &mut |control, round| {
        control.apply(policy(7, 7, 9000 + round as u16));
    });
    step("one policy's change (another peer)", &mut |control, round| {
        control.apply(policy(7, round % 90, 8080));
    });
    assert_eq!(enforcer.written_whole(), 1, "all later changes were differences");
}
