//! Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::interned::{shared_labels, shared_name, shared_ports};
use super::reader::{self, elements, readable, readable_labels};
use super::{Kind, ObjectRef};
use crate::model::{ContainerPort, HostPort, Labels, Pod, PodPorts, Protocol, Uid};
use crate::{FieldFault, PodKey};

type Faults = Vec<FieldFault>;

/// The annotation with the kubelet's UID of a pod that was made from a file.
pub(crate) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The annotation of the object that a kubelet makes for such a pod. The API server lets nobody add
/// it to a pod, change it or take it away, and no kubelet runs a pod that has it from the API
/// server: a pod that runs has it from the kubelet alone.
pub(crate) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The fields of a pod that are read, as they stand in the object.
#[derive(Debug, Default)]
pub(crate) struct PodFields<'t> {
    pub(crate) name: Option<&'t str>,
    pub(crate) namespace: Option<&'t str>,
    pub(crate) uid: Option<&'t str>,
    /// The value of [`CONFIG_HASH`].
    pub(crate) config_hash: Option<&'t str>,
    /// Whether there is [`CONFIG_MIRROR`].
    pub(crate) is_mirror: bool,
    /// Whether there is `metadata.deletionTimestamp`.
    pub(crate) is_terminating: bool,
    /// Seconds since the epoch.
    pub(crate) created: Option<i64>,
    /// The later of two equal keys counts.
    pub(crate) labels: Vec<(&'t str, &'t str)>,
    pub(crate) node: Option<&'t str>,
    pub(crate) service_account: Option<&'t str>,
    pub(crate) host_network: bool,
    pub(crate) containers: Vec<ContainerFields<'t>>,
    pub(crate) init_containers: Vec<ContainerFields<'t>>,
    pub(crate) phase: Option<&'t str>,
    pub(crate) ip: Option<&'t str>,
    pub(crate) ips: Vec<&'t str>,
}

/// The fields of a container that are read.
#[derive(Debug, Default)]
pub(crate) struct ContainerFields<'t> {
    pub(crate) ports: Vec<PortFields<'t>>,
    pub(crate) restart_policy: Option<&'t str>,
}

/// The fields of a container's port.
#[derive(Debug, Default)]
pub(crate) struct PortFields<'t> {
    pub(crate) name: Option<&'t str>,
    pub(crate) host_port: Option<i32>,
    pub(crate) container_port: i32,
    pub(crate) protocol: Option<&'t str>,
    pub(crate) host_ip: Option<&'t str>,
}

impl<'t> PodFields<'t> {
    fn of(pod: &'t api::Pod) -> Self {
        let (metadata, spec, status) = (&pod.metadata, pod.spec.as_ref(), pod.status.as_ref());
        let annotations = metadata.annotations.as_ref();
        let containers = |all: &'t [api::Container]| all.iter().map(ContainerFields::of).collect();
        Self {
            name: metadata.name.as_deref(),
            namespace: metadata.namespace.as_deref(),
            uid: metadata.uid.as_deref(),
            config_hash: annotations.and_then(|it| it.get(CONFIG_HASH)).map(String::as_str),
            is_mirror: annotations.is_some_and(|it| it.contains_key(CONFIG_MIRROR)),
            is_terminating: metadata.deletion_timestamp.is_some(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            labels: metadata.labels.iter().flatten().map(|(key, it)| (&**key, &**it)).collect(),
            node: spec.and_then(|it| it.node_name.as_deref()),
            service_account: spec.and_then(|it| it.service_account_name.as_deref()),
            host_network: spec.and_then(|it| it.host_network).unwrap_or_default(),
            containers: spec.map(|it| containers(&it.containers)).unwrap_or_default(),
            init_containers: spec
                .and_then(|it| it.init_containers.as_deref())
                .map(containers)
                .unwrap_or_default(),
            phase: status.and_then(|it| it.phase.as_deref()),
            ip: status.and_then(|it| it.pod_ip.as_deref()),
            ips: status.iter().flat_map(|it| &it.pod_ips).flatten().map(|it| &*it.ip).collect(),
        }
    }
}

impl<'t> ContainerFields<'t> {
    fn of(container: &'t api::Container) -> Self {
        let port = |port: &'t api::ContainerPort| PortFields {
            name: port.name.as_deref(),
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: port.protocol.as_deref(),
            host_ip: port.host_ip.as_deref(),
        };
        Self {
            ports: container.ports.iter().flatten().map(port).collect(),
            restart_policy: container.restart_policy.as_deref(),
        }
    }
}

/// The pod as far as it could be read, and what could not be.
pub(super) fn pod(reference: &ObjectRef, value: &Value) -> (Pod, Faults) {
    match whole_pod(reference, value) {
        Ok(pod) => (pod, Vec::new()),
        Err(faults) => (readable_pod(reference, value), faults),
    }
}

fn readable_pod(reference: &ObjectRef, value: &Value) -> Pod {
    let (spec, status) = (&value["spec"], &value["status"]);
    let texts = elements(&status["podIPs"]).map(|entry| &entry["ip"]);
    let mut addresses =
        readable(texts.chain([&status["podIP"]]), |text| reader::address(text, String::new));
    addresses.sort_unstable();
    addresses.dedup();
    let metadata = &value["metadata"];
    let created = reader::typed(&metadata["creationTimestamp"], "").ok();
    let created = created.map(|Time(time)| time.as_second());
    let annotations = &metadata["annotations"];
    let hash = annotations[CONFIG_HASH].as_str().filter(|_| !annotations[CONFIG_MIRROR].is_null());
    let (uid, is_static) = uid(hash, metadata["uid"].as_str());
    Pod {
        key: key(reference),
        created: created_s(created),
        uid,
        is_static,
        is_terminating: !metadata["deletionTimestamp"].is_null(),
        labels: Arc::new(readable_labels_with_account(value)),
        node: spec["nodeName"]
            .as_str()
            .filter(|name| reader::subdomain(name, "spec.nodeName").is_ok())
            .map(Arc::from),
        addresses: addresses.into(),
        host_network: spec["hostNetwork"] == true,
        finished: matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")),
        ports: shared_ports(PodPorts {
            declared: readable_declared_ports(spec),
            ..PodPorts::default()
        }),
        complete: false,
    }
}

fn readable_labels_with_account(value: &Value) -> Labels {
    let labels = readable_labels(value);
    let own = labels.iter().filter(|(key, _)| &***key != Pod::SERVICE_ACCOUNT);
    let own: Labels = own.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect();
    match account(value["spec"]["serviceAccountName"].as_str()) {
        Some(account) => own.with(Pod::SERVICE_ACCOUNT, account),
        None => own,
    }
}

/// The service account, if it is another than the one that every pod has by default.
fn account(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty() && *name != "default")
}

fn readable_declared_ports(spec: &Value) -> Arc<[(Protocol, u16)]> {
    let containers = elements(&spec["containers"]).chain(elements(&spec["initContainers"]));
    let ports = containers.flat_map(|container| elements(&container["ports"]));
    let ports = ports.filter(|_| spec["hostNetwork"] == true).filter_map(|port| {
        let protocol = reader::protocol(port["protocol"].as_str(), String::new).ok()?;
        Some((protocol, u16::try_from(port["containerPort"].as_u64()?).ok()?))
    });
    ports.collect::<BTreeSet<_>>().into_iter().collect()
}

fn key(reference: &ObjectRef) -> PodKey {
    PodKey {
        namespace: reference.namespace.clone().unwrap_or_else(|| "default".into()),
        name: Arc::clone(&reference.name),
    }
}

/// Seconds since the epoch, 0 where absent; of times that do not fit, the nearest that does.
pub(super) fn created_s(seconds: Option<i64>) -> u32 {
    seconds.unwrap_or_default().clamp(0, u32::MAX.into()) as u32
}

/// The UID by which the kubelet and the runtime know the pod, and whether it is the kubelet's own.
fn uid(hash_of_mirror: Option<&str>, uid: Option<&str>) -> (Option<Uid>, bool) {
    let [hash, uid] = [hash_of_mirror, uid].map(|it| it.filter(|uid| !uid.is_empty()));
    (hash.or(uid).map(Uid::from), hash.is_some())
}

fn whole_pod(reference: &ObjectRef, value: &Value) -> Result<Pod, Faults> {
    let object: api::Pod = reader::typed(value, "").map_err(|fault| vec![fault])?;
    pod_of(reference, PodFields::of(&object))
}

/// The pod of an object that was read in another way; `None` if it has faults.
pub(crate) fn read_pod(fields: PodFields<'_>) -> Option<Pod> {
    let reference = reader::named(Kind::Pod, fields.name, fields.namespace).ok()?;
    pod_of(&reference, fields).ok()
}

fn pod_of(reference: &ObjectRef, mut fields: PodFields<'_>) -> Result<Pod, Faults> {
    let mut faults = Vec::new();
    let addresses = addresses(&fields, &mut faults);
    let ports = PodPorts {
        named: container_ports(&fields, &mut faults),
        host: host_ports(&fields),
        declared: match fields.host_network {
            true => declared_ports(&fields),
            false => Arc::default(),
        },
    };
    let node = fields.node.filter(|name| !name.is_empty());
    faults.extend(node.and_then(|name| reader::subdomain(name, "spec.nodeName").err()));
    if !faults.is_empty() {
        return Err(faults);
    }
    // Labels are what whoever makes the pod likes.
    fields.labels.retain(|(key, _)| *key != Pod::SERVICE_ACCOUNT);
    fields.labels.extend(account(fields.service_account).map(|it| (Pod::SERVICE_ACCOUNT, it)));
    let hash = fields.config_hash.filter(|_| fields.is_mirror);
    let (uid, is_static) = uid(hash, fields.uid);
    Ok(Pod {
        key: key(reference),
        created: created_s(fields.created),
        uid,
        is_static,
        is_terminating: fields.is_terminating,
        labels: shared_labels(fields.labels),
        node: node.map(shared_name),
        addresses: addresses.into(),
        host_network: fields.host_network,
        finished: matches!(fields.phase, Some("Succeeded" | "Failed")),
        ports: shared_ports(ports),
        complete: true,
    })
}

fn addresses(fields: &PodFields<'_>, faults: &mut Faults) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let single = fields.ip.filter(|_| fields.ips.is_empty()).map(|ip| (None, ip));
    let listed = fields.ips.iter().enumerate().map(|(index, ip)| (Some(index), *ip));
    for (index, text) in listed.chain(single).filter(|(_, text)| !text.is_empty()) {
        let field = || match index {
            Some(index) => reader::at("status.podIPs", index) + ".ip",
            None => "status.podIP".to_owned(),
        };
        match reader::address(text, field) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(fault) => faults.push(fault),
        }
    }
    addresses
}

/// Named ports in the order Kubernetes resolves names: containers first, then init
/// containers that keep running beside them (`restartPolicy: Always`).
fn container_ports(pod: &PodFields<'_>, faults: &mut Faults) -> Arc<[ContainerPort]> {
    let mut ports = Vec::new();
    for (list, index, container) in containers(pod) {
        for (nth, port) in container.ports.iter().enumerate() {
            let field = |name: &str| format!("{list}[{index}].ports[{nth}].{name}");
            let Some(name) = port.name.filter(|name| !name.is_empty()) else { continue };
            let protocol = reader::protocol(port.protocol, || field("protocol"));
            let number = reader::port(port.container_port, || field("containerPort"));
            match (protocol, number) {
                (Ok(protocol), Ok(number)) => {
                    ports.push(ContainerPort { name: shared_name(name), protocol, number });
                }
                (protocol, number) => faults.extend(protocol.err().into_iter().chain(number.err())),
            }
        }
    }
    ports.into()
}

/// The containers that run side by side, with the list that each is in and its place there.
fn containers<'p, 't>(
    pod: &'p PodFields<'t>,
) -> impl Iterator<Item = (&'static str, usize, &'p ContainerFields<'t>)> {
    let sidecars = pod.init_containers.iter().enumerate();
    let sidecars = sidecars.filter(|(_, container)| container.restart_policy == Some("Always"));
    (pod.containers.iter().enumerate())
        .map(|(index, container)| ("spec.containers", index, container))
        .chain(sidecars.map(|(index, container)| ("spec.initContainers", index, container)))
}

/// Ports of the node; no policy depends on them, so one that cannot be read leads nowhere.
fn host_ports(pod: &PodFields<'_>) -> Arc<[HostPort]> {
    if pod.host_network {
        return Arc::default();
    }
    let ports = containers(pod).flat_map(|(.., container)| &container.ports);
    let read = |port: &PortFields<'_>| {
        let number = |number: i32| u16::try_from(number).ok().filter(|number| *number > 0);
        let address = match port.host_ip.filter(|text| !text.is_empty()) {
            Some(text) => Some(reader::address(text, String::new).ok()?),
            None => None,
        };
        Some(HostPort {
            number: number(port.host_port?)?,
            address,
            protocol: reader::protocol(port.protocol, String::new).ok()?,
            target: number(port.container_port)?,
        })
    };
    ports.filter_map(read).collect()
}

/// Every port that a pod on the host network declares. (Faults of a port are those of
/// [`container_ports`], or of no meaning here.)
fn declared_ports(pod: &PodFields<'_>) -> Arc<[(Protocol, u16)]> {
    let ports = containers(pod).flat_map(|(.., container)| &container.ports);
    let ports = ports.filter_map(|port| {
        let protocol = reader::protocol(port.protocol, String::new).ok()?;
        Some((protocol, reader::port(port.container_port, String::new).ok()?))
    });
    ports.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::Object;
    use crate::model::{HostPort, Protocol};
    use crate::objects::tests::object;
    use crate::objects::{Read, read};
    use serde_json::{Value, json};

    #[test]
    fn a_pod_is_stripped_to_what_counts() {
        let Object::Pod(pod) = object(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "db", "labels": {"role": "db"},
                         "creationTimestamp": "1970-01-01T00:01:00Z"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [
                {"containerPort": 80}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]}],
                "initContainers": [
                    {"name": "once", "ports": [{"name": "no", "containerPort": 1}]},
                    {"name": "side", "restartPolicy": "Always",
                     "ports": [{"name": "side", "containerPort": 9}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                       "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}}))
        else {
            panic!()
        };
        assert_eq!(pod.key.to_string(), "default/db");
        assert_eq!(pod.addresses.len(), 2);
        assert_eq!(pod.created, 60);
        assert_eq!(pod.named_port("dns", Protocol::Udp), Some(53));
        assert_eq!(pod.named_port("dns", Protocol::Tcp), None);
        assert_eq!(pod.named_port("no", Protocol::Tcp), None);
        assert_eq!(pod.named_port("side", Protocol::Tcp), Some(9));
        assert!(pod.ports.host.is_empty());
    }

    #[test]
    fn a_service_account_is_a_label_that_no_pod_gives_itself() {
        let account = |spec: Value| {
            let read = read(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p",
                "labels": {"podgate.io/service-account": "admin", "a": "b"}}, "spec": spec}));
            let Read::Object(Object::Pod(pod), _) = read else { panic!() };
            assert_eq!(pod.labels.value("a"), Some("b"));
            pod.labels.value("podgate.io/service-account").map(str::to_owned)
        };
        let of = |name: &str| json!({"serviceAccountName": name, "containers": []});
        assert_eq!(account(of("db")), Some("db".to_owned()));
        for none in [of("default"), of(""), json!({"containers": []})] {
            assert_eq!(account(none), None);
        }
        // Where the pod cannot be read whole.
        let bad =
            |name: &str| json!({"serviceAccountName": name, "nodeName": "!", "containers": []});
        assert_eq!(account(bad("db")), Some("db".to_owned()));
        assert_eq!(account(bad("default")), None);
    }

    #[test]
    fn host_ports_are_those_of_running_containers_that_can_be_read() {
        let read = |host_network: bool| match object(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"hostNetwork": host_network,
                "containers": [{"name": "c", "ports": [
                    {"containerPort": 80, "hostPort": 8080},
                    {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "192.0.2.1"},
                    {"containerPort": 81}, {"containerPort": 82, "hostPort": 0},
                    {"containerPort": 83, "hostPort": 70000},
                    {"containerPort": 84, "hostPort": 84, "hostIP": "here"}]}],
                "initContainers": [
                    {"name": "once", "ports": [{"containerPort": 1, "hostPort": 1}]},
                    {"name": "side", "restartPolicy": "Always",
                     "ports": [{"containerPort": 9, "hostPort": 9}]}]}}))
        {
            Object::Pod(pod) => pod.ports.host.to_vec(),
            other => panic!("{other:?}"),
        };
        let port = |number, address: Option<&str>, protocol, target| HostPort {
            number,
            address: address.map(|text| text.parse().unwrap()),
            protocol,
            target,
        };
        let expected = [
            port(8080, None, Protocol::Tcp, 80),
            port(5353, Some("192.0.2.1"), Protocol::Udp, 53),
            port(9, None, Protocol::Tcp, 9),
        ];
        assert_eq!(read(false), expected);
        assert!(read(true).is_empty());
    }

    #[test]
    fn a_pod_made_from_a_file_is_known_by_the_kubelets_uid_and_no_other_pod_by_an_annotation() {
        let uid = |node: &str, annotations: Value| {
            let read = read(
                json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
                "metadata": {"name": "p", "uid": "u-1", "annotations": annotations}}),
            );
            let Read::Object(Object::Pod(pod), _) = read else { panic!() };
            (pod.uid.as_ref().unwrap().to_string(), pod.is_static)
        };
        // The second one cannot be read whole.
        for node in ["n", "!"] {
            let (own, kubelets) = (("u-1".to_owned(), false), ("0f".to_owned(), true));
            assert_eq!(uid(node, json!({})), own);
            assert_eq!(uid(node, json!({"kubernetes.io/config.hash": "0f"})), own);
            assert_eq!(uid(node, json!({"kubernetes.io/config.mirror": "0f"})), own);
            let both =
                json!({"kubernetes.io/config.hash": "0f", "kubernetes.io/config.mirror": "0f"});
            assert_eq!(uid(node, both), kubelets);
        }
    }

    #[test]
    fn a_finished_pod_is_known_as_such() {
        for (phase, finished) in [("Succeeded", true), ("Failed", true), ("Running", false)] {
            let Object::Pod(pod) = object(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p"}, "status": {"phase": phase}}))
            else {
                panic!()
            };
            assert_eq!(pod.finished, finished);
        }
    }

    #[test]
    fn a_bad_address_is_a_fault_that_names_its_field() {
        let Read::Object(object, faults) = read(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p"}, "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "x"}]}}))
        else {
            panic!()
        };
        let Object::Pod(pod) = object else { panic!() };
        assert!(!pod.complete);
        assert_eq!(*pod.addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(faults[0].field, "status.podIPs[1].ip");
    }
}
