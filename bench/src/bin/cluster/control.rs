//! The control side at cluster scale, seen from one node with 250 pods.
//!
//! ```text
//! cargo run --release -p bench --bin cluster -- control [--pods 1000,10000,150000]
//! ```
//!
//! Each namespace has 50 pods, and each node 25, or more where there would be over 5,000
//! nodes. There are three to four policies to a namespace, with selectors in and across
//! namespaces, named ports and blocks with exceptions, one in five of them for egress, and two
//! cluster-wide policies. Each event is applied alone, as if it had come alone, and is done when the
//! only worker of a switch, which serves a memory port for each local pod, has taken over the snapshot
//! that came of it.

use std::time::{Duration, Instant};

use bench::attach::milliseconds;
use bench::{Samples, print_table, process};
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use control::objects::{Read, read};
use control::{Control, Object, Scope};
use dataplane::port::memory::Wire;
use dataplane::switch::{Config, RxMode};
use dataplane::{Memory, Switch};
use serde_json::{Value, json};
use snapshot::{NodeContext, NodePort, PortRole, SnapshotMaker};

const LOCAL_PODS: usize = 250;
/// Each local pod is one of four at least.
const LEAST_PODS: u64 = 4 * LOCAL_PODS as u64;
/// Nodes that Kubernetes supports.
const MOST_NODES: usize = 5_000;
const PODS_IN_NAMESPACE: usize = 50;
const ROUNDS: usize = 2_000;
const SUSTAINED: usize = 20_000;

#[derive(Debug, Parser)]
#[command(about = "The control side at cluster scale")]
struct Args {
    /// Pods of each cluster
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 150_000],
        value_parser = RangedU64ValueParser::<usize>::new().range(LEAST_PODS..=1 << 24))]
    pods: Vec<usize>,
}

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse_from(args);
    let mut rows: Vec<Vec<String>> = MEASURES.map(|(name, _)| vec![name.to_owned()]).into();
    for pods in &args.pods {
        let cluster = Cluster { pods: *pods, nodes: (pods / 25).min(MOST_NODES) };
        eprintln!("{pods} pods");
        rows.iter_mut().zip(measure(&cluster)?).for_each(|(row, figure)| row.push(figure));
    }
    rows.iter_mut().zip(MEASURES).for_each(|(row, (_, aim))| row.push(aim.to_owned()));
    let sizes: Vec<String> = args.pods.iter().map(|pods| format!("{pods} pods")).collect();
    let mut head = vec!["measure"];
    head.extend(sizes.iter().map(String::as_str));
    head.push("aim at 150000");
    println!();
    print_table(&head, &rows);
    Ok(())
}

/// A measure, and its aim.
const MEASURES: [(&str, &str); 13] = [
    ("nodes", ""),
    ("policies", ""),
    ("objects in memory to first snapshot in force, ms", "< 2000"),
    ("tables", ""),
    ("remote pod event, to the view, µs", ""),
    ("remote pod event, in force, µs", "median < 200"),
    ("tables compiled for these events", "0"),
    ("policy change, to the view, ms", ""),
    ("policy change, in force, ms", "median < 5"),
    ("1,000 pod events a second, % of a core", "< 25"),
    ("longest such event, in force, ms", "< 50"),
    ("99 % of them within, ms", ""),
    ("resident, MB", "< 500"),
];

/// A switch with a port for each local pod.
struct Rig {
    switch: Switch,
    ports: Vec<NodePort>,
    /// Without services or other nodes.
    context: NodeContext,
    maker: SnapshotMaker,
    generation: u64,
}

impl Rig {
    fn new(control: &Control) -> Self {
        let (memory, frames) = Memory::heap(2048, 4096);
        let config = Config { workers: 1, rx_mode: RxMode::Adaptive, ..Config::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).expect("a worker starts");
        let mut ports = Vec::new();
        for (key, pod) in control.view().pods.iter() {
            let id = switch.free_port_id().expect("a port is free");
            switch.add_port(id, Wire::default().port());
            ports.push(NodePort::new(id, PortRole::Pod(key.clone(), pod.addresses.clone())));
        }
        let (context, maker) = (NodeContext::default(), SnapshotMaker::default());
        Self { switch, ports, context, maker, generation: 0 }
    }

    /// Hands the view over to the worker.
    fn publish(&mut self, control: &Control) {
        self.generation += 1;
        let (context, ports) = (self.context.clone(), self.ports.clone());
        let view = control.view();
        let snapshot = self.maker.snapshot(&view, "node-0", context, self.generation, ports);
        self.switch.publish(&snapshot);
    }

    /// Waits until the worker decides by it.
    fn wait(&self) {
        while self.switch.generation() < self.generation {
            std::thread::yield_now();
        }
    }
}

/// Times of an event: to the view, to the end of this thread's work, until in force.
struct Took {
    view: Duration,
    work: Duration,
    in_force: Duration,
    /// Whether there was anything to publish.
    is_news: bool,
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

    /// Some pod on the node that is measured: one in every so many, at changing places
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
        let http = json!([{"port": "http"}]);
        let egress = match index % 10 {
            4 => Some(json!({"to": [{"podSelector": app(index + 1)}], "ports": http})),
            5 => Some(json!({"to": [{"namespaceSelector": {}, "podSelector": app(index)},
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": [format!("10.{}.0.0/16", index % 8)]}}],
                "ports": [{"port": port}, {"port": 53, "protocol": "UDP"}]})),
            _ => None,
        };
        if let Some(egress) = egress {
            return json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": format!("ns-{namespace}"),
                    "name": format!("policy-{index}")},
                "spec": {"podSelector": app(self.selected(index)), "policyTypes": ["Egress"],
                    "egress": [egress]}});
        }
        let rule = match index % 10 {
            0..4 => json!({"from": [{"podSelector": app(index + 1)}], "ports": [{"port": port}]}),
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

    /// No pod reaches the metadata address or nodes, but for DNS.
    fn cluster_wide(&self) -> [Value; 2] {
        let dns = json!([{"udp": {"destinationPort": {"number": 53}}}]);
        [
            json!({"apiVersion": "policy.networking.k8s.io/v1alpha2",
                "kind": "ClusterNetworkPolicy", "metadata": {"name": "nodes"},
                "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                    "egress": [
                        {"action": "Pass", "to": [{"nodes": {}}], "protocols": dns},
                        {"action": "Deny", "to": [{"nodes": {}}]}]}}),
            json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
                "metadata": {"name": "metadata"},
                "spec": {"egress": [{"action": "Deny",
                    "to": [{"networks": ["169.254.169.254/32"]}]}]}}),
        ]
    }

    fn objects(&self) -> Vec<Object> {
        let namespaces = (0..self.namespaces()).map(|index| self.namespace(index));
        let nodes = (0..self.nodes).map(|index| self.node(index));
        let pods = (0..self.pods).map(|index| self.pod(index, 0));
        let policies = (0..self.policies()).map(|index| self.policy(index, 80));
        let all = namespaces.chain(nodes).chain(pods).chain(policies).chain(self.cluster_wide());
        all.map(object).collect()
    }
}

fn object(value: Value) -> Object {
    match read(value) {
        Read::Object(object, faults) if faults.is_empty() => object,
        other => panic!("{other:?}"),
    }
}

fn measure(cluster: &Cluster) -> std::io::Result<[String; MEASURES.len()]> {
    let objects = cluster.objects();
    let mut control = Control::new(Scope::Node("node-0".into()));
    let began = Instant::now();
    control.resync(objects);
    let view = control.commit().expect("a first view");
    assert_eq!(view.pods.len(), LOCAL_PODS);
    let mut first = began.elapsed();
    let mut rig = Rig::new(&control);
    let began = Instant::now();
    rig.publish(&control);
    rig.wait();
    first += began.elapsed();
    let tables = control.figures().tables;

    let known = known(cluster, &mut control, &mut rig);
    let compiled = control.figures().compiled;
    let [mut to_view, mut in_force] = [const { Samples::new() }; 2];
    for round in 0..ROUNDS {
        let pod = known[round % known.len()];
        let apply = object(cluster.pod(pod, 0));
        let gone = apply.reference();
        let went = timed(&mut control, &mut rig, |control| control.delete(&gone));
        let came = timed(&mut control, &mut rig, |control| control.apply(apply));
        for took in [went, came] {
            assert!(took.is_news, "the pod is in a peer set of this node");
            to_view.add(took.view.as_secs_f64() * 1e6);
            in_force.add(took.in_force.as_secs_f64() * 1e6);
        }
    }
    let compiled = control.figures().compiled - compiled;

    let [mut policy_view, mut policy_in_force] = [const { Samples::new() }; 2];
    for round in 0..ROUNDS / 4 {
        // A policy that selects pods of this node gets another port, and the old one back.
        let policy = cluster.policy_of(cluster.local(round * 7));
        let Some(index) = policy.filter(|index| index % 10 < 8) else { continue };
        for port in [81 + round, 80] {
            let policy = object(cluster.policy(index, port));
            let took = timed(&mut control, &mut rig, |control| control.apply(policy));
            if !took.is_news {
                continue;
            }
            policy_view.add(milliseconds(took.view));
            policy_in_force.add(milliseconds(took.in_force));
        }
    }

    let (mut spent, mut waited) = (Duration::ZERO, Samples::new());
    for round in 0..SUSTAINED {
        // A pod of a peer set goes, and comes back with the next event; one event in a hundred is
        // a local pod's, which gets a label it did not have.
        let pod = known[round / 2 % known.len()];
        let local = object(cluster.pod(cluster.local(round / 100), 1 + round));
        let back = object(cluster.pod(pod, 0));
        let took = timed(&mut control, &mut rig, |control| match (round % 100, round % 2) {
            (99, _) => {
                control.apply(back);
                control.apply(local);
            }
            (_, 0) => control.delete(&back.reference()),
            _ => control.apply(back),
        });
        assert!(took.is_news, "something changes");
        spent += took.work;
        waited.add(milliseconds(took.in_force));
    }
    let share = spent.as_secs_f64() / SUSTAINED as f64 * 1_000.0 * 100.0;
    let resident = process::memory(std::process::id(), "VmRSS")? as f64 / (1 << 20) as f64;
    Ok([
        cluster.nodes.to_string(),
        (cluster.policies() + 2).to_string(),
        format!("{:.0}", milliseconds(first)),
        tables.to_string(),
        to_view.to_string(),
        in_force.to_string(),
        compiled.to_string(),
        policy_view.to_string(),
        policy_in_force.to_string(),
        format!("{share:.1}"),
        format!("{:.2}", waited.quantile(1.0)),
        format!("{:.2}", waited.quantile(0.99)),
        format!("{resident:.0}"),
    ])
}

fn timed(control: &mut Control, rig: &mut Rig, event: impl FnOnce(&mut Control)) -> Took {
    let began = Instant::now();
    event(control);
    let is_news = control.commit().is_some();
    let view = began.elapsed();
    if is_news {
        rig.publish(control);
    }
    let work = began.elapsed();
    rig.wait();
    Took { view, work, in_force: began.elapsed(), is_news }
}

/// Remote pods that are in peer sets of this node: without them something is different.
fn known(cluster: &Cluster, control: &mut Control, rig: &mut Rig) -> Vec<usize> {
    let mut known = Vec::new();
    // Coprime with the pods of a namespace, so that pods of every application are among them.
    let step = (cluster.pods / 20_000) | 1;
    let step = if step.is_multiple_of(5) { step + 2 } else { step };
    for pod in (0..cluster.pods).step_by(step).filter(|pod| !cluster.is_local(*pod)) {
        let back = object(cluster.pod(pod, 0));
        let reference = back.reference();
        // Whatever pod goes, its sessions end.
        timed(control, rig, |control| control.delete(&reference));
        let is_known = timed(control, rig, |control| control.apply(back)).is_news;
        known.extend(is_known.then_some(pod));
        if known.len() == 500 {
            break;
        }
    }
    known
}
