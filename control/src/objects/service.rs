//! Services and endpoint slices.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::interned::{shared_name, shared_topology};
use super::{ObjectRef, reader};
use crate::FieldFault;
use crate::model::{
    Endpoint, EndpointPort, EndpointSlice, Hints, Key, Service, ServicePort, TargetPort, Topology,
};

type Faults = Vec<FieldFault>;

fn key(reference: &ObjectRef) -> Key {
    Key {
        namespace: reference.namespace.clone().unwrap_or_else(|| "default".into()),
        name: Arc::clone(&reference.name),
    }
}

/// Collects valid values and keeps the faults of the others.
fn sieve<T>(
    results: impl IntoIterator<Item = Result<T, FieldFault>>,
    faults: &mut Faults,
) -> Vec<T> {
    let fine = results.into_iter().filter_map(|it| it.map_err(|fault| faults.push(fault)).ok());
    let mut fine: Vec<T> = fine.collect();
    // There may be a hundred thousand of them.
    fine.shrink_to_fit();
    fine
}

/// The value of a field, whose parts are divided by dots.
fn at<'v>(value: &'v Value, field: &str) -> Option<&'v Value> {
    value.pointer(&format!("/{}", field.replace('.', "/")))
}

/// One field, read as one of the API's types; its default if it is absent or could not be read.
fn part<T: DeserializeOwned + Default>(value: &Value, field: &str, faults: &mut Faults) -> T {
    match at(value, field) {
        None | Some(Value::Null) => T::default(),
        Some(value) => reader::typed(value, field).unwrap_or_else(|fault| {
            faults.push(fault);
            T::default()
        }),
    }
}

/// Reads the elements of a list as one of the API's types; unreadable ones are faults.
fn elements<T: DeserializeOwned>(
    value: &Value,
    field: &str,
    faults: &mut Faults,
) -> Vec<(usize, T)> {
    let list = match at(value, field) {
        Some(Value::Array(list)) => list.as_slice(),
        _ => {
            part::<Vec<Value>>(value, field, faults);
            &[]
        }
    };
    let read = list.iter().enumerate().map(|(index, value)| {
        reader::typed(value, &reader::at(field, index)).map(|element| (index, element))
    });
    sieve(read, faults)
}

/// Labels by which another proxy, or none, is to serve a service or its endpoints.
const OTHERS: [&str; 2] =
    ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

fn is_others(value: &Value) -> bool {
    OTHERS.iter().any(|label| value["metadata"]["labels"].get(label).is_some())
}

/// The service as far as it could be read, and what could not be.
pub(super) fn service(reference: &ObjectRef, value: &Value) -> (Service, Faults) {
    let mut faults = Vec::new();
    let addresses = |field: &str, texts: Vec<(usize, String)>, faults: &mut Faults| {
        let wanted = texts.iter().filter(|(_, text)| !matches!(&**text, "" | "None"));
        sieve(
            wanted.map(|(index, text)| reader::address(text, || reader::at(field, *index))),
            faults,
        )
    };
    let mut listed: Vec<(usize, String)> = elements(value, "spec.clusterIPs", &mut faults);
    if listed.is_empty() {
        listed = vec![(0, part(value, "spec.clusterIP", &mut faults))];
    }
    let is_headless = listed.iter().any(|(_, text)| text == "None");
    let cluster_ips = addresses("spec.clusterIPs", listed, &mut faults);
    let kind: String = part(value, "spec.type", &mut faults);
    // As kube-proxy: nothing of them is served, external addresses included.
    let is_served = !is_headless && kind != "ExternalName" && !is_others(value);
    let listed = elements(value, "spec.externalIPs", &mut faults);
    let external_ips = addresses("spec.externalIPs", listed, &mut faults);
    let field = "status.loadBalancer.ingress";
    let ingress: Vec<(usize, core::LoadBalancerIngress)> = elements(value, field, &mut faults);
    // With mode `Proxy` the load balancer itself takes the packets, and sends them on.
    let ingress = ingress.into_iter().filter(|(_, it)| it.ip_mode.as_deref() != Some("Proxy"));
    let ingress = ingress.filter_map(|(index, it)| Some((index, it.ip?))).collect();
    let load_balancer_ips = addresses(field, ingress, &mut faults);
    let source_ranges = source_ranges(value, &mut faults);
    let ports = elements(value, "spec.ports", &mut faults);
    let ports =
        sieve(ports.into_iter().map(|(index, port)| service_port(index, port)), &mut faults);
    let is_local = |field: &str, faults: &mut Faults| -> bool {
        let policy: String = part(value, field, faults);
        if !matches!(&*policy, "" | "Cluster" | "Local") {
            faults.push(FieldFault::new(field, format!("{policy:?} is neither Cluster nor Local")));
        }
        policy == "Local"
    };
    let external_local = is_local("spec.externalTrafficPolicy", &mut faults);
    let internal_local = is_local("spec.internalTrafficPolicy", &mut faults);
    let affinity: String = part(value, "spec.sessionAffinity", &mut faults);
    let seconds = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let timeout: Option<u32> = part(value, seconds, &mut faults);
    let port: u16 = part(value, "spec.healthCheckNodePort", &mut faults);
    let has_health_check = kind == "LoadBalancer" && external_local && port > 0;
    let mut service = Service {
        key: key(reference),
        cluster_ips,
        external_ips,
        load_balancer_ips,
        source_ranges,
        ports,
        external_local,
        internal_local,
        // Three hours is the API's own default.
        affinity_seconds: (affinity == "ClientIP").then(|| timeout.unwrap_or(10_800)),
        health_check_node_port: has_health_check.then_some(port),
    };
    if !is_served {
        for addresses in
            [&mut service.cluster_ips, &mut service.external_ips, &mut service.load_balancer_ips]
        {
            addresses.clear();
        }
        service.ports.iter_mut().for_each(|port| port.node_port = None);
        service.health_check_node_port = None;
    }
    (service, faults)
}

/// `loadBalancerSourceRanges`: `None` where absent or empty. An unreadable range admits no source.
fn source_ranges(value: &Value, faults: &mut Faults) -> Option<Vec<IpNet>> {
    let field = "spec.loadBalancerSourceRanges";
    match value.pointer("/spec/loadBalancerSourceRanges") {
        None | Some(Value::Null) => return None,
        Some(Value::Array(list)) if list.is_empty() => return None,
        Some(_) => {}
    }
    let listed: Vec<(usize, String)> = elements(value, field, faults);
    // The API allows blanks around a range.
    let ranges = listed
        .iter()
        .map(|(index, text)| reader::network(text.trim(), || reader::at(field, *index)));
    Some(sieve(ranges, faults))
}

fn service_port(index: usize, port: core::ServicePort) -> Result<ServicePort, FieldFault> {
    let field = |name: &str| format!("spec.ports[{index}].{name}");
    let number = reader::port(port.port, || field("port"))?;
    let target = match port.target_port {
        None | Some(IntOrString::Int(0)) => TargetPort::Number(number),
        Some(IntOrString::Int(target)) => {
            TargetPort::Number(reader::port(target, || field("targetPort"))?)
        }
        Some(IntOrString::String(name)) => {
            TargetPort::Name(reader::port_name(&name, || field("targetPort"))?)
        }
    };
    Ok(ServicePort {
        name: shared_name(&port.name.unwrap_or_default()),
        protocol: reader::protocol(port.protocol.as_deref(), || field("protocol"))?,
        port: number,
        target,
        node_port: match port.node_port {
            None | Some(0) => None,
            Some(number) => Some(reader::port(number, || field("nodePort"))?),
        },
    })
}

/// `hints` of an endpoint. They only restrict the choice of an endpoint, so an unreadable one is
/// ignored.
fn hints(value: &Value) -> Hints {
    let names = |field: &str| {
        let list = value[field].as_array().into_iter().flatten();
        list.filter_map(|it| it["name"].as_str().map(shared_name)).collect()
    };
    Hints { zones: names("forZones"), nodes: names("forNodes") }
}

/// The slice as far as it could be read, and what could not be.
pub(super) fn endpoint_slice(reference: &ObjectRef, value: &Value) -> (EndpointSlice, Faults) {
    let mut faults = Vec::new();
    let kind: String = part(value, "addressType", &mut faults);
    let listed: Vec<(usize, discovery::Endpoint)> = elements(value, "endpoints", &mut faults);
    let mut endpoints = Vec::new();
    for (index, endpoint) in listed.into_iter().filter(|_| kind != "FQDN") {
        let field = |nth| format!("endpoints[{index}].addresses[{nth}]");
        let texts = endpoint.addresses.iter().enumerate();
        let conditions = endpoint.conditions.unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        let addresses = texts.map(|(nth, text)| reader::address(text, || field(nth)));
        let addresses: Vec<IpAddr> = sieve(addresses, &mut faults);
        endpoints.push(Endpoint {
            addresses: addresses.into(),
            ready,
            serving: conditions.serving.unwrap_or(ready),
            terminating: conditions.terminating.unwrap_or(false),
            topology: shared_topology(Topology {
                node: endpoint.node_name.as_deref().map(shared_name),
                hints: hints(&value["endpoints"][index]["hints"]),
            }),
        });
    }
    let listed: Vec<(usize, discovery::EndpointPort)> = elements(value, "ports", &mut faults);
    // Ports that could not be read are not those of the service.
    let has_ports = value.get("ports").and_then(Value::as_array).is_some_and(|it| !it.is_empty());
    let ports = listed.into_iter().map(|(index, port)| {
        let field = |name: &str| format!("ports[{index}].{name}");
        Ok(EndpointPort {
            name: shared_name(&port.name.unwrap_or_default()),
            protocol: reader::protocol(port.protocol.as_deref(), || field("protocol"))?,
            port: port.port.map(|number| reader::port(number, || field("port"))).transpose()?,
        })
    });
    let ports = sieve(ports, &mut faults);
    if has_ports && ports.is_empty() || is_others(value) {
        endpoints.clear();
    }
    let service = value["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
    let service = service.map(Arc::from);
    (EndpointSlice { key: key(reference), service, endpoints: endpoints.into(), ports }, faults)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Object;
    use crate::model::{Service, TargetPort};
    use crate::objects::{Read, read};
    use serde_json::{Value, json};

    #[test]
    fn a_headless_service_has_no_address_and_target_defaults_to_port() {
        let Read::Object(Object::Service(service), faults) = read(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}}))
        else {
            panic!()
        };
        assert_eq!(faults, []);
        assert_eq!(service.cluster_ips, Vec::<std::net::IpAddr>::new());
        assert_eq!(service.ports[0].target, TargetPort::Number(80));
    }

    #[test]
    fn endpoints_are_ready_unless_they_say_otherwise() {
        let Read::Object(Object::EndpointSlice(slice), faults) = read(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
            "endpoints": [{"addresses": ["10.0.0.1"]},
                          {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}],
            "ports": [{"port": 80, "protocol": "TCP"}]}))
        else {
            panic!()
        };
        assert_eq!(faults, []);
        assert_eq!(slice.service.as_deref(), Some("s"));
        assert!(slice.endpoints[0].ready && !slice.endpoints[1].ready);
    }

    #[test]
    fn a_slice_of_another_proxy_or_without_a_readable_port_has_no_endpoints() {
        let endpoints = |labels: Value, ports: Value| {
            let value = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "addressType": "IPv4", "metadata": {"name": "s-1", "labels": labels},
                "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": ports});
            match read(value) {
                Read::Object(Object::EndpointSlice(slice), _) => slice.endpoints.len(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(endpoints(json!({}), json!([{"port": 80}])), 1);
        // Without ports, or with any port.
        assert_eq!(endpoints(json!({}), json!([])), 1);
        assert_eq!(endpoints(json!({}), json!([{"port": 80}, {"port": 0}])), 1);
        assert_eq!(endpoints(json!({}), json!([{"port": 0}])), 0);
        for label in super::OTHERS {
            let labels = json!({"kubernetes.io/service-name": "s", label: "other"});
            assert_eq!(endpoints(labels, json!([{"port": 80}])), 0, "{label}");
        }
    }

    #[test]
    fn a_health_check_is_a_local_load_balancers() {
        let port = |kind: &str, policy: &str, port: u16| {
            let spec = json!({"type": kind, "clusterIP": "10.96.0.1",
                "externalTrafficPolicy": policy, "healthCheckNodePort": port});
            service(spec, json!({})).0.health_check_node_port
        };
        assert_eq!(port("LoadBalancer", "Local", 30_001), Some(30_001));
        assert_eq!(port("LoadBalancer", "Local", 0), None);
        assert_eq!(port("LoadBalancer", "Cluster", 30_001), None);
        assert_eq!(port("NodePort", "Local", 30_001), None);
    }

    #[test]
    fn affinity_has_the_timeout_of_the_service_or_three_hours() {
        let seconds = |affinity: &str, config: Value| {
            let spec = json!({"clusterIP": "10.96.0.1", "sessionAffinity": affinity,
                "sessionAffinityConfig": config});
            service(spec, json!({})).0.affinity_seconds
        };
        let config = json!({"clientIP": {"timeoutSeconds": 60}});
        assert_eq!(seconds("ClientIP", config.clone()), Some(60));
        assert_eq!(seconds("ClientIP", json!({})), Some(10_800));
        assert_eq!(seconds("None", config), None);
    }

    fn service(spec: Value, labels: Value) -> (Service, Vec<String>) {
        let value = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s", "labels": labels}, "spec": spec,
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10"},
                {"ip": "192.0.2.11", "ipMode": "Proxy"}, {"hostname": "lb.example"}]}}});
        match read(value) {
            Read::Object(Object::Service(service), faults) => (
                Arc::unwrap_or_clone(service),
                faults.into_iter().map(|fault| fault.field).collect(),
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_could_be_read_of_a_service_is_served() {
        let (service, faults) = service(
            json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}, {"port": 0}, {"port": "x"}, 7],
                "externalIPs": ["198.51.100.1", "nowhere"], "sessionAffinity": 7}),
            json!({}),
        );
        assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80]);
        assert_eq!(service.external_ips.len(), 1);
        assert_eq!(
            faults,
            [
                "spec.externalIPs[1]",
                "spec.ports[2].port",
                "spec.ports[3]",
                "spec.ports[1].port",
                "spec.sessionAffinity"
            ]
        );
    }

    #[test]
    fn source_ranges_that_cannot_be_read_admit_nobody() {
        let ranges = |ranges: Value| {
            let spec = json!({"clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ranges});
            service(spec, json!({}))
        };
        assert_eq!(ranges(json!([])).0.source_ranges, None);
        let (service, faults) = ranges(json!([" 203.0.113.0/24", "2001:db8::/32"]));
        assert_eq!((service.source_ranges.map(|it| it.len()), faults.len()), (Some(2), 0));
        for bad in [json!(["nowhere"]), json!([7]), json!("203.0.113.0/24")] {
            let (service, faults) = ranges(bad.clone());
            assert_eq!((service.source_ranges, faults.len()), (Some(Vec::new()), 1), "{bad}");
        }
    }

    #[test]
    fn a_service_without_an_address_or_of_another_proxy_is_not_served() {
        let spec = |kind: &str, ip: &str| {
            json!({"type": kind, "clusterIP": ip, "externalIPs": ["198.51.100.1"],
                "ports": [{"port": 80, "nodePort": 30080}]})
        };
        let (served, _) = service(spec("LoadBalancer", "10.96.0.1"), json!({}));
        assert_eq!((served.external_ips.len(), served.ports[0].node_port), (1, Some(30_080)));
        assert_eq!(served.load_balancer_ips, ["192.0.2.10".parse::<std::net::IpAddr>().unwrap()]);
        for (spec, labels) in [
            (spec("ClusterIP", "None"), json!({})),
            (spec("ExternalName", ""), json!({})),
            (spec("ClusterIP", "10.96.0.1"), json!({"service.kubernetes.io/headless": ""})),
            (
                spec("NodePort", "10.96.0.1"),
                json!({"service.kubernetes.io/service-proxy-name": "o"}),
            ),
        ] {
            let (service, faults) = service(spec.clone(), labels);
            assert_eq!(faults, Vec::<String>::new());
            assert!(service.cluster_ips.is_empty() && service.external_ips.is_empty(), "{spec}");
            assert!(service.load_balancer_ips.is_empty(), "{spec}");
            assert_eq!(service.ports[0].node_port, None, "{spec}");
        }
    }
}
