//! The control side at cluster scale, seen from one cluster node with 250 pods.
//!
//! ```text
//! cargo run --release -p bench --bin control
//! ```
//!
//! Clusters of 1,000, 10,000 and 150,000 pods, 50 to a namespace; three to four policies to a
//! namespace, with selectors in and across namespaces, named ports and blocks with
//! exceptions. Each event is applied and committed alone, as if it had come alone.

use std::fs;
use std::time::{Duration, Instant};

use bench::{Samples, print_table};
use control::objects::{Read, read};
use control::{Control, Object, Scope};
use serde_json::{Value, json};

const LOCAL_PODS: usize = 250;
const PODS_IN_NAMESPACE: usize = 50;
const ROUNDS: usize = 2_000;
const SUSTAINED: usize = 20_000;

fn main() {
    let mut rows = Vec::new();
    for (pods, nodes) in [(1_000, 40), (10_000, 400), (150_000, 5_000)] {
        rows.push(measure(&Cluster { pods, nodes }));
    }
    println!();
    print_table(
        &[
            "pods",
            "policies",
            "first snapshot ms",
            "tables",
            "remote pod event µs",
            "compiled for it",
            "policy change ms",
            "at 1,000 events/s % of a core",
            "longest event ms",
            "resident MB",
        ],
        &rows,
    );
}

struct Cluster {
    pods: usize,
    nodes: usize,
}

impl Cluster {
    fn namespaces(&self) -> usize {
        self.pods / PODS_IN_NAMESPACE
    }

    fn policies(&self) -> usize {
        self.namespaces() * 10 / 3
    }

    /// Some pod on the cluster node that is measured: one in every so many, at changing places
    /// in their namespaces.
    fn local(&self, nth: usize) -> usize {
        let step = self.pods / LOCAL_PODS;
        let nth = nth % LOCAL_PODS;
        nth * step + nth * 7 % step.min(PODS_IN_NAMESPACE)
    }

    fn is_local(&self, pod: usize) -> bool {
        self.local(pod / (self.pods / LOCAL_PODS)) == pod
    }

    /// The application a pod belongs to.
    fn app(pod: usize) -> usize {
        pod % PODS_IN_NAMESPACE % 5
    }

    /// The application whose pods a policy selects.
    fn selected(&self, policy: usize) -> usize {
        (policy + policy / self.namespaces()) % 5
    }

    /// A policy that selects the local pod, if there is one.
    fn policy_of(&self, pod: usize) -> Option<usize> {
        let namespace = pod / PODS_IN_NAMESPACE;
        let candidates = (0..4).map(|nth| namespace + nth * self.namespaces());
        candidates
            .into_iter()
            .find(|it| *it < self.policies() && self.selected(*it) == Self::app(pod))
    }

    fn namespace(&self, index: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{index}"),
            "labels": {"team": format!("team-{}", index % 100), "stage": format!("s{}", index % 3)}}})
    }

    fn node(&self, index: usize) -> Value {
        let address = format!("172.16.{}.{}", index / 250, index % 250 + 1);
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{index}")},
            "spec": {"podCIDRs": [format!("10.{}.{}.0/24", index / 256, index % 256)]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    }

    fn pod(&self, index: usize, generation: usize) -> Value {
        let (namespace, nth) = (index / PODS_IN_NAMESPACE, index % PODS_IN_NAMESPACE);
        let node = if self.is_local(index) { 0 } else { 1 + index % (self.nodes - 1) };
        let app = Self::app(index);
        let address = format!("10.{}.{}.{}", index >> 16, index >> 8 & 255, index & 255);
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": format!("ns-{namespace}"), "name": format!("pod-{nth}"),
                "labels": {"app": format!("app-{app}"), "tier": format!("t{}", app % 2),
                    "pod-template-hash": format!("{:08x}", namespace * 5 + app),
                    "revision": format!("{generation}")}},
            "spec": {"nodeName": format!("node-{node}"), "containers": [{"name": "c",
                "ports": [{"name": "http", "containerPort": 8000 + app}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
    }

    fn policy(&self, index: usize, port: usize) -> Value {
        let namespace = index % self.namespaces();
        let app = |nth: usize| json!({"matchLabels": {"app": format!("app-{}", nth % 5)}});
        let team = json!({"matchLabels": {"team": format!("team-{}", index % 100)}});
        let rule = match index % 10 {
            0..6 => json!({"from": [{"podSelector": app(index + 1)}], "ports": [{"port": port}]}),
            6 => json!({"from": [{"namespaceSelector": team, "podSelector": app(index)}],
                "ports": [{"port": port}]}),
            7 => json!({"from": [{"namespaceSelector": {}, "podSelector": app(index / 7)}],
                "ports": [{"port": port}]}),
            8 => json!({"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}),
            _ => json!({"from": [{"ipBlock": {"cidr": format!("10.{}.0.0/16", index % 8),
                "except": [format!("10.{}.{}.0/24", index % 8, index % 256)]}}]}),
        };
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": format!("ns-{namespace}"), "name": format!("policy-{index}")},
            "spec": {"podSelector": app(self.selected(index)), "ingress": [rule]}})
    }

    fn objects(&self) -> Vec<Object> {
        let namespaces = (0..self.namespaces()).map(|index| self.namespace(index));
        let nodes = (0..self.nodes).map(|index| self.node(index));
        let pods = (0..self.pods).map(|index| self.pod(index, 0));
        let policies = (0..self.policies()).map(|index| self.policy(index, 80));
        namespaces.chain(nodes).chain(pods).chain(policies).map(object).collect()
    }
}

fn object(value: Value) -> Object {
    match read(value) {
        Read::Object(object, faults) if faults.is_empty() => object,
        other => panic!("{other:?}"),
    }
}

fn measure(cluster: &Cluster) -> Vec<String> {
    let objects = cluster.objects();
    let mut control = Control::new(Scope::Node("node-0".into()));
    let began = Instant::now();
    control.resync(objects);
    let view = control.commit().expect("a first view");
    let first = began.elapsed();
    assert_eq!(view.pods.len(), LOCAL_PODS);
    let tables = control.figures().tables;

    let compiled = control.figures().compiled;
    let mut events = Samples::default();
    for round in 0..ROUNDS {
        let pod = remote(cluster, round);
        let apply = object(cluster.pod(pod, 0));
        let gone = apply.reference();
        events.add(micros(timed(&mut control, |control| control.delete(&gone))));
        events.add(micros(timed(&mut control, |control| control.apply(apply))));
    }
    let compiled = control.figures().compiled - compiled;

    let mut policies = Samples::default();
    for round in 0..ROUNDS / 4 {
        // A policy that selects pods of this cluster node gets another port, and the old one back.
        let policy = cluster.policy_of(cluster.local(round * 7));
        let Some(index) = policy.filter(|index| index % 10 < 8) else { continue };
        for port in [81 + round, 80] {
            let policy = object(cluster.policy(index, port));
            let spent = timed(&mut control, |control| control.apply(policy));
            policies.add(spent.as_secs_f64() * 1e3);
        }
    }

    let (mut spent, mut longest) = (Duration::ZERO, Duration::ZERO);
    for round in 0..SUSTAINED {
        // One in a hundred pods is local, and each gets a label it did not have.
        let local = round % 100 == 0;
        let pod = if local { cluster.local(round / 100) } else { remote(cluster, round) };
        let apply = object(cluster.pod(pod, 1 + round));
        let took = timed(&mut control, |control| control.apply(apply));
        (spent, longest) = (spent + took, longest.max(took));
    }
    let share = spent.as_secs_f64() / SUSTAINED as f64 * 1_000.0 * 100.0;
    vec![
        cluster.pods.to_string(),
        cluster.policies().to_string(),
        format!("{:.0}", first.as_secs_f64() * 1e3),
        tables.to_string(),
        events.to_string(),
        compiled.to_string(),
        policies.to_string(),
        format!("{share:.1}"),
        format!("{:.2}", longest.as_secs_f64() * 1e3),
        format!("{:.0}", resident_mb()),
    ]
}

fn timed(control: &mut Control, event: impl FnOnce(&mut Control)) -> Duration {
    let began = Instant::now();
    event(control);
    control.commit();
    began.elapsed()
}

fn micros(spent: Duration) -> f64 {
    spent.as_secs_f64() * 1e6
}

/// Some remote pod of a namespace that has local ones, where policies look at it.
fn remote(cluster: &Cluster, round: usize) -> usize {
    let namespace = cluster.local(round * 7) / PODS_IN_NAMESPACE * PODS_IN_NAMESPACE;
    let candidates =
        (0..PODS_IN_NAMESPACE).map(|nth| namespace + (round + nth) % PODS_IN_NAMESPACE);
    candidates.into_iter().find(|pod| !cluster.is_local(*pod)).expect("not all are local")
}

/// Resident memory of this process.
fn resident_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kb.unwrap_or(f64::NAN) / 1024.0
}
