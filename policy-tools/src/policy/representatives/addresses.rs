//! The addresses that pods could have, in parts that networks of policies do not split.
//!
//! ```text
//! networks of policies, networks of pods ─▶ parts of pods' addresses ─▶ a network of ours for each
//! ```
//!
//! A part may have a single address, and yet pods of every class could have it. So each part has a
//! network that no object mentions, and peers of policies that hold the part hold that network too: a pod
//! there is decided about as one in the part is.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use control::Object;
use control::model::Peer;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::MOST;
use crate::policy::matrix::{around, each_rule, each_rule_mut, networks};

/// Where pods are if no node says: private networks.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

/// A network less its exceptions.
type Block = (IpNet, Vec<IpNet>);

/// The parts of pods' addresses.
#[derive(Clone, Debug, Default)]
pub struct Parts(Vec<Part>);

#[derive(Clone, Debug)]
struct Part {
    /// The network that stands for it.
    stand_in: IpNet,
    /// One to three addresses of it that no object has.
    addresses: Vec<IpAddr>,
    /// The innermost network of policies around it.
    within: Option<IpNet>,
    /// Addresses of the stand-in that were given.
    given: u32,
}

impl Parts {
    /// The parts of these networks of pods, or where there are none of those of nodes, for the
    /// address families of pods. Peers of the policies among the objects hold the stand-ins from now on.
    ///
    /// # Errors
    /// Fails if there are more than can be told apart.
    pub fn cut(
        objects: &mut [Object],
        pod_networks: &[IpNet],
        families: &[bool],
    ) -> Result<Self, String> {
        let nets: Vec<IpNet> = networks(&*objects).into_iter().collect();
        if nets.is_empty() {
            return Ok(Self::default());
        }
        let pod_networks = pod_networks_of(objects, pod_networks);
        let mut blocks: Vec<Block> = Vec::new();
        each_rule(&*objects, |rule| blocks.extend(rule.peers.iter().flatten().filter_map(block)));
        blocks.sort();
        blocks.dedup();
        let taken = taken(objects);
        let is_pods = |it: &IpAddr| pod_networks.iter().any(|net| net.contains(it));
        let ends = pod_networks
            .iter()
            .chain(&nets)
            .flat_map(|net| [Some(net.network()), after(net.broadcast(), 1)].into_iter().flatten());
        let mut parts: BTreeMap<(bool, Vec<bool>), Vec<IpAddr>> = BTreeMap::new();
        for end in ends.filter(is_pods).filter(|it| families.contains(&it.is_ipv4())) {
            let held = |it: IpAddr| -> Vec<bool> { blocks.iter().map(|b| holds(b, it)).collect() };
            let own = held(end);
            let addresses = parts.entry((!end.is_ipv4(), own.clone())).or_default();
            // The first address of a network and the second are seldom a pod's.
            let offsets = (2..FURTHEST).chain(0..2);
            let near = offsets.map_while(|n| after(end, n));
            let near = near.filter(|it| is_pods(it) && !taken.contains(it) && held(*it) == own);
            for address in near.take(MOST_ENDS) {
                if addresses.len() < MOST_ENDS && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        let mut stand_ins = StandIns::new(&nets);
        let mut found = Self::default();
        let mut held_by: Vec<(IpNet, Vec<bool>)> = Vec::new();
        for ((_, held), addresses) in parts.into_iter().filter(|(_, it)| !it.is_empty()) {
            let first = addresses[0];
            let stand_in = stand_ins.next(first.is_ipv4()).ok_or_else(|| {
                "policies split the addresses of pods into more parts than can be told apart"
                    .to_owned()
            })?;
            held_by.push((stand_in, held));
            let within = around(&nets, first).copied();
            found.0.push(Part { stand_in, addresses, within, given: 0 });
        }
        each_rule_mut(objects, |rule| {
            let Some(peers) = &mut rule.peers else { return };
            for index in 0..peers.len() {
                let Some(it) = block(&peers[index]) else { continue };
                let Ok(n) = blocks.binary_search(&it) else { continue };
                for (stand_in, held) in &held_by {
                    match (held[n], holds_net(&it, stand_in), &mut peers[index]) {
                        (true, false, _) => peers.push(Peer::Block(*stand_in, Vec::new())),
                        (false, true, Peer::Block(_, except)) => except.push(*stand_in),
                        _ => {}
                    }
                }
            }
        });
        Ok(found)
    }

    /// One pod's parts, for each pod that a class needs: one of each family.
    pub(super) fn combinations(&self) -> Vec<Vec<usize>> {
        let of = |v4: bool| -> Vec<usize> {
            let parts = self.0.iter().enumerate();
            parts.filter(|(_, it)| it.addresses[0].is_ipv4() == v4).map(|(n, _)| n).collect()
        };
        let families = [of(true), of(false)];
        let count = families.iter().map(Vec::len).max().unwrap_or_default().max(1);
        let of_pod = |n: usize| {
            let parts = families.iter().filter_map(|it| it.get(n % it.len().max(1)).copied());
            parts.collect()
        };
        (0..count).map(of_pod).collect()
    }

    /// Addresses that stand for these parts.
    pub(super) fn give(&mut self, parts: &[usize]) -> Vec<IpAddr> {
        let given = parts.iter().filter_map(|n| {
            let part = self.0.get_mut(*n)?;
            part.given += 1;
            after(part.stand_in.network(), part.given)
        });
        given.collect()
    }

    /// The networks that tell a pod in these parts from others, in words.
    pub(super) fn words(&self, parts: &[usize]) -> String {
        let within = parts.iter().filter_map(|n| self.0[*n].within);
        let within: Vec<String> = within.map(|net| format!(" at {net}")).collect();
        within.concat()
    }

    /// The place of the part that an address stands for.
    pub fn of(&self, address: IpAddr) -> Option<usize> {
        self.0.iter().position(|part| part.stand_in.contains(&address))
    }

    /// The addresses that ends could have where they have these ones; `None` where they cannot have
    /// them at the same time.
    pub fn real(&self, ends: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let real = |(n, end): (usize, &IpAddr)| {
            let Some(part) = self.of(*end) else { return Some(*end) };
            let mut before: Vec<&IpAddr> = Vec::new();
            for other in ends[..n].iter().filter(|it| *it != end && self.of(**it) == Some(part)) {
                if !before.contains(&other) {
                    before.push(other);
                }
            }
            // An end that is there twice keeps its address.
            let place = ends.iter().position(|it| it == end).filter(|first| *first < n);
            match place {
                Some(first) => self.real(&ends[..=first])?.pop(),
                None => self.0[part].addresses.get(before.len()).copied(),
            }
        };
        ends.iter().enumerate().map(real).collect()
    }
}

/// Ends of connections from one pod to the next that may be in one part.
const MOST_ENDS: usize = 3;

/// Addresses behind the beginning of a part among which a free one is looked for.
const FURTHEST: u32 = 1_024;

fn block(peer: &Peer) -> Option<Block> {
    match peer {
        Peer::Block(net, except) => Some((*net, except.clone())),
        _ => None,
    }
}

fn holds((net, except): &Block, address: IpAddr) -> bool {
    net.contains(&address) && !except.iter().any(|except| except.contains(&address))
}

fn holds_net((net, except): &Block, inner: &IpNet) -> bool {
    net.contains(inner) && !except.iter().any(|except| except.contains(inner))
}

/// The networks of pods: those given, else those of nodes, else private ones.
fn pod_networks_of(objects: &[Object], given: &[IpNet]) -> Vec<IpNet> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let nodes = objects.iter().flat_map(|object| match object {
        Object::Node(node) => &node.pod_cidrs[..],
        _ => &[],
    });
    let mut found: Vec<IpNet> = nodes.copied().collect();
    for v4 in [true, false] {
        if !found.iter().any(|net| net.addr().is_ipv4() == v4) {
            let private = PRIVATE.iter().filter_map(|text| text.parse::<IpNet>().ok());
            found.extend(private.filter(|net| net.addr().is_ipv4() == v4));
        }
    }
    found
}

/// Addresses that objects have.
fn taken(objects: &[Object]) -> HashSet<IpAddr> {
    let of = |object: &Object| -> Vec<IpAddr> {
        match object {
            Object::Pod(pod) => pod.addresses.to_vec(),
            Object::Node(node) => node.addresses.clone(),
            Object::Service(it) => {
                [&it.cluster_ips[..], &it.external_ips, &it.load_balancer_ips].concat()
            }
            _ => Vec::new(),
        }
    };
    objects.iter().flat_map(of).collect()
}

/// The address `n` behind another one.
fn after(address: IpAddr, n: u32) -> Option<IpAddr> {
    match address {
        IpAddr::V4(it) => u32::from(it).checked_add(n).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(it) => u128::from(it).checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
    }
}

/// Networks that stand for parts. They are out of ranges that nothing is in: 240.0.0.0/4, reserved for
/// the future (RFC 1112, 4), and the end of fc00::/7, of which no generator of RFC 4193 knows.
struct StandIns<'a> {
    nets: &'a [IpNet],
    tried: [u32; 2],
}

/// Bits of an address within a stand-in: room for a pod of each class.
const BITS: u32 = usize::BITS - MOST.leading_zeros();
const V4: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 0);
const V6: Ipv6Addr = Ipv6Addr::new(0xfdff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0);

impl<'a> StandIns<'a> {
    const fn new(nets: &'a [IpNet]) -> Self {
        Self { nets, tried: [0; 2] }
    }

    /// A network that none of a policy is inside.
    fn next(&mut self, v4: bool) -> Option<IpNet> {
        loop {
            let tried = &mut self.tried[usize::from(v4)];
            let n = Some(*tried).filter(|it| *it < 1 << (28 - BITS))? << BITS;
            *tried += 1;
            let net = match v4 {
                true => IpNet::V4(Ipv4Net::new((u32::from(V4) + n).into(), 32 - BITS as u8).ok()?),
                false => IpNet::V6(
                    Ipv6Net::new((u128::from(V6) + u128::from(n)).into(), 128 - BITS as u8).ok()?,
                ),
            };
            if !self.nets.iter().any(|it| net.contains(it)) {
                return Some(net);
            }
        }
    }
}
