//! The probe's answers are the running switch's: random clusters, each with a graph of its own
//! for every node, built as the switch builds it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use dataplane::wire;
use dataplane::{Outcome, PortId, Routes, SWITCH_MAC, Underlay};
use policy_tools::input::Manifests;
use policy_tools::policy::explain::explain;
use policy_tools::probe::opening::Opening;
use policy_tools::probe::switch::{HOST, Step, Switch, UPLINK, ports};
use policy_tools::probe::{Case, ProbeVerdict, Prober, Protocol};
use proptest::prelude::*;
use snapshot::{NextHop, NodeContext, ServiceMaker};
use testkit::TempDir;
use testkit::manifests::{node, pod};

use super::case;

/// A cluster: two nodes, pods with one of three labels, policies and a service.
#[derive(Clone, Debug)]
struct Plan {
    /// Node and label of each pod.
    pods: Vec<(usize, usize)>,
    /// Label that each policy selects, label or network it lets in, and its direction.
    policies: Vec<(usize, usize, bool)>,
    /// Label that the service selects, and its two traffic policies.
    service: (usize, bool, bool),
    /// Whether a firewall for all denies what is in the pods' namespace.
    has_firewall: bool,
}

const LABELS: [&str; 3] = ["app: a", "app: b", "app: c"];
/// Peers: by label, a network outside, the pod network of the second node, its address.
const PEERS: [&str; 6] = [
    "podSelector: {matchLabels: {app: a}}",
    "podSelector: {matchLabels: {app: b}}",
    "podSelector: {matchLabels: {app: c}}",
    "ipBlock: {cidr: 198.51.100.0/24}",
    "ipBlock: {cidr: 10.1.2.0/24}",
    "ipBlock: {cidr: 192.0.2.2/32}",
];

fn plans() -> impl Strategy<Value = Plan> {
    let pods = prop::collection::vec((0..2_usize, 0..3_usize), 2..6);
    let policies = prop::collection::vec((0..3_usize, 0..PEERS.len(), any::<bool>()), 0..4);
    let service = (0..3_usize, any::<bool>(), any::<bool>());
    (pods, policies, service, any::<bool>()).prop_map(|(pods, policies, service, has_firewall)| {
        Plan { pods, policies, service, has_firewall }
    })
}

fn address(n: usize, node: usize) -> String {
    format!("10.1.{}.{}", node + 1, n + 10)
}

fn manifests(plan: &Plan) -> String {
    let mut text = node("n1", "192.0.2.1", "10.1.1.0/24") + &node("n2", "192.0.2.2", "10.1.2.0/24");
    for (n, (on, label)) in plan.pods.iter().enumerate() {
        let (name, at) = (format!("a/p{n}"), address(n, *on));
        text += &pod(&name, LABELS[*label], &format!("n{}", on + 1), &at, "");
    }
    text += &pod("a/host", "app: a", "n1", "192.0.2.1", "hostNetwork: true");
    for (n, (label, peer, egress)) in plan.policies.iter().enumerate() {
        let rules = match egress {
            true => format!("policyTypes: [Egress], egress: [{{to: [{{{}}}]}}]", PEERS[*peer]),
            false => format!("ingress: [{{from: [{{{}}}]}}]", PEERS[*peer]),
        };
        let selector = LABELS[*label];
        text += &testkit::manifests::policy(
            &format!("policy{n}"),
            &format!("podSelector: {{matchLabels: {{{selector}}}}}, {rules}"),
        );
    }
    if plan.has_firewall {
        text += "---\napiVersion: podgate.io/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {name: f}\n\
                 spec: {egress: [{action: Deny, to: [{namespaces: {matchLabels: \
                 {kubernetes.io/metadata.name: a}}}]}]}\n";
    }
    let (label, internal, external) = plan.service;
    let policy = |local| if local { "Local" } else { "Cluster" };
    text += &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: a}}\n\
         spec: {{selector: {{{}}}, clusterIP: 10.96.0.1, externalIPs: [203.0.113.7], \
         internalTrafficPolicy: {}, externalTrafficPolicy: {}, \
         ports: [{{port: 80, targetPort: 8080, nodePort: 30080}}]}}\n",
        LABELS[label],
        policy(internal),
        policy(external)
    );
    text
}

/// The switches of both nodes as they run: routed, all services, all backends.
struct Live {
    switches: BTreeMap<Arc<str>, Switch>,
    ports: BTreeMap<IpAddr, (Arc<str>, PortId)>,
    makers: BTreeMap<Arc<str>, ServiceMaker>,
}

impl Live {
    fn new(prober: &Prober) -> Self {
        let view = prober.control().view();
        let (mut switches, mut places) = (BTreeMap::new(), BTreeMap::new());
        let mut makers = BTreeMap::new();
        for (name, node) in view.nodes.iter() {
            let pods = view.pods.iter().filter(|(_, pod)| pod.node == *name);
            let pods: Vec<_> = pods.map(|(key, pod)| (key, pod.addresses.clone())).collect();
            let ports = ports(pods.clone()).unwrap();
            for ((_, addresses), port) in pods.iter().zip(&ports[2..]) {
                places.extend(addresses.iter().map(|it| (*it, (Arc::clone(name), port.id))));
            }
            places.extend(node.addresses.iter().map(|it| (*it, (Arc::clone(name), HOST))));
            let mut maker = ServiceMaker::with_own_processes();
            let around = NodeContext {
                services: maker.services(&view, name),
                routes: Arc::new(Routes::new(snapshot::peers(&view, name, |_| NextHop {
                    mac: Some(SWITCH_MAC),
                    ..NextHop::default()
                }))),
                underlay: Underlay::Routed,
                ..NodeContext::default()
            };
            let snapshot = snapshot::snapshot(&view, name, around, view.generation, &ports);
            switches.insert(Arc::clone(name), Switch::new(snapshot, ports.len()));
            makers.insert(Arc::clone(name), maker);
        }
        Self { switches, ports: places, makers }
    }

    /// Returns whether the opening packet arrives, and where: `None` if a switch drops it.
    fn open(
        &mut self,
        from: IpAddr,
        entry: &str,
        to: IpAddr,
        port: u16,
        source_port: u16,
    ) -> Option<IpAddr> {
        let place = self.ports.get(&from).cloned();
        let (mut node, mut in_port) = place.unwrap_or((entry.into(), UPLINK));
        let (mut destination, mut destination_port) = (to, port);
        if in_port == HOST {
            // The kernel redirects packets of its own processes.
            let redirects = self.makers[&node].redirects();
            let is_own = self.ports.get(&to) == Some(&(Arc::clone(&node), HOST));
            let own = redirects.node_ports.iter().find(|it| is_own && it.1 == port);
            let redirect = redirects.addresses.get(&(to, 6, port)).or(own.map(|it| &it.2));
            if let Some(redirect) = redirect {
                (destination, destination_port) = (redirect.ip(), redirect.port());
            }
            // What they say to other nodes it sends itself.
            if let Some((other, HOST)) = self.ports.get(&destination)
                && *other != node
            {
                (node, in_port) = (Arc::clone(other), UPLINK);
            }
        }
        let opening = Opening {
            source: from,
            destination,
            protocol: Protocol::Tcp,
            source_port,
            destination_port,
        };
        let mut frame = opening.frame().unwrap();
        for _ in 0..3 {
            let steps = self.switches.get_mut(&node)?.send(in_port, vec![frame]);
            let Step { passage, out_port, frame: left, .. } = steps.into_iter().next()??;
            let opens = [Outcome::PolicyAllowed, Outcome::OwnNode, Outcome::NoPolicy];
            if !opens.contains(&passage.outcome) {
                return None;
            }
            frame = left?;
            let destination = wire::parse(&frame).ok()?.flow.destination.to_ip();
            if out_port != UPLINK {
                return Some(destination);
            }
            match self.ports.get(&destination) {
                Some((next, _)) => (node, in_port) = (Arc::clone(next), UPLINK),
                None => return Some(destination),
            }
        }
        None
    }
}

/// `explain` has the probe's answer, and the decisions at both pods make it.
fn agrees(prober: &mut Prober, case: &Case) -> Result<(), TestCaseError> {
    let answer = prober.answer([case.question()]).unwrap().remove(0);
    let why = explain(prober, case.question()).unwrap();
    prop_assert_eq!(why.verdict, answer.verdict.name());
    prop_assert_eq!(&*why.reason, &*answer.reason);
    prop_assert_eq!(&why.by, &answer.by);
    let ends = [&why.egress, &why.ingress];
    let denied = ends.iter().filter(|it| it.as_ref().is_some_and(|it| !it.permits)).count();
    match (why.permits, why.reason == "policy-denied") {
        (true, _) => prop_assert_eq!(denied, 0),
        (false, true) => prop_assert_eq!(denied, 1),
        (false, false) => {}
    }
    for end in ends.into_iter().flatten() {
        // Whatever no rule lets through comes near to one, or no policy has any.
        let is_default = end.by.as_ref().is_some_and(Origin::is_default_deny);
        prop_assert_eq!(end.closest.is_some(), !end.permits && is_default, "{:?}", end);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Pods, nodes, a host-network pod and clients outside, to each other and to a
    /// service by each of its addresses: where the probe allows, every packet arrives, and where
    /// it denies for one reason, none does.
    #[test]
    fn the_probe_says_what_the_switches_do(plan in plans()) {
        let folder = TempDir::new("agreement");
        let file = folder.path().join("cluster.yaml");
        std::fs::write(&file, manifests(&plan)).unwrap();
        let found = Manifests::load(&[file]).unwrap();
        let mut prober = Prober::new(found, []).unwrap();
        let mut live = Live::new(&prober);

        let mut froms: Vec<(String, IpAddr, &str)> = vec![
            ("a/host".into(), "192.0.2.1".parse().unwrap(), "n1"),
            ("node/n2".into(), "192.0.2.2".parse().unwrap(), "n2"),
            ("198.51.100.9".into(), "198.51.100.9".parse().unwrap(), ""),
            ("203.0.113.200".into(), "203.0.113.200".parse().unwrap(), ""),
        ];
        let mut tos: Vec<(String, IpAddr, u16)> = vec![
            ("node/n1".into(), "192.0.2.1".parse().unwrap(), 22),
            ("node/n1".into(), "192.0.2.1".parse().unwrap(), 30080),
            ("node/n2".into(), "192.0.2.2".parse().unwrap(), 30080),
            ("service/a/s".into(), "10.96.0.1".parse().unwrap(), 80),
            ("203.0.113.7".into(), "203.0.113.7".parse().unwrap(), 80),
            ("192.0.2.77".into(), "192.0.2.77".parse().unwrap(), 443),
        ];
        for (n, (on, _)) in plan.pods.iter().enumerate() {
            let at: IpAddr = address(n, *on).parse().unwrap();
            froms.push((format!("a/p{n}"), at, ""));
            tos.push((format!("a/p{n}"), at, 8080));
        }
        for (from, source, _) in &froms {
            for (to, destination, port) in &tos {
                let outside = !live.ports.contains_key(source);
                // A service's name means its external addresses to clients outside.
                // A node's switch does not see the node's own packets to the world.
                let of_node = live.ports.get(source).is_some_and(|(_, port)| *port == HOST);
                if outside && to == "service/a/s" || of_node && to == "192.0.2.77" {
                    continue;
                }
                let case = case(&format!("{from} {to} TCP {port}"));
                let (_, replies) = prober.replies([case.question()]).unwrap().remove(0);
                agrees(&mut prober, &case)?;
                for (label, reply) in &replies {
                    // Traffic inside one network namespace or outside the cluster has no path.
                    if reply.path.is_empty() {
                        continue;
                    }
                    let entry = reply.path[0].node.clone();
                    let endpoint = label.split(" via ").next().unwrap_or(label);
                    let pods = prober.world();
                    let wanted: Option<IpAddr> = match endpoint.split_once('/') {
                        Some((namespace, name)) => pods
                            .pod(&control::PodKey { namespace: namespace.into(), name: name.into() })
                            .and_then(|pod| pod.addresses.first().copied()),
                        None => endpoint.parse().ok(),
                    };
                    let allowed = reply.answer.verdict == ProbeVerdict::Allow;
                    // The switch's own choice falls on every endpoint, sooner or later.
                    let mut arrivals = Vec::new();
                    let mut got_there = false;
                    for n in 0..if allowed { 1_000 } else { 32_u16 } {
                        let at = live.open(*source, &entry, *destination, *port, 50_000 + n);
                        got_there = at.is_some() && (wanted.is_none() || at == wanted);
                        arrivals.push(at);
                        if got_there {
                            break;
                        }
                    }
                    prop_assert_eq!(
                        got_there, allowed, "{} to {} port {}, {}: {:?} but {:?}",
                        from, to, port, label, reply.answer, &arrivals
                    );
                }
            }
        }
    }
}
