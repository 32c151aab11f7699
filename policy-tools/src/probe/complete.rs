//! Fills in what manifests written by hand leave out, so that questions about pods with nothing
//! but labels have answers.
//!
//! - A pod without `spec.nodeName` is placed on an invented node, [`UNSCHEDULED`], which
//!   it shares with all others like it. Those on the host network are on another one,
//!   [`UNSCHEDULED_HOST`]: a pod's own node is always let in, and nothing says that they
//!   would share one.
//! - A node that pods mention exists. One without addresses has those of the
//!   host-network pods on it, else one from `NODE_NETWORKS`.
//! - A pod without addresses has one out of every pod network of its node, else one
//!   from `POD_NETWORKS`: private addresses, as pods have in practice, so that a policy for
//!   "everything but private networks" means what it means there. Such a pod is of the
//!   families that the other pods are of, or IPv4 where there is none; it could be of the other one
//!   too, and has an address of it in [`Manifests::could_have`]. So have nodes.
//! - A service that the API server would give a cluster address has one from
//!   `SERVICE_NETWORKS`.
//! - A service with a selector and no endpoint slice has the pods that it selects as endpoints.
//! - An endpoint without `nodeName` is on the node of the pod that has its address.
//!
//! Addresses are given in the order of names and never one that is mentioned anywhere else, so
//! the same manifests and cases always get the same ones. Pods that have finished get none.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use control::Object;
use control::model::{Labels, Node, Pod};
use ipnet::IpNet;

use super::endpoints;
use super::pool::{Pool, Use};
use crate::input::{Families, Manifests, pods};

/// The node of pods that are on none; no node can have this name.
pub const UNSCHEDULED: &str = "(unscheduled)";
/// The same for pods on the host network.
pub const UNSCHEDULED_HOST: &str = "(unscheduled, host network)";

/// Fills in nodes, addresses and endpoints; `mentioned` are addresses that cases name.
///
/// # Errors
/// Fails if there are more pods than addresses.
pub fn complete(
    manifests: &mut Manifests,
    mentioned: impl IntoIterator<Item = IpAddr>,
) -> Result<(), String> {
    let objects = &mut manifests.objects;
    for object in objects.iter_mut() {
        if let Object::Pod(pod) = object {
            let invented = if pod.host_network { UNSCHEDULED_HOST } else { UNSCHEDULED };
            Arc::make_mut(pod).node.get_or_insert_with(|| invented.into());
        }
    }
    add_mentioned_nodes(objects);
    let without = without_addresses(objects);
    let mut pool = Pool::new(objects, mentioned);
    let families = match manifests.families.only() {
        Some(v4) => vec![v4],
        None => families(objects),
    };
    give_nodes_addresses(objects, &families, &mut pool)?;
    give_pods_addresses(objects, &families, &mut pool)?;
    give_other_family(objects, manifests.families, &without, &mut pool, &mut manifests.could_have);
    for object in objects.iter_mut() {
        if let Object::Service(service) = object
            && manifests.without_address.contains(&service.key)
        {
            let addresses = families.iter().map(|v4| pool.address(Use::Service, *v4));
            let none = || format!("Service {}: no address is left to give it", service.key);
            let addresses = addresses.collect::<Option<_>>().ok_or_else(none)?;
            Arc::make_mut(service).cluster_ips = addresses;
        }
    }
    endpoints::complete(objects, &manifests.selectors);
    Ok(())
}

fn add_mentioned_nodes(objects: &mut Vec<Object>) {
    let mut host_network: BTreeMap<Arc<str>, Vec<IpAddr>> = BTreeMap::new();
    for pod in pods(objects) {
        let Some(node) = &pod.node else { continue };
        let addresses = host_network.entry(Arc::clone(node)).or_default();
        if pod.host_network && !pod.finished {
            addresses.extend(&pod.addresses);
        }
    }
    for object in objects.iter_mut() {
        let Object::Node(node) = object else { continue };
        let on_it = host_network.remove(&node.name).unwrap_or_default();
        if node.addresses.is_empty() {
            Arc::make_mut(node).addresses = without_repetition(on_it);
        }
    }
    objects.extend(host_network.into_iter().map(|(name, addresses)| {
        let node = Node {
            name,
            labels: Arc::new(Labels::default()),
            addresses: without_repetition(addresses),
            pod_cidrs: Vec::new(),
            ready: true,
            created: 0,
            complete: true,
        };
        Object::Node(node.into())
    }));
}

fn without_repetition(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    addresses.into_iter().filter(|address| seen.insert(*address)).collect()
}

/// Address families of pods, IPv4 first: `true` is IPv4.
fn families(objects: &[Object]) -> Vec<bool> {
    let has = |v4: bool| pods(objects).any(|pod| pod.addresses.iter().any(|it| it.is_ipv4() == v4));
    match (has(true), has(false)) {
        (true, true) => vec![true, false],
        (false, true) => vec![false],
        _ => vec![true],
    }
}

fn give_nodes_addresses(
    objects: &mut [Object],
    families: &[bool],
    pool: &mut Pool,
) -> Result<(), String> {
    let mut nodes: Vec<&mut Node> = objects
        .iter_mut()
        .filter_map(|object| match object {
            Object::Node(node) if node.addresses.is_empty() => Some(Arc::make_mut(node)),
            _ => None,
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    for node in nodes {
        for v4 in families {
            let address = pool.address(Use::Node, *v4);
            let none = || format!("Node {}: no address is left to give it", node.name);
            node.addresses.push(address.ok_or_else(none)?);
        }
    }
    Ok(())
}

fn give_pods_addresses(
    objects: &mut [Object],
    families: &[bool],
    pool: &mut Pool,
) -> Result<(), String> {
    let networks: HashMap<Arc<str>, Vec<IpNet>> = objects
        .iter()
        .filter_map(|object| match object {
            Object::Node(node) => Some((Arc::clone(&node.name), node.pod_cidrs.clone())),
            _ => None,
        })
        .collect();
    let mut pods: Vec<&mut Pod> = objects
        .iter_mut()
        .filter_map(|object| match object {
            Object::Pod(pod) if pod.addresses.is_empty() && pod.is_on_pod_network() => {
                Some(Arc::make_mut(pod))
            }
            _ => None,
        })
        .collect();
    pods.sort_by(|a, b| a.key.cmp(&b.key));
    for pod in pods {
        let of_node = pod.node.as_ref().and_then(|node| networks.get(node));
        let of_node = of_node.into_iter().flatten();
        let mut addresses = Vec::new();
        for v4 in [true, false] {
            let net = of_node.clone().find(|net| net.addr().is_ipv4() == v4);
            addresses.extend(net.and_then(|net| pool.within(net)));
        }
        if addresses.is_empty() {
            addresses.extend(families.iter().filter_map(|v4| pool.address(Use::Pod, *v4)));
        }
        if addresses.is_empty() {
            return Err(format!("Pod {}: no address is left to give it", pod.key));
        }
        pod.addresses = addresses.into();
    }
    Ok(())
}

/// Pods and nodes to which the files give no address.
fn without_addresses(objects: &[Object]) -> HashSet<control::ObjectRef> {
    let has_none = |object: &&Object| match object {
        Object::Pod(pod) => pod.addresses.is_empty() && pod.is_on_pod_network(),
        Object::Node(node) => node.addresses.is_empty(),
        _ => false,
    };
    objects.iter().filter(has_none).map(Object::reference).collect()
}

/// Gives ends an address of the family that they have none of, as far as there are any.
fn give_other_family(
    objects: &mut [Object],
    families: Families,
    without: &HashSet<control::ObjectRef>,
    pool: &mut Pool,
    could_have: &mut BTreeSet<IpAddr>,
) {
    let mut ends: Vec<&mut Object> = objects
        .iter_mut()
        .filter(|object| match object {
            Object::Pod(pod) => pod.is_on_pod_network() && !pod.finished,
            Object::Node(_) => true,
            _ => false,
        })
        .filter(|object| families == Families::OfAll || without.contains(&object.reference()))
        .collect();
    ends.sort_by_key(|object| object.reference());
    for object in ends {
        let (of, has) = match object {
            Object::Pod(pod) => (Use::Pod, &pod.addresses[..]),
            Object::Node(node) => (Use::Node, &node.addresses[..]),
            _ => continue,
        };
        let lacks = |v4: &bool| families.has(*v4) && !has.iter().any(|it| it.is_ipv4() == *v4);
        let Some(other) = [true, false].into_iter().find(lacks) else { continue };
        let Some(address) = pool.address(of, other) else { continue };
        could_have.insert(address);
        match object {
            Object::Pod(pod) => {
                let pod = Arc::make_mut(pod);
                pod.addresses = [&pod.addresses[..], &[address]].concat().into();
            }
            Object::Node(node) => Arc::make_mut(node).addresses.push(address),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::objects::{Read, read};
    use serde_json::{Value, json};

    fn object(value: Value) -> Object {
        match read(value) {
            Read::Object(object, faults) if faults.is_empty() => object,
            other => panic!("{other:?}"),
        }
    }

    fn pod(name: &str, spec: Value, addresses: &[&str]) -> Object {
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                      "spec": spec, "status": {"podIPs": ips}}))
    }

    fn node(name: &str, cidrs: &[&str]) -> Object {
        object(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                      "spec": {"podCIDRs": cidrs}}))
    }

    /// `pod NODE ADDRESS…` and `node ADDRESS…` by name.
    fn completed(objects: Vec<Object>, mentioned: &[&str]) -> Vec<String> {
        let mentioned = mentioned.iter().map(|ip| ip.parse().unwrap());
        let mut manifests = Manifests::from(objects);
        complete(&mut manifests, mentioned).unwrap();
        let objects = manifests.objects;
        let text = |addresses: &[IpAddr]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        objects
            .iter()
            .map(|object| match object {
                Object::Pod(pod) => format!(
                    "{} {} {}",
                    pod.key.name,
                    pod.node.as_deref().unwrap_or("-"),
                    text(&pod.addresses)
                ),
                Object::Node(node) => format!("{} {}", node.name, text(&node.addresses)),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn pods_with_nothing_but_labels() {
        let objects = vec![pod("b", json!({}), &[]), pod("a", json!({}), &[])];
        assert_eq!(
            completed(objects, &["10.244.0.2"]),
            [
                "b (unscheduled) 10.244.0.4 fd00:10:244::3",
                "a (unscheduled) 10.244.0.3 fd00:10:244::2",
                "(unscheduled) 172.18.0.2 fc00:f853:ccd::2"
            ]
        );
    }

    #[test]
    fn what_is_stated_stays() {
        let objects = vec![
            pod("a", json!({"nodeName": "n"}), &["fd00::9"]),
            pod("b", json!({"nodeName": "n"}), &[]),
            pod("h", json!({"nodeName": "m", "hostNetwork": true}), &["192.0.2.7"]),
        ];
        assert_eq!(
            completed(objects, &[]),
            [
                "a n fd00::9",
                "b n 10.244.0.2 fd00:10:244::2",
                "h m 192.0.2.7",
                "m 192.0.2.7",
                "n 172.18.0.2 fc00:f853:ccd::2",
            ]
        );
    }

    #[test]
    fn a_pod_takes_its_cluster_nodes_networks() {
        let objects = vec![
            node("n", &["10.1.1.0/30", "fd01::/64"]),
            node("m", &["10.244.7.0/24"]),
            pod("a", json!({"nodeName": "n"}), &[]),
            pod("b", json!({"nodeName": "n"}), &[]),
            pod("c", json!({}), &[]),
        ];
        assert_eq!(
            completed(objects, &[])[2..],
            [
                "a n 10.1.1.2 fd01::2",
                // The IPv4 network is full.
                "b n fd01::3 172.30.0.3",
                // The usual network is where other nodes' pods are.
                "c (unscheduled) 172.30.0.2 fd00:10:244::2",
                "(unscheduled) 172.18.0.2 fc00:f853:ccd::2",
            ]
        );
    }

    #[test]
    fn finished_pods_get_none() {
        let done = object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d"},
            "spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}));
        assert_eq!(completed(vec![done], &[]), ["d n ", "n 172.18.0.2 fc00:f853:ccd::2"]);
    }
}
