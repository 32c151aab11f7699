//! Counterexamples in files that `podgate replay` plays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use control::PodKey;
use control::model::Pod;
use dataplane::capture::Writer;
use serde_json::{Value, json};

use crate::policy::prove::{Connection, Counterexample, Prover};
use crate::probe::opening::Opening;

/// The node of a kept counterexample.
const NODE: &str = "node";

/// Writes the policies, the ends and the packets of a counterexample.
pub(super) fn keep(prover: &Prover, found: &Counterexample, folder: &Path) -> io::Result<()> {
    let manifests = prover.manifests();
    let mut items = manifests.sources.clone();
    let mut pods: BTreeMap<&PodKey, BTreeSet<IpAddr>> = BTreeMap::new();
    for (key, address) in found.connections.iter().flat_map(|it| &it.ends) {
        if let Some(key) = key {
            pods.entry(key).or_default().insert(*address);
        }
    }
    let pods = manifests.pods().filter_map(|pod| Some((pod, pods.get(&pod.key)?)));
    let pods: Vec<(&Pod, &BTreeSet<IpAddr>)> = pods.collect();
    for item in pods.iter().flat_map(|(pod, addresses)| objects(prover, pod, addresses)) {
        if !items.contains(&item) {
            items.push(item);
        }
    }
    let node = pods.iter().find_map(|(pod, _)| prover.node_of(pod.addresses.first().copied()?));
    let addresses = node.map_or(&[][..], |node| &node.addresses);
    let addresses: Vec<Value> =
        addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
    items.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"addresses": addresses}}));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::create_dir_all(folder)?;
    fs::write(folder.join("manifests.yaml"), format!("{list:#}\n"))?;
    let mut writer = Writer::new(fs::File::create(folder.join("packet.pcapng"))?)?;
    for (second, connection) in (1..).zip(&found.connections) {
        let frame = opening(connection).frame().unwrap_or_default();
        let length = u32::try_from(frame.len()).unwrap_or_default();
        writer.write(None, Duration::from_secs(second), &frame, length)?;
    }
    writer.finish().map(|_| ())
}

fn opening(connection: &Connection) -> Opening {
    let [(_, source), (_, destination)] = connection.ends;
    Opening {
        source,
        destination,
        protocol: connection.protocol,
        source_port: 40_000,
        destination_port: connection.port,
    }
}

/// A pod on the node, with these addresses, and its namespace if no file has it.
fn objects(prover: &Prover, pod: &Pod, addresses: &BTreeSet<IpAddr>) -> Vec<Value> {
    let PodKey { namespace, name } = &pod.key;
    let labels: serde_json::Map<String, Value> =
        pod.labels.iter().map(|(key, value)| (key.to_string(), value.to_string().into())).collect();
    let ports: Vec<Value> = pod
        .ports
        .named
        .iter()
        .map(|it| json!({"name": it.name, "containerPort": it.number, "protocol": it.protocol.to_string()}))
        .collect();
    let addresses: Vec<Value> = addresses.iter().map(|it| json!({"ip": it})).collect();
    let namespace = prover.named(namespace);
    let mut found = vec![json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": addresses}})];
    let is_it = |it: &Value| it["kind"] == "Namespace" && it["metadata"]["name"] == *namespace;
    let labels = prover.labels(&pod.key.namespace);
    if let Some(labels) = labels.filter(|_| !prover.manifests().sources.iter().any(is_it)) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| (key.to_string(), value.to_string().into())).collect();
        found.push(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels}}));
    }
    found
}
