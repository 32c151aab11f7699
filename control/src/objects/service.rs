//! Services and endpoint slices.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{ObjectRef, reader};
use crate::FieldFault;
use crate::model::{Endpoint, EndpointPort, EndpointSlice, Key, Service, ServicePort, TargetPort};

type Faults = Vec<FieldFault>;

fn key(reference: &ObjectRef) -> Key {
    Key {
        namespace: reference.namespace.clone().unwrap_or_else(|| "default".into()),
        name: Arc::clone(&reference.name),
    }
}

/// Collects what is fine and keeps the faults.
fn sieve<T, E>(results: impl IntoIterator<Item = Result<T, E>>, faults: &mut Vec<E>) -> Vec<T> {
    results
        .into_iter()
        .filter_map(|result| result.map_err(|fault| faults.push(fault)).ok())
        .collect()
}

pub(super) fn service(reference: &ObjectRef, value: Value) -> Result<Service, Faults> {
    let object: core::Service = reader::typed(value, "").map_err(|fault| vec![fault])?;
    let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
    let mut faults = Vec::new();
    let listed = spec.cluster_ips.unwrap_or_default();
    let cluster_ips = if listed.is_empty() { Vec::from_iter(spec.cluster_ip) } else { listed };
    let balancers = status.load_balancer.and_then(|it| it.ingress).unwrap_or_default();
    let mut addresses = |field: &str, texts: Vec<String>| {
        let wanted = texts.iter().enumerate().filter(|(_, text)| !matches!(&***text, "" | "None"));
        sieve(
            wanted.map(|(index, text)| reader::address(text, || reader::at(field, index))),
            &mut faults,
        )
    };
    let cluster_ips = addresses("spec.clusterIPs", cluster_ips);
    let external_ips = addresses("spec.externalIPs", spec.external_ips.unwrap_or_default());
    let load_balancer_ips = addresses(
        "status.loadBalancer.ingress",
        balancers.into_iter().filter_map(|ingress| ingress.ip).collect(),
    );
    let ports = spec.ports.into_iter().flatten().enumerate();
    let ports = sieve(ports.map(|(index, port)| service_port(index, port)), &mut faults);
    let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let timeout = spec
        .session_affinity_config
        .and_then(|config| config.client_ip)
        .and_then(|config| config.timeout_seconds)
        .and_then(|seconds| u32::try_from(seconds).ok());
    match faults.is_empty() {
        true => Ok(Service {
            key: key(reference),
            cluster_ips,
            external_ips,
            load_balancer_ips,
            ports,
            external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            // Three hours is the API's own default.
            affinity_seconds: affinity.then(|| timeout.unwrap_or(10_800)),
        }),
        false => Err(faults),
    }
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
        name: port.name.unwrap_or_default().into(),
        protocol: reader::protocol(port.protocol.as_deref(), || field("protocol"))?,
        port: number,
        target,
        node_port: match port.node_port {
            None | Some(0) => None,
            Some(number) => Some(reader::port(number, || field("nodePort"))?),
        },
    })
}

pub(super) fn endpoint_slice(reference: &ObjectRef, value: Value) -> Result<EndpointSlice, Faults> {
    let object: discovery::EndpointSlice = reader::typed(value, "").map_err(|fault| vec![fault])?;
    let by_name = object.address_type == "FQDN";
    let mut faults = Vec::new();
    let mut endpoints = Vec::new();
    for (index, endpoint) in object.endpoints.into_iter().flatten().enumerate().filter(|_| !by_name)
    {
        let field = |nth| format!("endpoints[{index}].addresses[{nth}]");
        let texts = endpoint.addresses.iter().enumerate();
        let conditions = endpoint.conditions.unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        endpoints.push(Endpoint {
            addresses: sieve(
                texts.map(|(nth, text)| reader::address(text, || field(nth))),
                &mut faults,
            ),
            ready,
            serving: conditions.serving.unwrap_or(ready),
            terminating: conditions.terminating.unwrap_or(false),
            node: endpoint.node_name.map(Arc::from),
        });
    }
    let ports = object.ports.into_iter().flatten().enumerate().map(|(index, port)| {
        let field = |name: &str| format!("ports[{index}].{name}");
        Ok(EndpointPort {
            name: port.name.unwrap_or_default().into(),
            protocol: reader::protocol(port.protocol.as_deref(), || field("protocol"))?,
            port: port.port.map(|number| reader::port(number, || field("port"))).transpose()?,
        })
    });
    let ports = sieve(ports, &mut faults);
    let service = object
        .metadata
        .labels
        .and_then(|mut labels| labels.remove("kubernetes.io/service-name").map(Arc::from));
    match faults.is_empty() {
        true => Ok(EndpointSlice { key: key(reference), service, endpoints, ports }),
        false => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use crate::model::TargetPort;
    use crate::objects::{Object, Read, read};
    use serde_json::json;

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
}
