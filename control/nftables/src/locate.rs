//! Finds the interfaces of pods that another CNI plugin made.
//!
//! ```text
//!   pod's address ─ route ─▶ veth                                    (ptp, routed)
//!                        └─▶ bridge ─ neighbour ─▶ MAC ─ learnt at ─▶ port (bridge)
//! ```
//!
//! A pod that was found stays where it is for as long as the interface exists: once rendered, no
//! other port can claim its addresses, but before, another one may have tried.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use control::{PodKey, View};
use linux_net::{Error, Link, MacAddress, Netlink, can_pass_bridged_to_filters};

use crate::{Attachment, Site};

/// Finds pods' interfaces in the network namespace of its netlink socket.
#[derive(Debug)]
pub struct Locator {
    netlink: Netlink,
    known: BTreeMap<PodKey, Known>,
    /// Pods that were looked for and not found.
    missed: BTreeSet<PodKey>,
}

#[derive(Debug, Clone)]
struct Known {
    addresses: Vec<IpAddr>,
    link: u32,
    bridge: Option<u32>,
}

/// Attempts to find a new pod, and the pause in between: the kernel resolves the pod's Ethernet
/// address in that time.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

impl Locator {
    /// Looks in the calling thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel gives no netlink socket.
    pub fn open() -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        Ok(Self { netlink, known: BTreeMap::new(), missed: BTreeSet::new() })
    }

    /// Fills in attachments and settings of bridges from the kernel. Bridges with pods are set to pass frames to the IP
    /// filters, if the kernel can.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn locate(&mut self, view: &View, site: &mut Site) -> Result<(), Error> {
        let node = site.node.clone();
        let is_local = |pod: &control::PodView| node.as_ref().is_none_or(|node| *node == pod.node);
        let pods = view.pods.iter().filter(|(_, pod)| is_local(pod));
        let pods: Vec<(&PodKey, &[IpAddr])> =
            pods.map(|(key, pod)| (key, pod.addresses.as_slice())).collect();
        let mut links = self.links()?;
        self.known.retain(|key, known| {
            let pod = pods.binary_search_by(|(other, _)| (*other).cmp(key));
            let same = |at: usize| pods[at].1 == known.addresses;
            let link = links.get(&known.link);
            pod.is_ok_and(same) && link.is_some_and(|link| link.controller == known.bridge)
        });
        for attempt in 0..ATTEMPTS {
            let mut missing: Vec<_> =
                pods.iter().filter(|(key, _)| !self.known.contains_key(*key)).collect();
            if attempt > 0 {
                missing.retain(|(key, _)| !self.missed.contains(*key));
                if missing.is_empty() {
                    break;
                }
                std::thread::sleep(PAUSE);
                links = self.links()?;
            }
            let learnt =
                if missing.is_empty() { Vec::new() } else { self.netlink.bridge_entries()? };
            for (key, addresses) in missing {
                if let Some(known) = self.find(addresses, &links, &learnt) {
                    self.known.insert((*key).clone(), known);
                }
            }
        }
        let missed = pods.iter().filter(|(key, _)| !self.known.contains_key(*key));
        self.missed = missed.map(|(key, _)| (*key).clone()).collect();
        self.fill(site, &links)
    }

    fn links(&mut self) -> Result<BTreeMap<u32, Link>, Error> {
        Ok(self.netlink.links()?.into_iter().map(|link| (link.index, link)).collect())
    }

    fn find(
        &mut self,
        addresses: &[IpAddr],
        links: &BTreeMap<u32, Link>,
        learnt: &[(MacAddress, u32)],
    ) -> Option<Known> {
        let mut found = None;
        for address in addresses {
            // Without a route there is no interface; the kernel starts to resolve the neighbour.
            let hop =
                self.netlink.next_hop(*address).ok().filter(|hop| hop.neighbour == *address)?;
            let link = links.get(&hop.link)?;
            let (link, bridge) = match &*link.kind {
                "bridge" => {
                    let ports = learnt.iter().filter(|(mac, _)| Some(*mac) == hop.mac);
                    let mut ports = ports.map(|(_, port)| port).filter(|port| {
                        links.get(*port).is_some_and(|port| port.controller == Some(link.index))
                    });
                    (*ports.next()?, Some(link.index))
                }
                _ => (link.index, None),
            };
            // All addresses of a pod are behind one interface.
            if found.replace((link, bridge)).is_some_and(|other| other != (link, bridge)) {
                return None;
            }
        }
        let (link, bridge) = found?;
        // The node's own interfaces are skipped.
        let is_pods = links.get(&link).is_some_and(|link| link.kind == "veth");
        is_pods.then(|| Known { addresses: addresses.to_vec(), link, bridge })
    }

    fn fill(&mut self, site: &mut Site, links: &BTreeMap<u32, Link>) -> Result<(), Error> {
        let name = |index: u32| links.get(&index).map(|link| link.name.clone());
        let bridges: BTreeSet<u32> = self.known.values().filter_map(|known| known.bridge).collect();
        site.attachments = self
            .known
            .iter()
            .filter_map(|(key, known)| {
                let bridge = known.bridge.and_then(name);
                Some((key.clone(), Attachment { interface: name(known.link)?, bridge }))
            })
            .collect();
        let own = self.netlink.addresses()?.into_iter().filter(|own| bridges.contains(&own.link));
        site.bridge_addresses = own
            .filter_map(|own| match own.address.addr() {
                IpAddr::V6(address) => Some(address),
                IpAddr::V4(_) => None,
            })
            .collect();
        let is_all_pods = |bridge: &u32| {
            let mut ports = links.values().filter(|link| link.controller == Some(*bridge));
            ports.all(|port| port.kind == "veth")
        };
        site.pod_bridges = bridges
            .iter()
            .filter(|bridge| is_all_pods(bridge))
            .filter_map(|it| name(*it))
            .collect();
        site.tunnel_ports = links.values().filter_map(|link| link.tunnel_port).collect();
        site.bridge_filter = bridges.is_empty() || can_pass_bridged_to_filters();
        for bridge in bridges.iter().filter_map(|index| links.get(index)) {
            if site.bridge_filter && !bridge.filters_bridged {
                self.netlink.pass_bridged_to_filters(bridge.index)?;
                tracing::info!("bridge {}: frames are passed to IP filters", bridge.name);
            }
        }
        Ok(())
    }
}
