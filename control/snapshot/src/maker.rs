//! Snapshots of one node, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::{ClusterNode, PodAcl, PodKey, PodView, View};
use dataplane::Snapshot;

use super::{NodeContext, NodePort, snapshot};

/// Makes a node's snapshots. Most events of a cluster change the identities of addresses alone:
/// such a snapshot shares everything else with the last one.
#[derive(Debug, Default)]
pub struct SnapshotMaker {
    last: Option<Made>,
}

/// A snapshot, and all that it was made of but address maps.
#[derive(Debug)]
struct Made {
    pods: Arc<BTreeMap<PodKey, Arc<PodView>>>,
    outside: PodAcl,
    host_services: Option<[PodAcl; 2]>,
    cluster_node: Option<Arc<ClusterNode>>,
    context: NodeContext,
    ports: Arc<[NodePort]>,
    snapshot: Arc<Snapshot>,
}

impl SnapshotMaker {
    /// The snapshot of node `node`; see [`snapshot`].
    pub fn snapshot(
        &mut self,
        view: &View,
        node: &str,
        context: NodeContext,
        generation: u64,
        ports: impl Into<Arc<[NodePort]>>,
    ) -> Arc<Snapshot> {
        let ports = ports.into();
        let cluster_node = view.nodes.get(node);
        let host_services = view.host_services.get(node);
        let is_same = |last: &&mut Made| {
            Arc::ptr_eq(&last.pods, &view.pods)
                && last.outside.is_same(&view.outside)
                && PodAcl::are_same(last.host_services.as_ref(), host_services)
                && last.cluster_node.as_ref() == cluster_node
                && last.context.is_same(&context)
                && (Arc::ptr_eq(&last.ports, &ports) || last.ports == ports)
        };
        if let Some(last) = self.last.as_mut().filter(is_same) {
            let (addresses, live) = (Arc::clone(&view.addresses), Arc::clone(&view.live_addresses));
            last.snapshot = Arc::new(last.snapshot.with_addresses(generation, addresses, live));
            return Arc::clone(&last.snapshot);
        }
        let made = Arc::new(snapshot(view, node, context.clone(), generation, &ports));
        self.last = Some(Made {
            pods: Arc::clone(&view.pods),
            outside: view.outside.clone(),
            host_services: host_services.cloned(),
            cluster_node: cluster_node.cloned(),
            context,
            ports,
            snapshot: Arc::clone(&made),
        });
        made
    }
}

impl NodeContext {
    /// Whether both are equal, and have the same services and routes in memory.
    fn is_same(&self, other: &Self) -> bool {
        let Self {
            node_addresses,
            link_local_destinations,
            services,
            routes,
            underlay,
            masquerade,
            translation_ports,
            verify_every,
        } = self;
        *node_addresses == other.node_addresses
            && *link_local_destinations == other.link_local_destinations
            && Arc::ptr_eq(services, &other.services)
            && Arc::ptr_eq(routes, &other.routes)
            && *underlay == other.underlay
            && *masquerade == other.masquerade
            && *translation_ports == other.translation_ports
            && *verify_every == other.verify_every
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use control::{Control, Scope, manifests};
    use dataplane::{AclBinding, PortId};

    use super::*;
    use crate::PortRole;

    const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: near}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec: {nodeName: near}
status: {podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: default, labels: {app: client}}
spec: {nodeName: far}
status: {podIPs: [{ip: 10.2.0.3}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}]
"#;

    /// Another pod of a peer set that has one: a first one is a new identity, for which tables are compiled.
    const CLIENT: &str = r#"
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default, labels: {app: client}}
spec: {nodeName: far}
status: {podIPs: [{ip: 10.2.0.2}]}
"#;

    /// A control side, and a maker that made its first snapshot.
    struct Site {
        control: Control,
        maker: SnapshotMaker,
        context: NodeContext,
        ports: Vec<NodePort>,
        last: Arc<Snapshot>,
    }

    impl Site {
        fn new() -> Self {
            let mut site = Self {
                control: Control::new(Scope::Node("near".into())),
                maker: SnapshotMaker::default(),
                context: NodeContext::default(),
                ports: Vec::new(),
                last: Arc::default(),
            };
            let key = PodKey { namespace: "default".into(), name: "web".into() };
            let role = PortRole::Pod(key, vec!["10.1.0.2".parse().unwrap()]);
            site.ports.push(NodePort::new(PortId(0), role));
            site.apply(CLUSTER);
            site.publish();
            site
        }

        fn apply(&mut self, text: &str) {
            let folder = testkit::TempDir::new("maker");
            std::fs::write(folder.path().join("all.yaml"), text).unwrap();
            let loaded = manifests::load(&[folder.path().to_path_buf()]);
            assert_eq!(loaded.faults, []);
            self.control.resync(loaded.objects);
            self.control.commit();
        }

        /// Makes the next snapshot. Whether it shares its ports with the last one.
        fn publish(&mut self) -> bool {
            let (view, generation) = (self.control.view(), self.last.generation + 1);
            let (context, ports) = (self.context.clone(), self.ports.clone());
            let made = self.maker.snapshot(&view, "near", context, generation, ports);
            let anew = snapshot(&view, "near", self.context.clone(), generation, &self.ports);
            let text = |snapshot: &Snapshot| {
                let ports: Vec<_> = snapshot.ports().collect();
                let addresses = ["10.1.0.2", "192.0.2.1", "192.0.2.9", "172.17.0.1", "8.8.8.8"]
                    .map(|text| text.parse::<IpAddr>().unwrap().into());
                let ways = addresses.map(|it| (snapshot.is_own_node(it), snapshot.route(it)));
                let maps = [snapshot.address_map(), snapshot.live_address_map()];
                format!("{} {ports:?} {ways:?} {maps:?}", snapshot.generation)
            };
            assert!(text(&made) == text(&anew), "as if made anew");
            let last = std::mem::replace(&mut self.last, made);
            last.shares_ports(&self.last)
        }
    }

    #[test]
    fn a_change_of_identities_alone_shares_everything_else() {
        let mut site = Site::new();
        let client: IpAddr = "10.2.0.2".parse().unwrap();
        let identity = |site: &Site| site.last.address_map().lookup(client.into());
        let nobody = identity(&site);
        site.apply(&format!("{CLUSTER}{CLIENT}"));
        assert!(site.publish());
        assert_ne!(identity(&site), nobody);
        site.apply(CLUSTER);
        assert!(site.publish());
        assert_eq!(identity(&site), nobody);
    }

    #[test]
    fn what_ports_are_made_of_makes_them_anew() {
        let mut site = Site::new();
        assert!(site.publish(), "nothing changed");
        site.apply(&CLUSTER.replace("port: 80", "port: 81"));
        assert!(!site.publish(), "a policy");
        site.apply(&CLUSTER.replace("192.0.2.1", "192.0.2.9"));
        assert!(!site.publish(), "the node's address");
        assert!(site.last.is_own_node("192.0.2.9".parse::<IpAddr>().unwrap().into()));
        site.ports[0].mac = Some([2, 0, 0, 0, 0, 7]);
        assert!(!site.publish(), "a port");
        site.context.node_addresses.push("172.17.0.1".parse().unwrap());
        assert!(!site.publish(), "an address of the node's kernel");
        site.context.services = Arc::default();
        assert!(!site.publish(), "services");
        site.context.masquerade = true;
        assert!(!site.publish(), "the way to the world");
        site.ports.clear();
        assert!(!site.publish(), "a port that is gone");
        assert!(site.publish(), "nothing changed since");
    }

    #[test]
    fn a_pod_that_is_gone_is_closed_at_once() {
        let mut site = Site::new();
        let is_closed = |site: &Site| {
            let port = site.last.port(PortId(0)).unwrap();
            matches!((&port.to_pod, &port.from_pod), (AclBinding::Closed, AclBinding::Closed))
        };
        assert!(!is_closed(&site));
        site.apply(CLIENT);
        assert!(!site.publish() && is_closed(&site));
    }
}
