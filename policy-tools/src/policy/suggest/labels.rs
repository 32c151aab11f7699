//! Selectors of workloads: the fewest labels that no other workload of the namespace has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use control::Object;
use control::model::Pod;
use serde_json::{Value, json};

use super::is_of;
use crate::input::Manifests;
use crate::policy::flows::Party;
use crate::probe::Endpoint;

type Labels = BTreeMap<String, String>;

/// Labels that controllers add to pods one by one.
const OF_PODS: [&str; 6] = [
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
];

/// Labels that name a workload, the best first.
const NAMES: [&str; 5] =
    ["app.kubernetes.io/name", "app", "k8s-app", "name", "app.kubernetes.io/instance"];

/// The workloads of manifests, by namespace and name.
pub(super) struct Workloads<'a> {
    manifests: &'a Manifests,
    /// Labels that all pods of a workload have.
    labels: BTreeMap<(String, String), Labels>,
}

impl<'a> Workloads<'a> {
    pub(super) fn new(manifests: &'a Manifests) -> Self {
        let mut labels: BTreeMap<(String, String), Labels> = BTreeMap::new();
        for pod in pods(manifests) {
            let workload = manifests.workload(&pod.key);
            let Some((namespace, name)) = workload.split_once('/') else { continue };
            let own = pod.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            let own: Labels = own.filter(|(key, _)| !OF_PODS.contains(&key.as_str())).collect();
            labels
                .entry((namespace.to_owned(), name.to_owned()))
                .and_modify(|known| known.retain(|key, value| own.get(key) == Some(value)))
                .or_insert(own);
        }
        Self { manifests, labels }
    }

    pub(super) fn has(&self, namespace: &str, name: &str) -> bool {
        self.labels.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns whether policies do not apply to a workload, since it is on the host network.
    pub(super) fn is_on_host(&self, namespace: &str, name: &str) -> bool {
        self.of(namespace, name).any(|pod| pod.host_network)
    }

    fn of<'b>(&'b self, namespace: &'b str, name: &'b str) -> impl Iterator<Item = &'a Pod> + 'b {
        let pods = pods(self.manifests).filter(move |pod| *pod.key.namespace == *namespace);
        pods.filter(move |pod| is_of(self.manifests, &pod.key, name))
    }

    pub(super) fn pods(&self, namespace: &str, name: &str) -> Vec<Endpoint> {
        self.of(namespace, name).map(|pod| Endpoint::Pod(pod.key.clone())).collect()
    }

    /// A selector of one workload, and a note where it selects others too.
    pub(super) fn selector(&self, namespace: &str, name: &str) -> (Value, Option<String>) {
        let own = &self.labels[&(namespace.to_owned(), name.to_owned())];
        let others: Vec<(&String, &Labels)> = self
            .labels
            .iter()
            .filter(|((space, other), _)| space == namespace && other != name)
            .map(|((_, other), labels)| (other, labels))
            .collect();
        let is_apart = |chosen: &Labels| {
            !others
                .iter()
                .any(|(_, labels)| chosen.iter().all(|(key, value)| labels.get(key) == Some(value)))
        };
        let rank = |key: &str| NAMES.iter().position(|it| *it == key).unwrap_or(NAMES.len());
        let mut keys: Vec<&String> = own.keys().collect();
        keys.sort_by_key(|key| (rank(key), (*key).clone()));
        let mut chosen = Labels::new();
        for key in &keys {
            let alone = Labels::from([((*key).clone(), own[*key].clone())]);
            if is_apart(&alone) {
                return (json!({"matchLabels": alone}), None);
            }
        }
        for key in keys {
            chosen.insert(key.clone(), own[key].clone());
            if is_apart(&chosen) {
                return (json!({"matchLabels": chosen}), None);
            }
        }
        // Others have all these labels, and more.
        let more: BTreeSet<&String> = others
            .iter()
            .filter(|(_, labels)| own.iter().all(|(key, value)| labels.get(key) == Some(value)))
            .filter_map(|(_, labels)| labels.keys().find(|key| !own.contains_key(*key)))
            .collect();
        let alike: Vec<&str> = others
            .iter()
            .filter(|(_, labels)| *labels == own)
            .map(|(other, _)| other.as_str())
            .collect();
        let note = (!alike.is_empty()).then(|| {
            format!(
                "{namespace}/{name} has the same labels as {}: no policy can tell them apart",
                alike.join(", ")
            )
        });
        let absent: Vec<Value> =
            more.iter().map(|key| json!({"key": key, "operator": "DoesNotExist"})).collect();
        let mut selector = json!({});
        if !own.is_empty() {
            selector["matchLabels"] = json!(own);
        }
        if !absent.is_empty() {
            selector["matchExpressions"] = absent.into();
        }
        (selector, note)
    }

    /// An end as peers of a rule in `namespace`.
    pub(super) fn peers(&self, party: &Party, namespace: &str) -> Vec<Value> {
        let block = |address: &IpAddr| {
            let length = if address.is_ipv4() { 32 } else { 128 };
            json!({"ipBlock": {"cidr": format!("{address}/{length}")}})
        };
        let of_node = |name: &str| -> Vec<Value> {
            let objects = self.manifests.objects.iter();
            let addresses = objects.filter_map(|object| match object {
                Object::Node(node) if *node.name == *name => Some(&node.addresses),
                _ => None,
            });
            addresses.flatten().map(block).collect()
        };
        match party {
            Party::Address(address) => vec![block(address)],
            Party::Node(name) => of_node(name),
            Party::Workload(space, name) if self.is_on_host(space, name) => {
                let pods: Vec<&Pod> = self.of(space, name).collect();
                let own = pods.iter().flat_map(|pod| pod.addresses.iter().map(block));
                let nodes = pods.iter().filter_map(|pod| pod.node.as_deref()).flat_map(of_node);
                let mut peers: Vec<Value> = Vec::new();
                for peer in own.chain(nodes) {
                    if !peers.contains(&peer) {
                        peers.push(peer);
                    }
                }
                peers
            }
            Party::Workload(space, name) => {
                let (selector, _) = self.selector(space, name);
                let mut peer = json!({});
                if space != namespace {
                    peer["namespaceSelector"] =
                        json!({"matchLabels": {"kubernetes.io/metadata.name": space}});
                }
                peer["podSelector"] = selector;
                vec![peer]
            }
        }
    }
}

fn pods(manifests: &Manifests) -> impl Iterator<Item = &Pod> {
    manifests.pods().filter(|pod| !pod.finished)
}
