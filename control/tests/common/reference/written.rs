//! NetworkPolicies with every selector written out, for the renderer's algorithms.

use super::*;

/// A rule with its peers as networks.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// `None` is anybody.
    pub(crate) net: Option<IpNet>,
    pub(crate) except: Vec<IpNet>,
    pub(crate) protocol: Option<u8>,
    pub(crate) ports: Option<(u16, u16)>,
}

impl Cluster {
    /// Connections that NetworkPolicies permit a pod, with every selector written out as its
    /// addresses; `None` if no policy isolates the pod in this direction.
    pub(crate) fn written_out(&self, pod: &Pod, is_ingress: bool) -> Option<Vec<Written>> {
        let mut isolated = false;
        let mut all = Vec::new();
        for policy in self.policies.values() {
            let spec = policy.spec.clone().unwrap();
            let same = policy.metadata.namespace == pod.metadata.namespace;
            let selector = spec.pod_selector.clone().unwrap_or_default();
            if !same || !selects(&selector, &labels(pod)) || !is_about(policy, is_ingress) {
                continue;
            }
            isolated = true;
            let own = policy.metadata.namespace.as_deref().unwrap();
            let rules: Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> = match is_ingress {
                true => spec
                    .ingress
                    .into_iter()
                    .flatten()
                    .map(|it| (it.from.unwrap_or_default(), it.ports.unwrap_or_default()))
                    .collect(),
                false => spec
                    .egress
                    .into_iter()
                    .flatten()
                    .map(|it| (it.to.unwrap_or_default(), it.ports.unwrap_or_default()))
                    .collect(),
            };
            for (peers, ports) in rules {
                self.write_out(pod, is_ingress, own, &peers, &ports, &mut all);
            }
        }
        isolated.then_some(all)
    }

    fn write_out(
        &self,
        pod: &Pod,
        is_ingress: bool,
        own: &str,
        peers: &[NetworkPolicyPeer],
        ports: &[NetworkPolicyPort],
        all: &mut Vec<Written>,
    ) {
        let others = || self.pods.values().filter(|it| is_peer_at_all(it));
        // Each network with the pod behind it, if it is one pod's.
        let mut nets: Vec<(Option<IpNet>, Vec<IpNet>)> = Vec::new();
        for peer in peers {
            match &peer.ip_block {
                Some(block) => {
                    let parse = |net: &String| net.parse::<IpNet>().unwrap();
                    let except = block.except.iter().flatten().map(parse).collect();
                    nets.push((Some(parse(&block.cidr)), except));
                }
                None => nets.extend(others().flat_map(addresses).filter_map(|address| {
                    let other = self.pod_at(address);
                    self.is_peer(peer, own, address, other)
                        .then(|| (Some(IpNet::from(address)), Vec::new()))
                })),
            }
        }
        if peers.is_empty() {
            nets.push((None, Vec::new()));
        }
        for (net, except) in nets {
            let written =
                |net, protocol, ports| Written { net, except: except.clone(), protocol, ports };
            if ports.is_empty() {
                all.push(written(net, None, None));
            }
            for port in ports {
                let number = match port.protocol.as_deref() {
                    None | Some("TCP") => TCP,
                    Some("UDP") => UDP,
                    _ => SCTP,
                };
                let name = match &port.port {
                    None => {
                        all.push(written(net, Some(number), None));
                        continue;
                    }
                    Some(IntOrString::Int(first)) => {
                        let last = port.end_port.unwrap_or(*first) as u16;
                        all.push(written(net, Some(number), Some((*first as u16, last))));
                        continue;
                    }
                    Some(IntOrString::String(name)) => name,
                };
                // A name is looked up at the pod that is connected to, one by one.
                let found = |target: &Pod| {
                    (1..=u16::MAX).find(|candidate| {
                        let peer =
                            addresses(target).first().copied().unwrap_or(IpAddr::from([0; 4]));
                        let connection = Connection { peer, protocol: number, port: *candidate };
                        is_port(port, Some(target), connection)
                    })
                };
                debug_assert!(!name.is_empty());
                if is_ingress {
                    let at = found(pod).map(|it| (it, it));
                    all.extend(at.map(|at| written(net, Some(number), Some(at))));
                    continue;
                }
                for other in others() {
                    let Some(at) = found(other) else { continue };
                    for address in addresses(other) {
                        let inside = |it: &IpNet| it.contains(&address);
                        if net.as_ref().is_none_or(inside) && !except.iter().any(inside) {
                            let host = Some(IpNet::from(address));
                            all.push(written(host, Some(number), Some((at, at))));
                        }
                    }
                }
            }
        }
    }
}
