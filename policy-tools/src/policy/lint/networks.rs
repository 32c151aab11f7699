//! Finds `ipBlock`s with addresses of the cluster's own: policies match pods by labels, and see no service addresses.

use control::Object;
use ipnet::IpNet;

use super::Findings;
use crate::input::pods;

impl Findings<'_> {
    /// Reports an `ipBlock` with addresses of services or pods.
    pub(super) fn block(&mut self, objects: &[Object], name: &str, path: &str, net: &IpNet) {
        // A wide network, such as 10.0.0.0/8, means more than these.
        let is_narrow = net.max_prefix_len() - net.prefix_len() <= 8;
        let service = objects.iter().find_map(|object| match object {
            Object::Service(it) => it.cluster_ips.iter().any(|ip| net.contains(ip)).then_some(it),
            _ => None,
        });
        if let Some(service) = service.filter(|_| is_narrow) {
            let message = format!(
                "{net} holds an address of service {}, which no policy sees: connections to it are judged by \
                 the pods behind it; select these",
                service.key
            );
            self.add_to(name, path, "block-of-service", message);
            return;
        }
        let of_node = objects.iter().find_map(|object| match object {
            Object::Node(node) => node.pod_cidrs.iter().find(|it| it.contains(net)),
            _ => None,
        });
        let pod = pods(objects)
            .filter(|pod| pod.is_on_pod_network())
            .find(|pod| is_narrow && pod.addresses.iter().any(|ip| net.contains(ip)));
        let whose = match (pod, of_node) {
            (Some(pod), _) => format!("an address of pod {}", pod.key),
            (None, Some(cidr)) => format!("addresses of pods, of {cidr}"),
            (None, None) => return,
        };
        let message = format!(
            "{net} holds {whose}: pods change their addresses; select them by labels with podSelector"
        );
        self.add_to(name, path, "block-of-pods", message);
    }
}
