//! Checks ports of rules against those of the containers they lead to.

use std::collections::BTreeSet;

use control::Object;
use control::model::{
    Direction, Pod, PolicyRule, PortSpec, Ports, Protocol, Service, ServicePort, TargetPort,
};

use super::Findings;
use crate::input::Manifests;
use crate::policy::labels::nearest;

/// Ports of Istio's proxies, which are added when a pod is made or declare few of them
/// (<https://istio.io/latest/docs/ops/deployment/application-requirements/#ports-used-by-istio>).
const OF_PROXIES: [u16; 10] =
    [15_000, 15_001, 15_004, 15_006, 15_008, 15_014, 15_020, 15_021, 15_053, 15_090];

impl Findings<'_> {
    /// Reports ports of a rule that none of its pods has.
    pub(super) fn ports(
        &mut self,
        manifests: &Manifests,
        (name, path): (&str, &str),
        rule: &PolicyRule,
        (meant, direction): (&[&Pod], Direction),
    ) {
        if meant.is_empty() {
            return;
        }
        for (n, ports) in rule.ports.iter().flatten().enumerate() {
            let place = format!("{path}.ports[{n}].port");
            let which = match (direction, meant.len()) {
                (Direction::Ingress, 1) => "the selected pod".to_owned(),
                (Direction::Ingress, count) => format!("the {count} selected pods"),
                (Direction::Egress, 1) => "the pod that the peers select".to_owned(),
                (Direction::Egress, count) => format!("the {count} pods that the peers select"),
            };
            match &ports.port {
                PortSpec::All => {}
                PortSpec::Name(port) => {
                    let has = |pod: &&Pod| pod.named_port(port, ports.protocol).is_some();
                    if meant.iter().any(has) {
                        continue;
                    }
                    let names: BTreeSet<&str> = meant
                        .iter()
                        .flat_map(|pod| pod.ports.named.iter())
                        .map(|it| &*it.name)
                        .collect();
                    let near = nearest(port, names.iter().copied());
                    let hint = match near {
                        Some(near) => format!("did you mean {near}?"),
                        None => "name a port of a container so, or write its number".to_owned(),
                    };
                    let message = format!(
                        "no container of {which} has a {} port {port}, so no port is meant; {hint}",
                        ports.protocol
                    );
                    self.add_to(name, &place, "unknown-port-name", message);
                }
                PortSpec::Range(range) => {
                    let declared = meant.iter().map(|pod| manifests.container_ports.get(&pod.key));
                    let Some(declared) = declared.collect::<Option<Vec<_>>>() else { continue };
                    let is_it = |(protocol, port): &(Protocol, u16)| {
                        *protocol == ports.protocol && range.contains(*port)
                    };
                    if declared.iter().any(|it| it.iter().any(is_it)) {
                        continue;
                    }
                    if let Some((service, target)) = leading(manifests, ports, meant) {
                        let message = format!(
                            "{} is a port of service {service}, which leads to {target} of the pods: \
                             policies are about the pods' port, so write {target}",
                            range.first
                        );
                        self.add_to(name, &place, "service-port", message);
                    } else if range.first == range.last
                        && !OF_PROXIES.contains(&range.first)
                        && !is_target(manifests, ports, meant)
                    {
                        let known = declared.into_iter().flatten().collect::<BTreeSet<_>>();
                        let known =
                            known.iter().map(|(protocol, port)| format!("{protocol} {port}"));
                        let known: Vec<String> = known.collect();
                        let message = format!(
                            "no container of {which} has {} port {}, only {}: write the one that is meant, or declare \
                             it as a containerPort",
                            ports.protocol,
                            range.first,
                            known.join(", ")
                        );
                        self.add_to(name, &place, "port-of-no-container", message);
                    }
                }
            }
        }
    }
}

/// Returns a service of these pods with this port that has another target port, and that port.
fn leading(manifests: &Manifests, ports: &Ports, meant: &[&Pod]) -> Option<(String, String)> {
    let PortSpec::Range(range) = &ports.port else { return None };
    services(manifests, meant).find_map(|service| {
        let mut own = service.ports.iter().filter(|it| it.protocol == ports.protocol);
        let port = own.find(|it| range.first == it.port && range.last == it.port)?;
        let target = match &port.target {
            TargetPort::Number(number) if *number == port.port => return None,
            TargetPort::Number(number) => number.to_string(),
            TargetPort::Name(name) => name.to_string(),
        };
        Some((service.key.to_string(), target))
    })
}

/// Returns whether this is a target port of a service of these pods: they listen there, declared or not.
fn is_target(manifests: &Manifests, ports: &Ports, meant: &[&Pod]) -> bool {
    let PortSpec::Range(range) = &ports.port else { return false };
    let is_it = |it: &ServicePort| {
        it.protocol == ports.protocol && it.target == TargetPort::Number(range.first)
    };
    services(manifests, meant).any(|service| service.ports.iter().any(is_it))
}

/// The services that select some of these pods.
fn services<'a>(manifests: &'a Manifests, pods: &'a [&Pod]) -> impl Iterator<Item = &'a Service> {
    let is_behind = move |service: &Service| {
        let selector = manifests.selectors.get(&service.key);
        selector.is_some_and(|selector| {
            pods.iter().any(|pod| {
                pod.key.namespace == service.key.namespace
                    && selector.iter().all(|(key, value)| pod.labels.value(key) == Some(value))
            })
        })
    };
    manifests.objects.iter().filter_map(move |object| match object {
        Object::Service(service) => is_behind(service).then_some(&**service),
        _ => None,
    })
}
