//! Connections that were open before the rules, or before the programs: those of pods on the host network that the
//! rules deny now are ended.
//!
//! The switch decides about each packet of other pods, and their network namespaces are closed to a switch that has
//! given up its privileges.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;
use linux_net::{OpenSocket, end_socket, open_sockets};
use session_rules::{Action, Connection, Rule, Scope, Services, Table, Transport};

/// Connections ended at once; the next call ends more.
const MOST: usize = 1_000;
/// Cgroups of one pod that are looked through.
const CGROUPS: usize = 1_000;
/// Ports that the kernel gives to sockets that are not bound; the file may say otherwise.
const EPHEMERAL: [u16; 2] = [32_768, 60_999];

/// The rules by which connections are asked about again.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) opened: Table,
    /// The scope of these is the pod.
    pub(crate) accepted: Table,
    pub(crate) services: Services,
    /// The node's addresses.
    pub(crate) node: Vec<IpAddr>,
}

/// A connection that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The pod in whose cgroup its socket was opened.
    pub pod: Arc<str>,
    /// Its protocol.
    pub transport: Transport,
    /// The pod's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// The end that opened a connection, if the socket tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    Pod,
    Other,
    Unknown,
}

impl Known {
    /// The rules of these pods.
    pub(crate) fn of(
        rules: &[Rule],
        accepted: &[(Arc<str>, Rule)],
        services: &Services,
        node: &[IpAddr],
        pods: &[&Arc<str>],
    ) -> Self {
        let pods: HashSet<&Arc<str>, RandomState> = pods.iter().copied().collect();
        let is_of = |rule: &&Rule| matches!(&rule.scope, Scope::Local(pod) if pods.contains(pod));
        let accepted = accepted.iter().filter(|(pod, _)| pods.contains(pod));
        let accepted =
            accepted.map(|(pod, rule)| Rule { scope: Scope::Local(pod.clone()), ..rule.clone() });
        Self {
            opened: Table::compile(rules.iter().filter(is_of).cloned().collect()),
            accepted: Table::compile(accepted.collect()),
            services: services.clone(),
            node: node.to_vec(),
        }
    }

    /// Whether the rules deny a connection of this pod.
    fn denies(
        &self,
        pod: &Arc<str>,
        transport: Transport,
        socket: &OpenSocket,
        by: Opener,
    ) -> bool {
        let scope = Scope::Local(Arc::clone(pod));
        let is_denied = |table: &Table, local, remote| {
            let connection = Connection { scope: scope.clone(), transport, local, remote };
            table.lookup(&connection).is_some_and(|rule| rule.action == Action::Deny)
        };
        let (own, remote) = (socket.local, socket.remote);
        let is_inside = |other: IpAddr| other == own.ip() || self.node.contains(&other);
        let opens = || {
            let to = |to: SocketAddr| {
                let to = (to.ip(), to.port());
                !is_inside(to.0) && is_denied(&self.opened, (own.ip(), 0), to)
            };
            match self.services.find(remote, transport, || self.node.contains(&remote.ip())) {
                // The socket does not tell which one it led to.
                Some(service) => service.endpoints.iter().any(|endpoint| to(*endpoint)),
                None => to(remote),
            }
        };
        let accepts = || {
            let local = (own.ip(), own.port());
            !is_inside(remote.ip()) && is_denied(&self.accepted, local, (remote.ip(), 0))
        };
        match by {
            Opener::Pod => opens(),
            Opener::Other => accepts(),
            Opener::Unknown => opens() && accepts(),
        }
    }

    /// Ends the connections of these pods, by their cgroups, that the rules deny. `is_answered` tells of a datagram socket's
    /// ends that the other one began. Returns those ended, and whether there may be more.
    pub(crate) fn end_denied(
        &self,
        pods: &[(Arc<str>, &Path)],
        is_answered: impl Fn(&str, SocketAddr, SocketAddr) -> bool,
    ) -> Result<(Vec<Ended>, bool), linux_net::Error> {
        let mut owners = HashMap::with_hasher(RandomState::new());
        for (pod, cgroup) in pods {
            let mut left = CGROUPS;
            add_cgroups(cgroup, pod, &mut owners, &mut left);
        }
        let ephemeral = ephemeral_ports();
        let mut ended = Vec::new();
        for (transport, protocol) in [(Transport::Tcp, 6), (Transport::Udp, 17)] {
            let sockets = open_sockets(protocol)?;
            let owner = |it: &OpenSocket| it.cgroup.and_then(|id| owners.get(&id)).copied();
            let listening: HashSet<(&str, u16), RandomState> = sockets
                .iter()
                .filter(|it| it.is_listening())
                .filter_map(|it| Some((&**owner(it)?, it.local.port())))
                .collect();
            let is_open = |it: &&OpenSocket| {
                let remote = it.remote.ip();
                !it.is_listening() && !remote.is_unspecified() && !remote.is_loopback()
            };
            for socket in sockets.iter().filter(is_open) {
                let Some(pod) = owner(socket) else { continue };
                let is_answer =
                    transport == Transport::Udp && is_answered(pod, socket.local, socket.remote);
                let by = match listening.contains(&(&**pod, socket.local.port())) || is_answer {
                    true => Opener::Other,
                    false if ephemeral.contains(&socket.local.port()) => Opener::Pod,
                    false => Opener::Unknown,
                };
                if !self.denies(pod, transport, socket, by) {
                    continue;
                }
                if ended.len() == MOST {
                    return Ok((ended, true));
                }
                if end_socket(protocol, socket)? {
                    let OpenSocket { local, remote, .. } = *socket;
                    ended.push(Ended { pod: Arc::clone(pod), transport, local, remote });
                }
            }
        }
        Ok((ended, false))
    }
}

/// Notes a cgroup and those inside it, by their inodes.
fn add_cgroups<'p>(
    cgroup: &Path,
    pod: &'p Arc<str>,
    owners: &mut HashMap<u64, &'p Arc<str>, RandomState>,
    left: &mut usize,
) {
    use std::os::unix::fs::MetadataExt;
    owners.extend(cgroup.metadata().ok().map(|it| (it.ino(), pod)));
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if *left > 0 && entry.file_type().is_ok_and(|it| it.is_dir()) {
            *left -= 1;
            owners.insert(entry.ino(), pod);
            add_cgroups(&entry.path(), pod, owners, left);
        }
    }
}

fn ephemeral_ports() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let ports = text.iter().flat_map(|it| it.split_whitespace()).flat_map(str::parse);
    let [first, last] = <[u16; 2]>::try_from(ports.collect::<Vec<_>>()).unwrap_or(EPHEMERAL);
    first..=last
}

#[cfg(test)]
mod tests {
    use session_rules::{End, Ports, Service};

    use super::*;

    #[test]
    fn the_rules_of_the_end_that_opened_a_connection_decide() {
        let pod: Arc<str> = "default/a".into();
        let rule = |scope, local, remote, action| Rule {
            scope,
            transport: Transport::Tcp,
            local,
            remote,
            action,
            tag: "t".into(),
        };
        let net = |text: &str| End { net: Some(text.parse().unwrap()), ports: Ports::ANY };
        let local = |pod: &str| Scope::Local(pod.into());
        let rules = [
            rule(local("default/a"), End::ANY, net("192.0.2.2/32"), Action::Deny),
            rule(local("default/b"), End::ANY, End::ANY, Action::Deny),
        ];
        let at_80 = End { net: None, ports: Ports::one(80) };
        let denied = rule(Scope::Global, at_80, net("192.0.2.3/32"), Action::Deny);
        let mut services = Services::default();
        let endpoints = vec!["192.0.2.2:8080".parse().unwrap()];
        let service = Service { endpoints, ..Service::default() };
        for at in ["10.96.0.1:80", "0.0.0.0:30080"] {
            services.set(at.parse().unwrap(), Transport::Tcp, Some(service.clone()));
        }
        let node = ["192.0.2.1".parse().unwrap()];
        let known = Known::of(&rules, &[(pod.clone(), denied)], &services, &node, &[&pod]);
        assert_eq!(known.opened.rules().len(), 1, "of this pod alone");
        let denies = |own: u16, remote: &str, by| {
            let own = SocketAddr::new(node[0], own);
            let socket = OpenSocket::connected(own, remote.parse().unwrap());
            known.denies(&pod, Transport::Tcp, &socket, by)
        };
        assert!(denies(40_000, "192.0.2.2:80", Opener::Pod));
        assert!(denies(40_000, "10.96.0.1:80", Opener::Pod), "each endpoint of the service");
        assert!(!denies(40_000, "10.96.0.1:81", Opener::Pod));
        assert!(!denies(80, "192.0.2.2:5000", Opener::Other));
        assert!(denies(80, "192.0.2.3:5000", Opener::Other));
        assert!(!denies(81, "192.0.2.3:5000", Opener::Other));
        assert!(!denies(80, "192.0.2.3:5000", Opener::Unknown), "both have to deny it");
        for by in [Opener::Pod, Opener::Other] {
            assert!(!denies(40_000, "192.0.2.1:80", by), "the node itself");
        }
        assert!(denies(40_000, "192.0.2.1:30080", Opener::Pod), "the node's port leads to a pod");
    }
}
