//! Renders the view for the node's interfaces as a ruleset.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use acl::{End, PeerSetId, Rule, Table};
use ahash::RandomState;
use control::model::DeniedReply;
use control::{Members, PodAcl, PodKey, PodView, View};
use ipnet::IpNet;

use crate::base::{self, Conditions};
use crate::ports::{self, Grouped, PortSet};
use crate::reject;
use crate::rules::{self, Families, Way};
use crate::ruleset::{Chain, Elements, Family, Ruleset, Set};

/// The renderer's input beside the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Name of this node; its pods are rendered. Without one, all pods are.
    pub node: Option<Arc<str>>,
    /// Networks from which pods of this node get their addresses, beside those of its
    /// Node object. Closed but for pods that are rendered.
    pub networks: Vec<IpNet>,
    /// The pods' interfaces; a pod without one stays closed.
    pub attachments: BTreeMap<PodKey, Attachment>,
    /// The node's own IPv6 addresses on the pods' bridges: their gateways.
    pub bridge_addresses: BTreeSet<Ipv6Addr>,
    /// Bridges whose ports are all pods'.
    pub pod_bridges: BTreeSet<String>,
    /// True if the kernel passes frames between ports of the pods' bridges to the `inet` hooks.
    pub bridge_filter: bool,
    /// UDP ports of the kernel's own tunnels.
    pub tunnel_ports: BTreeSet<u16>,
}

/// The interface that leads to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the interface in the node's own namespace.
    pub interface: String,
    /// The bridge it is a port of.
    pub bridge: Option<String>,
}

/// Makes rulesets; equal rule lists keep their chains from one to the next.
#[derive(Debug, Default)]
pub struct Renderer {
    lists: HashMap<(Role, DeniedReply, Arc<[Rule]>), List, RandomState>,
    next: u32,
    families: Families,
}

/// Connections of a pod that a list applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// Those that the pod opens.
    From,
    /// Those opened to the pod.
    To,
}

/// A rule list with its chains.
#[derive(Debug)]
struct List {
    id: u32,
    chains: [Arc<[String]>; 2],
    ports: Vec<PortSet>,
    used: bool,
}

/// The sets and chains being filled.
struct Draft<'a> {
    view: &'a View,
    ruleset: Ruleset,
    node_addresses: &'a [IpAddr],
    /// The lists of tables that were met already: many pods share one.
    lists: HashMap<(Role, DeniedReply, *const Table), u32, RandomState>,
}

impl Renderer {
    /// The ruleset for a view that was published with peer sets.
    pub fn render(&mut self, view: &View, site: &Site) -> Ruleset {
        let pods: Vec<(&PodKey, &Arc<PodView>)> = view
            .pods
            .iter()
            .filter(|(_, pod)| site.node.as_ref().is_none_or(|node| *node == pod.node))
            .collect();
        let addresses = || pods.iter().flat_map(|(_, pod)| &pod.addresses);
        let families = [false, true].map(|v6| addresses().any(|it| it.is_ipv6() == v6));
        if self.families != families {
            *self = Self { families, next: self.next, ..Self::default() };
        }
        let own = site.node.as_ref().and_then(|node| view.nodes.get(node));
        let node_addresses = own.map_or(&[][..], |node| &node.addresses);
        let (ruleset, lists) = (Ruleset::default(), HashMap::default());
        let mut draft = Draft { view, ruleset, node_addresses, lists };
        let rejects = pods.iter().any(|(_, pod)| pod.denied_reply != DeniedReply::Drop);
        let tunnels = !site.tunnel_ports.is_empty();
        let mut sets = base::sets();
        if rejects {
            sets.extend(reject::sets());
        }
        if rejects || tunnels {
            sets.extend(reject::clients());
        }
        for (family, kind, name, properties) in sets {
            let elements = Elements::Keyed(BTreeMap::new());
            draft.ruleset.sets.insert((family, name.into()), Set { kind, properties, elements });
        }
        let of_replies = if rejects { reject::chains() } else { Vec::new() };
        let conditions = Conditions { bridged: site.bridge_filter, rejects, tunnels };
        for (family, name, chain) in base::chains(conditions).into_iter().chain(of_replies) {
            draft.ruleset.chains.insert((family, name.into()), chain);
        }
        let networks = own.into_iter().flat_map(|node| &node.pod_cidrs).chain(&site.networks);
        for net in IpNet::aggregate(&networks.map(IpNet::trunc).collect()) {
            let set = format!("networks-{}", version(net.addr()));
            draft.insert(Family::Inet, &set, net.to_string(), "");
        }
        for port in &site.tunnel_ports {
            draft.insert(Family::Inet, "tunnel-ports", port.to_string(), "");
        }
        if rejects || tunnels {
            let cidrs = view.nodes.values().flat_map(|node| &node.pod_cidrs).map(IpNet::trunc);
            let pods = addresses().copied().map(IpNet::from);
            for net in IpNet::aggregate(&cidrs.chain(pods).collect()) {
                let set = format!("clients-{}", version(net.addr()));
                draft.insert(Family::Inet, &set, net.to_string(), "");
            }
        }
        for address in &site.bridge_addresses {
            draft.insert(Family::Bridge, "gateways", address.to_string(), "");
            draft.insert(Family::Bridge, "gateway-targets", hexadecimal(*address), "");
        }
        for bridge in &site.pod_bridges {
            draft.insert(Family::Inet, "pod-bridges", quoted(bridge), "");
        }
        for (key, pod) in pods {
            self.pod(&mut draft, pod, site.attachments.get(key));
        }
        self.lists.retain(|_, list| std::mem::take(&mut list.used));
        draft.ruleset
    }

    fn pod(&mut self, draft: &mut Draft<'_>, pod: &PodView, at: Option<&Attachment>) {
        // Without an interface the sender of packets with the pod's addresses is unknown.
        let verdicts = match at {
            None => [["drop"; 2]; 3].map(|both| both.map(Arc::from)),
            Some(_) => {
                let from = self.acl(draft, Role::From, pod.denied_reply, &pod.from_pod);
                let to = self.acl(draft, Role::To, pod.denied_reply, &pod.to_pod);
                let verdict = |id: Option<u32>, map: &str| {
                    Way::BOTH.map(|way| match id {
                        None => Arc::from(base::PERMIT),
                        Some(id) => Arc::from(format!("goto {map}-list-{id}-{}", way.name())),
                    })
                };
                [verdict(from, "from"), verdict(to, "to"), verdict(from, "node")]
            }
        };
        for address in &pod.addresses {
            let v = version(*address);
            let text = address.to_string();
            for (map, verdicts) in ["from", "to", "node"].iter().zip(&verdicts) {
                for (way, verdict) in Way::BOTH.iter().zip(verdicts) {
                    let map = format!("{map}-{}-{v}", way.name());
                    draft.insert(Family::Inet, &map, text.clone(), verdict);
                }
            }
            draft.insert(Family::Inet, &format!("pods-{v}"), text.clone(), "");
            for other in pod.addresses.iter().filter(|it| it.is_ipv4() == address.is_ipv4()) {
                draft.insert(Family::Inet, &format!("itself-{v}"), format!("{text} . {other}"), "");
            }
            let Some(Attachment { interface, bridge }) = at else { continue };
            let interface = quoted(interface);
            let ends = format!("ends-{v}");
            match bridge {
                None => {
                    draft.insert(Family::Inet, "pod-interfaces", interface.clone(), "");
                    draft.insert(Family::Inet, &ends, format!("{interface} . {text}"), "");
                }
                Some(bridge) => {
                    let bridge = quoted(bridge);
                    draft.insert(Family::Bridge, "ports", interface.clone(), "");
                    draft.insert(Family::Inet, "same-bridge", format!("{bridge} . {bridge}"), "");
                    // Not earlier: the pod is found by packets that it sends.
                    draft.insert(Family::Bridge, &format!("pods-{v}"), text.clone(), "");
                    draft.insert(Family::Bridge, &ends, format!("{interface} . {text}"), "");
                    draft.insert(Family::Inet, &ends, format!("{bridge} . {text}"), "");
                    if let IpAddr::V6(address) = address {
                        draft.insert(Family::Bridge, "targets", hexadecimal(*address), "");
                        let target = format!("{interface} . {}", hexadecimal(*address));
                        draft.insert(Family::Bridge, "port-targets", target, "");
                    }
                }
            }
        }
    }

    /// Adds the chains of an ACL's rule list to the draft; returns the list's number, `None` for an open ACL.
    fn acl(
        &mut self,
        draft: &mut Draft<'_>,
        role: Role,
        reply: DeniedReply,
        acl: &PodAcl,
    ) -> Option<u32> {
        let PodAcl::Table(table) = acl else { return None };
        if let Some(id) = draft.lists.get(&(role, reply, Arc::as_ptr(table))) {
            return Some(*id);
        }
        let key = (role, reply, Arc::from(table.rules()));
        let list = self.lists.entry(key).or_insert_with(|| {
            let (id, sets) = (self.next, &draft.view.peer_sets);
            self.next = self.next.wrapping_add(1);
            let grouped = Grouped::new(table.rules(), &id.to_string());
            let chains = Way::BOTH.map(|way| {
                let verdicts = [base::PERMIT, reject::verdict(reply, way)];
                rules::chain(&grouped, way, sets, self.families, verdicts).into()
            });
            List { id, chains, ports: grouped.into_sets(), used: false }
        });
        list.used = true;
        draft.lists.insert((role, reply, Arc::as_ptr(table)), list.id);
        draft.add_list((role, reply), list, table.rules(), self.families);
        Some(list.id)
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::From => "from",
            Self::To => "to",
        }
    }
}

impl Draft<'_> {
    fn insert(&mut self, family: Family, set: &str, key: String, value: &str) {
        let set = self.ruleset.sets.get_mut(&(family, set.into()));
        if let Some(Set { elements: Elements::Keyed(keys), .. }) = set {
            keys.insert(key, value.into());
        }
    }

    fn add_list(
        &mut self,
        (role, reply): (Role, DeniedReply),
        list: &List,
        rules: &[Rule],
        families: Families,
    ) {
        let id = list.id;
        ports::insert(&mut self.ruleset, &list.ports);
        let grouped = match role {
            Role::From => Grouped::new(rules, &id.to_string()),
            Role::To => Grouped::default(),
        };
        for (way, chain) in Way::BOTH.into_iter().zip(&list.chains) {
            self.add_chain(format!("{}-list-{id}-{}", role.name(), way.name()), Arc::clone(chain));
            if role == Role::From {
                self.add_node_chains(id, way, reply, &grouped);
            }
        }
        for end in rules.iter().flat_map(|rule| [rule.source, rule.destination]) {
            if let End::Set(set) = end {
                self.add_peer_set(set, families);
            }
        }
    }

    /// Adds the chains for connections of a pod to its own node. A denial of any address of the packet's family that
    /// the Node object names applies; then the packet's own address counts. Each chain leads to the next; a packet that
    /// finds one empty is dropped at its end.
    fn add_node_chains(&mut self, id: u32, way: Way, reply: DeniedReply, list: &Grouped<'_>) {
        let sets = &self.view.peer_sets;
        let name = format!("node-list-{id}-{}", way.name());
        let mut next = format!("{}-list-{id}-{}", Role::From.name(), way.name());
        for (index, address) in self.node_addresses.iter().enumerate() {
            let chain = format!("{name}-{index}");
            let verdicts = [&next, reject::verdict(reply, way)];
            let denials = rules::denials_of(list, way, sets, *address, verdicts);
            self.add_chain(chain.clone(), denials.into());
            next = chain;
        }
        self.add_chain(name, Arc::from([format!("goto {next}")]));
    }

    fn add_chain(&mut self, name: String, rules: Arc<[String]>) {
        let chain = Chain { properties: "", rules };
        self.ruleset.chains.insert((Family::Inet, name.into()), chain);
    }

    fn add_peer_set(&mut self, id: PeerSetId, families: Families) {
        if let Some(members) = self.view.peer_sets.get(&id) {
            insert_peer_set(&mut self.ruleset, id, members, families);
        }
    }
}

/// Adds the sets of a peer set, one for each family.
pub(crate) fn insert_peer_set(
    ruleset: &mut Ruleset,
    id: PeerSetId,
    members: &Arc<Members>,
    families: Families,
) {
    for v6 in [false, true] {
        if !families[usize::from(v6)] || !rules::has_family(members, v6) {
            continue;
        }
        let properties = match (rules::has_blocks(members, v6), v6) {
            (false, false) => "type ipv4_addr",
            (false, true) => "type ipv6_addr",
            (true, false) => "type ipv4_addr; flags interval",
            (true, true) => "type ipv6_addr; flags interval",
        };
        let name = (Family::Inet, rules::set_name(id, v6).into());
        let elements = Elements::Members(Arc::clone(members), v6);
        ruleset.sets.insert(name, Set { kind: "set", properties, elements });
    }
}

fn version(address: IpAddr) -> u8 {
    if address.is_ipv6() { 6 } else { 4 }
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

fn hexadecimal(address: Ipv6Addr) -> String {
    format!("{:#034x}", address.to_bits())
}
