//! Pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::interned::{shared_labels, shared_name, shared_ports};
use super::reader::{self, elements, readable, readable_labels};
use super::{Kind, ObjectRef};
use crate::model::{ContainerPort, HostPort, Labels, Pod, PodPorts, Protocol, Uid};
use crate::{FieldFault, PodKey};

type Faults = Vec<FieldFault>;

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
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let annotations = value["metadata"]["annotations"].as_object().into_iter().flatten();
    let mut metadata = ObjectMeta {
        uid: text(&value["metadata"]["uid"]),
        creation_timestamp: reader::typed(&value["metadata"]["creationTimestamp"], "").ok(),
        annotations: Some(
            annotations.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect(),
        ),
        ..ObjectMeta::default()
    };
    Pod {
        key: key(reference),
        created: created(&metadata),
        uid: uid(&mut metadata),
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
fn created(metadata: &ObjectMeta) -> u32 {
    let seconds = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    seconds.clamp(0, u32::MAX.into()) as u32
}

/// The uid by which the kubelet and the runtime know the pod.
fn uid(metadata: &mut ObjectMeta) -> Option<Uid> {
    let annotations = metadata.annotations.as_mut();
    let of_file = annotations.and_then(|it| it.remove("kubernetes.io/config.hash"));
    of_file.or(metadata.uid.take()).filter(|uid| !uid.is_empty()).map(Uid::from)
}

fn whole_pod(reference: &ObjectRef, value: &Value) -> Result<Pod, Faults> {
    let object: api::Pod = reader::typed(value, "").map_err(|fault| vec![fault])?;
    pod_of(reference, object)
}

/// The pod of an object that was read in another way; `None` if it has faults.
pub(crate) fn read_pod(object: api::Pod) -> Option<Pod> {
    let ObjectMeta { name, namespace, .. } = &object.metadata;
    let reference = reader::named(Kind::Pod, name.as_deref(), namespace.as_deref()).ok()?;
    pod_of(&reference, object).ok()
}

fn pod_of(reference: &ObjectRef, mut object: api::Pod) -> Result<Pod, Faults> {
    let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
    let mut faults = Vec::new();
    let mut addresses = Vec::new();
    let listed: Vec<String> = status.pod_ips.into_iter().flatten().map(|entry| entry.ip).collect();
    let texts = match listed.is_empty() {
        true => status.pod_ip.into_iter().map(|ip| ("status.podIP".to_owned(), ip)).collect(),
        false => Vec::from_iter(
            listed
                .into_iter()
                .enumerate()
                .map(|(index, ip)| (reader::at("status.podIPs", index) + ".ip", ip)),
        ),
    };
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        match reader::address(&text, || field) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(fault) => faults.push(fault),
        }
    }
    let ports = PodPorts {
        named: container_ports(&spec, &mut faults),
        host: host_ports(&spec),
        declared: match spec.host_network {
            Some(true) => declared_ports(&spec),
            _ => Arc::default(),
        },
    };
    let node = spec.node_name.as_deref().filter(|name| !name.is_empty());
    faults.extend(node.and_then(|name| reader::subdomain(name, "spec.nodeName").err()));
    if !faults.is_empty() {
        return Err(faults);
    }
    let labels = object.metadata.labels.get_or_insert_default();
    match account(spec.service_account_name.as_deref()) {
        Some(account) => labels.insert(Pod::SERVICE_ACCOUNT.to_owned(), account.to_owned()),
        // Labels are what whoever makes the pod likes.
        None => labels.remove(Pod::SERVICE_ACCOUNT),
    };
    Ok(Pod {
        key: key(reference),
        created: created(&object.metadata),
        uid: uid(&mut object.metadata),
        labels: shared_labels(
            object.metadata.labels.iter().flatten().map(|(key, value)| (&**key, &**value)),
        ),
        node: spec.node_name.as_deref().filter(|name| !name.is_empty()).map(shared_name),
        addresses: addresses.into(),
        host_network: spec.host_network.unwrap_or(false),
        finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        ports: shared_ports(ports),
        complete: true,
    })
}

/// Named ports in the order Kubernetes resolves names: containers first, then init
/// containers that keep running beside them (`restartPolicy: Always`).
fn container_ports(spec: &api::PodSpec, faults: &mut Faults) -> Arc<[ContainerPort]> {
    let mut ports = Vec::new();
    for (list, index, container) in containers(spec) {
        for (nth, port) in container.ports.iter().flatten().enumerate() {
            let field = |name: &str| format!("{list}[{index}].ports[{nth}].{name}");
            let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) else { continue };
            let protocol = reader::protocol(port.protocol.as_deref(), || field("protocol"));
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
fn containers(spec: &api::PodSpec) -> impl Iterator<Item = (&'static str, usize, &api::Container)> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .enumerate()
        .filter(|(_, container)| container.restart_policy.as_deref() == Some("Always"));
    (spec.containers.iter().enumerate())
        .map(|(index, container)| ("spec.containers", index, container))
        .chain(sidecars.map(|(index, container)| ("spec.initContainers", index, container)))
}

/// Ports of the node; no policy depends on them, so one that cannot be read leads nowhere.
fn host_ports(spec: &api::PodSpec) -> Arc<[HostPort]> {
    if spec.host_network == Some(true) {
        return Arc::default();
    }
    let ports = containers(spec).flat_map(|(.., container)| container.ports.iter().flatten());
    let read = |port: &api::ContainerPort| {
        let number = |number: i32| u16::try_from(number).ok().filter(|number| *number > 0);
        let address = match port.host_ip.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => Some(reader::address(text, String::new).ok()?),
            None => None,
        };
        Some(HostPort {
            number: number(port.host_port?)?,
            address,
            protocol: reader::protocol(port.protocol.as_deref(), String::new).ok()?,
            target: number(port.container_port)?,
        })
    };
    ports.filter_map(read).collect()
}

/// Every port that a pod on the host network declares. (Faults of a port are those of
/// [`container_ports`], or of no meaning here.)
fn declared_ports(spec: &api::PodSpec) -> Arc<[(Protocol, u16)]> {
    let ports = containers(spec).flat_map(|(.., container)| container.ports.iter().flatten());
    let ports = ports.filter_map(|port| {
        let protocol = reader::protocol(port.protocol.as_deref(), String::new).ok()?;
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
    fn a_pod_made_from_a_file_is_known_by_the_kubelets_name_for_it() {
        let uid = |annotations: Value| match object(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "uid": "u-1", "annotations": annotations}}))
        {
            Object::Pod(pod) => pod.uid.as_ref().unwrap().to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(uid(json!({})), "u-1");
        assert_eq!(uid(json!({"kubernetes.io/config.hash": "0f"})), "0f");
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
