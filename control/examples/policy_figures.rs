//! Measures what one NetworkPolicy of a megabyte costs a node with 250 pods that it selects:
//! processor time and memory, by shape.
//!
//! ```sh
//! cargo run --release -p control --example policy_figures
//! ```

use std::error::Error;
use std::fs;
use std::time::Duration;

use control::objects::{Read, read};
use control::{Control, Object, PodAcl, Scope};
use serde_json::{Value, json};

/// Pods of the node.
const PODS: u32 = 250;
/// Length of the policy, in bytes of JSON.
const LENGTH: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:<28} {:>8} {:>9} {:>9} {:>8}", "shape", "rules", "read", "in force", "memory");
    for (name, make) in SHAPES {
        let text = policy(*make).to_string();
        let mut control = Control::new(Scope::Node("n1".into()));
        for n in 0..PODS {
            control.apply(object(pod(n))?);
        }
        control.commit();
        let (began, before) = (processor_time(), resident()?);
        let policy = object(serde_json::from_str(&text)?)?;
        let read = processor_time() - began;
        control.apply(policy);
        let view = control.commit().ok_or("nothing changed")?;
        let all = processor_time() - began;
        let rules = match &view.pods.values().next().ok_or("no pod")?.from_pod {
            PodAcl::Table(table) => table.rules().len(),
            PodAcl::Open => 0,
        };
        let memory = resident()?.saturating_sub(before) as f64 / 1e6;
        let milliseconds = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
        let [read, all] = [read, all].map(milliseconds);
        println!("{name:<28} {rules:>8} {read:>9} {all:>9} {memory:>5.1} MB");
    }
    Ok(())
}

/// Makes the `n`th part of a policy's egress: rules, or peers and ports of one.
type Make = fn(u32) -> [Option<Value>; 3];

const SHAPES: &[(&str, Make)] = &[
    ("networks and ports", |n| [None, Some(network(n)), Some(json!({"port": 2 * n % 65_535 + 1}))]),
    ("selectors and ports", |n| {
        [None, Some(selector(n)), Some(json!({"port": 2 * n % 65_535 + 1}))]
    }),
    ("networks", |n| [None, Some(network(n)), None]),
    ("selectors", |n| [None, Some(selector(n)), None]),
    ("selectors of namespaces", |n| {
        [None, Some(json!({"namespaceSelector": {"matchLabels": {format!("k{n}"): "v"}}})), None]
    }),
    ("ports", |n| [None, None, Some(json!({"port": 2 * n % 65_535 + 1}))]),
    ("rules of one port", |n| [Some(json!({"ports": [{"port": 2 * n % 65_535 + 1}]})), None, None]),
    ("rules of one peer", |n| {
        [
            Some(
                json!({"to": [{"podSelector": {"matchLabels": {format!("k{}", n % 1000): "v"}}}]}),
            ),
            None,
            None,
        ]
    }),
    ("rules of overlapping networks", |n| {
        let [_, b, c, d] = (n % 1000).to_be_bytes();
        let except = format!("9.{b}.{c}.{d}/32");
        [Some(json!({"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [except]}}]})), None, None]
    }),
    ("too many peer sets", |n| [Some(json!({"to": [selector(n)]})), None, None]),
];

fn network(n: u32) -> Value {
    let [_, a, b, c] = n.to_be_bytes();
    json!({"ipBlock": {"cidr": format!("{}.{b}.{c}.0/24", a + 20)}})
}

fn selector(n: u32) -> Value {
    json!({"podSelector": {"matchLabels": {format!("k{n}"): "v"}}})
}

/// A policy of [`LENGTH`] bytes or a little more.
fn policy(make: Make) -> Value {
    let [mut rules, mut peers, mut ports]: [Vec<Value>; 3] = Default::default();
    let mut length = 0;
    for n in 0.. {
        for (part, list) in make(n).into_iter().zip([&mut rules, &mut peers, &mut ports]) {
            length += part.as_ref().map_or(0, |part| part.to_string().len() + 1);
            list.extend(part);
        }
        if length >= LENGTH {
            break;
        }
    }
    if rules.is_empty() {
        rules.push(json!({"to": peers, "ports": ports}));
    }
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "x", "name": "big"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": rules}})
}

fn pod(n: u32) -> Value {
    let [.., c, d] = n.to_be_bytes();
    let labels = json!({"app": format!("a{}", n % 10), "k7": "v", "pod-template-hash": "0"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "x", "name": format!("p{n}"), "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": format!("10.0.{c}.{d}")}]}})
}

fn object(value: Value) -> Result<Object, Box<dyn Error>> {
    match read(value) {
        Read::Object(object, _) => Ok(object),
        other => Err(format!("{other:?}").into()),
    }
}

/// Processor time of the process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

/// Memory of the process, in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).ok_or("/proc/self/statm: too short")?.parse()?;
    Ok(pages * 4096)
}
