//! Renders the view's services for the dataplane of one node.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::model::Key;
use control::{ServiceView, View};
use dataplane::services::{Entry, Scope, Services};

use super::endpoints::{Families, ports};
use super::host_ports::{HostPorts, add_host_ports, host_ports};
use super::switch_ports::SwitchPorts;
use ipnet::IpNet;
use linux_net::redirect::Redirects;

/// Renders services incrementally: building the endpoint table of a large service takes a while.
#[derive(Debug, Default)]
pub struct ServiceMaker {
    made: BTreeMap<Key, (Arc<ServiceView>, Vec<Families>)>,
    last: Option<Arc<BTreeMap<Key, Arc<ServiceView>>>>,
    /// The node's zone, which `made` depends on.
    zone: Option<Arc<str>>,
    /// The pods that are reached at ports of the node.
    host_ports: Vec<HostPorts>,
    services: Arc<Services>,
    /// For processes of the node itself, if it has a kernel.
    switch_ports: Option<SwitchPorts>,
    redirects: Arc<Redirects>,
}

impl ServiceMaker {
    /// One whose services can also be reached by processes of the node itself.
    pub fn with_own_processes() -> Self {
        Self { switch_ports: Some(SwitchPorts::default()), ..Self::default() }
    }

    /// The kernel's redirects for such processes, for the services rendered last.
    pub fn redirects(&self) -> &Arc<Redirects> {
        &self.redirects
    }

    /// The services of node `node`.
    pub fn services(&mut self, view: &View, node: &str) -> Arc<Services> {
        let zone = view.nodes.get(node).and_then(|node| node.zone.clone());
        let host_ports = host_ports(view, node);
        let is_same = |last: &Arc<_>| {
            Arc::ptr_eq(last, &view.services) && self.zone == zone && self.host_ports == host_ports
        };
        if self.last.as_ref().is_some_and(is_same) {
            return Arc::clone(&self.services);
        }
        if self.zone != zone {
            self.made.clear();
            self.zone.clone_from(&zone);
        }
        self.made.retain(|key, _| view.services.contains_key(key));
        let mut services = Services::default();
        for (key, service) in view.services.iter() {
            let known = self.made.get(key).is_some_and(|(known, _)| Arc::ptr_eq(known, service));
            if !known {
                self.made.insert(
                    key.clone(),
                    (Arc::clone(service), ports(service, node, zone.as_deref())),
                );
            }
            let (_, ports) = &self.made[key];
            add(&mut services, service, ports);
        }
        host_ports.iter().for_each(|pod| add_host_ports(&mut services, pod));
        self.host_ports = host_ports;
        if let Some(ports) = &mut self.switch_ports {
            let redirects = ports.add_to(&mut services);
            if *self.redirects != redirects {
                self.redirects = Arc::new(redirects);
            }
        }
        self.last = Some(Arc::clone(&view.services));
        self.services = Arc::new(services);
        Arc::clone(&self.services)
    }
}

fn add(services: &mut Services, view: &ServiceView, ports: &[Families]) {
    let service = &view.service;
    // An address that is of both kinds is restricted as a load balancer's.
    let external = service.load_balancer_ips.iter().chain(&service.external_ips);
    let sources: Option<Arc<[IpNet]>> = service.source_ranges.as_deref().map(Arc::from);
    let scoped = service.cluster_ips.iter().map(|address| (address, Scope::Cluster));
    let scoped: Vec<_> = scoped.chain(external.map(|address| (address, Scope::External))).collect();
    // A cluster address has no other owner: other ports than the service's are refused.
    service.cluster_ips.iter().for_each(|address| services.claim((*address).into()));
    for (port, families) in service.ports.iter().zip(ports) {
        let protocol = port.protocol.number();
        for (address, scope) in &scoped {
            let family = &families[usize::from(address.is_ipv6())];
            let entry = Entry { port: Arc::clone(family), scope: *scope };
            services.add((**address).into(), protocol, port.port, entry);
            if let Some(sources) = &sources
                && service.load_balancer_ips.contains(address)
            {
                services.restrict((**address).into(), protocol, port.port, Arc::clone(sources));
            }
        }
        if let Some(node_port) = port.node_port {
            for (v6, family) in [false, true].into_iter().zip(families) {
                services.add_node_port(v6, protocol, node_port, Arc::clone(family));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use control::{Control, Scope, manifests};
    use dataplane::services::Backends;
    use dataplane::wire::{Flow, protocol};

    const MANIFESTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIPs: ["10.96.0.1", "fd60::1"]
  externalIPs: ["203.0.113.7"]
  externalTrafficPolicy: Local
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
status: {loadBalancer: {ingress: [{ip: "203.0.113.8"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}
endpoints:
- {addresses: ["10.1.0.2"], nodeName: node1, conditions: {ready: true}}
- {addresses: ["10.2.0.2"], nodeName: node2, conditions: {ready: true}}
- {addresses: ["10.2.0.3"], nodeName: node2, conditions: {ready: false}}
- {addresses: ["10.2.0.4"], nodeName: node2, conditions: {ready: false, serving: true, terminating: true}}
ports: [{name: http, port: 8080}, {name: other, port: 9}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv6
metadata: {name: web-6, namespace: default, labels: {kubernetes.io/service-name: web}}
endpoints:
- {addresses: ["fd02::4"], nodeName: node2, conditions: {ready: false, serving: true, terminating: true}}
ports: [{name: http, port: 8080}]
"#;

    fn view(text: &str) -> Arc<View> {
        let folder = testkit::TempDir::new("services");
        std::fs::write(folder.path().join("all.yaml"), text).unwrap();
        let loaded = manifests::load(&[folder.path().to_path_buf()]);
        assert_eq!(loaded.faults, []);
        let mut control = Control::new(Scope::Node("node1".into()));
        control.permit_external_ips(vec!["203.0.113.0/24".parse().unwrap()], Vec::new());
        control.resync(loaded.objects);
        control.commit();
        control.view()
    }

    fn entry<'a>(services: &'a Services, address: &str) -> &'a Entry {
        let destination: IpAddr = address.parse().unwrap();
        let flow = Flow {
            destination: destination.into(),
            destination_port: 80,
            protocol: 6,
            ..Flow::default()
        };
        services.find(&flow).expect("a service")
    }

    fn addresses(backends: &Backends) -> Vec<String> {
        backends.list().iter().map(|it| format!("{}:{}", { it.address }, it.port)).collect()
    }

    #[test]
    fn each_way_to_a_service_leads_to_the_endpoints_that_it_may() {
        let services = ServiceMaker::default().services(&view(MANIFESTS), "node1");
        let ready = ["10.1.0.2:8080", "10.2.0.2:8080"];
        let cluster = entry(&services, "10.96.0.1");
        assert_eq!(addresses(cluster.backends(false)), ready);
        // externalTrafficPolicy is about clients outside and not about the cluster address.
        for address in ["203.0.113.7", "203.0.113.8"] {
            let external = entry(&services, address);
            assert_eq!(addresses(external.backends(true)), ["10.1.0.2:8080"]);
            assert_eq!(addresses(external.backends(false)), ready);
        }
        // Without ready endpoints, terminating ones that still serve are used.
        assert_eq!(addresses(entry(&services, "fd60::1").backends(false)), ["fd02::4:8080"]);
        let elsewhere = ServiceMaker::default().services(&view(MANIFESTS), "node3");
        assert!(entry(&elsewhere, "203.0.113.7").backends(true).is_empty());
    }

    /// Three endpoints in two zones; the first is for the nodes NODES.
    const HINTED: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: NODE, labels: {topology.kubernetes.io/zone: ZONE}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIPs: ["10.96.0.1"], trafficDistribution: PreferClose, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}
endpoints:
- {addresses: ["10.1.0.2"], nodeName: node1, hints: {forZones: [{name: a}]NODES}}
- {addresses: ["10.2.0.2"], nodeName: node2, hints: {forZones: [{name: a}], forNodes: [{name: node2}]}}
- {addresses: ["10.3.0.2"], nodeName: node3, hints: {forZones: [{name: b}, {name: c}], forNodes: [{name: node3}]}}
ports: [{port: 80}]
"#;

    fn hinted(node: &str, zone: &str, nodes: &str) -> String {
        HINTED.replace("NODES", nodes).replace("NODE", node).replace("ZONE", zone)
    }

    #[test]
    fn hints_choose_the_endpoints_of_the_node_else_of_the_zone() {
        let addresses_in = |view: &View, node: &str| {
            let services = ServiceMaker::default().services(view, node);
            addresses(entry(&services, "10.96.0.1").backends(false)).join(" ")
        };
        let chosen = |node: &str, zone: &str, nodes: &str| {
            addresses_in(&view(&hinted(node, zone, nodes)), node)
        };
        let for_node1 = ", forNodes: [{name: node1}]";
        assert_eq!(chosen("node1", "c", for_node1), "10.1.0.2:80");
        assert_eq!(chosen("node3", "a", for_node1), "10.3.0.2:80");
        assert_eq!(chosen("node4", "a", for_node1), "10.1.0.2:80 10.2.0.2:80");
        // One endpoint without a hint for nodes: zones decide.
        assert_eq!(chosen("node3", "a", ""), "10.1.0.2:80 10.2.0.2:80");
        assert_eq!(chosen("node1", "c", ""), "10.3.0.2:80");
        // A zone without endpoints uses all of them.
        assert_eq!(chosen("node1", "d", ""), "10.1.0.2:80 10.2.0.2:80 10.3.0.2:80");
        // One endpoint without a hint: all of them, unless it is about to end.
        for (more, chosen) in [
            ("{addresses: [10.4.0.2]}", "10.1.0.2:80 10.2.0.2:80 10.3.0.2:80 10.4.0.2:80"),
            (
                "{addresses: [10.4.0.2], conditions: {ready: false, serving: true, terminating: true}}",
                "10.3.0.2:80",
            ),
        ] {
            let text = hinted("node4", "c", "")
                .replace("endpoints:\n", &format!("endpoints:\n- {more}\n"));
            assert_eq!(addresses_in(&view(&text), "node4"), chosen);
        }
    }

    #[test]
    fn host_ports_lead_to_the_pods_of_the_cluster_node() {
        const PODS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec:
  nodeName: node1
  containers:
  - name: c
    ports:
    - {containerPort: 80, hostPort: 8080}
    - {containerPort: 80, hostPort: 8081, hostIP: 192.0.2.1}
    - {containerPort: 80, hostPort: 8082, hostIP: 198.51.100.8}
    - {containerPort: 80, hostPort: 8083, hostIP: 127.0.0.1}
    - {containerPort: 80, hostPort: 8084, hostIP: 0.0.0.0}
    - {containerPort: 80, hostPort: 30080}
status: {podIPs: [{ip: 10.1.0.2}, {ip: "fd01::2"}]}
---
"#;
        let view = view(&format!("{PODS}{MANIFESTS}"));
        let mut maker = ServiceMaker::with_own_processes();
        let services = maker.services(&view, "node1");
        let at = |destination: &str, port| {
            let destination = destination.parse::<IpAddr>().unwrap().into();
            let flow = Flow { destination, destination_port: port, protocol: 6, ..Flow::default() };
            let entry = services.find(&flow).or_else(|| services.find_node_port(&flow));
            entry.map(|entry| addresses(entry.backends(true)).join(" ")).unwrap_or_default()
        };
        assert_eq!(at("192.0.2.1", 8080), "10.1.0.2:80");
        assert_eq!(at("2001:db8::1", 8080), "fd01::2:80");
        assert_eq!(
            (at("192.0.2.1", 8081), at("192.0.2.7", 8081)),
            ("10.1.0.2:80".into(), "".into())
        );
        // Not at addresses of others, and not at loopback.
        assert_eq!((at("198.51.100.8", 8082), at("127.0.0.1", 8083)), ("".into(), "".into()));
        assert_eq!(
            (at("192.0.2.1", 8084), at("2001:db8::1", 8084)),
            ("10.1.0.2:80".into(), "".into())
        );
        assert_eq!(at("192.0.2.1", 30080), "10.1.0.2:8080", "a service's node port comes first");
        assert!(maker.redirects().node_ports.iter().any(|(_, port, _)| *port == 8080));
        // The same services and pods on a node that has got the address later.
        let mut known_late = ServiceMaker::default();
        let unknown = View { nodes: Arc::default(), ..View::clone(&view) };
        let at_its_address = |services: &Services| {
            let destination = "192.0.2.1".parse::<IpAddr>().unwrap().into();
            let flow = Flow { destination, destination_port: 8081, protocol: 6, ..Flow::default() };
            services.find(&flow).is_some()
        };
        assert!(!at_its_address(&known_late.services(&unknown, "node1")));
        assert!(at_its_address(&known_late.services(&view, "node1")));
        // Other nodes have other pods; a pod that goes takes its ports along.
        let elsewhere = ServiceMaker::default().services(&view, "node2");
        assert_eq!(elsewhere.node_ports().filter(|(_, _, port, _)| *port == 8080).count(), 0);
        let without = View { pods: Arc::default(), ..View::clone(&view) };
        let after = maker.services(&without, "node1");
        assert_eq!(after.node_ports().filter(|(_, _, port, _)| *port == 8080).count(), 0);
    }

    #[test]
    fn a_changed_zone_changes_the_choice() {
        let (mut maker, mut zoned) =
            (ServiceMaker::default(), View::clone(&view(&hinted("node4", "a", ""))));
        let mut chosen = |zone: &str| {
            let node = control::ClusterNode { zone: Some(zone.into()), ..Default::default() };
            zoned.nodes = Arc::new([(Arc::from("node4"), Arc::new(node))].into());
            let services = maker.services(&zoned, "node4");
            addresses(entry(&services, "10.96.0.1").backends(false)).join(" ")
        };
        assert_eq!(chosen("a"), "10.1.0.2:80 10.2.0.2:80");
        assert_eq!(chosen("b"), "10.3.0.2:80");
    }

    #[test]
    fn source_ranges_restrict_load_balancer_addresses_alone() {
        const RANGES: &str = "spec:\n  loadBalancerSourceRanges: [198.51.100.0/24]\n";
        let view = view(&MANIFESTS.replacen("spec:\n", RANGES, 1));
        let mut maker = ServiceMaker::with_own_processes();
        let services = maker.services(&view, "node1");
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        let sources = |at: IpAddr, port| {
            let sources = services.sources(at.into(), protocol::TCP, port)?;
            Some(sources.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let restricted = Some(vec!["198.51.100.0/24".to_owned()]);
        assert_eq!(sources(address("203.0.113.8"), 80), restricted);
        for open in ["203.0.113.7", "10.96.0.1", "fd60::1"] {
            assert_eq!(sources(address(open), 80), None, "{open}");
        }
        // The same for processes of the node itself, which come by a port of the switch's.
        let by =
            |external: &str| maker.redirects().addresses[&(address(external), protocol::TCP, 80)];
        let (load_balancer, external) = (by("203.0.113.8"), by("203.0.113.7"));
        assert_eq!(sources(load_balancer.ip(), load_balancer.port()), restricted);
        assert_eq!(sources(external.ip(), external.port()), None);
        for own in [external.ip(), address("10.96.0.1"), address("fd60::1")] {
            assert!(services.is_claimed(own.into()), "{own}: other ports lead nowhere");
        }
    }

    #[test]
    fn only_what_has_changed_is_made_anew() {
        let mut maker = ServiceMaker::default();
        let first = view(MANIFESTS);
        let services = maker.services(&first, "node1");
        assert!(Arc::ptr_eq(&services, &maker.services(&first, "node1")));
        let mut second = View::clone(&first);
        second.services = Arc::new(BTreeMap::clone(&first.services));
        let again = maker.services(&second, "node1");
        let port = |services: &Services| Arc::clone(&entry(services, "10.96.0.1").port);
        assert!(Arc::ptr_eq(&port(&services), &port(&again)));
    }
}
