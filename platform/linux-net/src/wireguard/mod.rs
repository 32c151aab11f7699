//! A WireGuard device: the kernel's, or that of a program that serves the cross-platform interface.
//!
//! The kernel's device is made by rtnetlink and configured by generic netlink (linux/wireguard.h). Where the kernel has
//! none, a program that made the interface is configured by its socket in `/var/run/wireguard`
//! (<https://www.wireguard.com/xplatform/>).

mod kernel;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::error::Error;
use super::link::Link;
use super::netlink::Netlink;

/// Name of Podgate's device.
pub const WIREGUARD_DEVICE: &str = "podgate-wg";
/// Name of the device that packets take while a node changes its key.
pub const SECOND_WIREGUARD_DEVICE: &str = "podgate-wg2";
/// Folder of the sockets of programs that serve devices.
const SOCKETS: &str = "/var/run/wireguard";
const WIREGUARD: &str = "wireguard";

/// A key: of Curve25519 in the order of RFC 7748.
pub type WireGuardKey = [u8; 32];

/// A device and the way to configure it.
#[derive(Debug)]
pub enum WireGuardDevice {
    /// The kernel's.
    Kernel(kernel::Kernel),
    /// A program's.
    Program(PathBuf),
}

/// A device's configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct WireGuardConfig {
    /// The private key.
    pub private_key: WireGuardKey,
    /// The public key that belongs to it.
    pub public_key: WireGuardKey,
    /// UDP port that it listens at.
    pub port: u16,
    /// Its peers; each has another key.
    pub peers: Vec<WireGuardPeer>,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuardPeer {
    /// Its public key.
    pub public_key: WireGuardKey,
    /// Destination of encrypted packets.
    pub endpoint: SocketAddr,
    /// Destinations that are sent to it, and sources that are taken from it; no other peer has them.
    pub networks: BTreeSet<IpNet>,
    /// Interval of keepalives, in seconds; 0 for none. With one, a session is begun without any packet for the peer.
    pub keepalive: u16,
}

/// A peer as the device has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireGuardPeerState {
    /// Its public key.
    pub public_key: WireGuardKey,
    /// Destination of encrypted packets: that of its last packet.
    pub endpoint: Option<SocketAddr>,
    /// Its networks.
    pub networks: BTreeSet<IpNet>,
    /// Interval of keepalives, in seconds; 0 for none.
    pub keepalive: u16,
    /// Time since its last handshake; `None` before the first one.
    pub handshake_age: Option<Duration>,
    /// Encrypted bytes received from it.
    pub received: u64,
    /// Encrypted bytes sent to it.
    pub sent: u64,
}

/// A device's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    public_key: Option<WireGuardKey>,
    port: Option<u16>,
    peers: Vec<WireGuardPeerState>,
}

/// Changes that lead from a state to a configuration.
#[derive(Debug, PartialEq, Eq)]
struct Changes<'c> {
    sets_key: bool,
    sets_port: bool,
    removed: Vec<WireGuardKey>,
    /// New peers. Existing ones with another endpoint or other networks are removed as well.
    added: Vec<&'c WireGuardPeer>,
    /// Existing peers of which only the keepalive interval changes.
    kept_alive: Vec<&'c WireGuardPeer>,
}

impl WireGuardDevice {
    /// The device, switched on with this MTU; it is made if it is not there. A device that is there keeps its
    /// peers.
    ///
    /// # Errors
    /// Fails if the kernel has no WireGuard and no program serves a device of that name.
    pub fn open(netlink: &mut Netlink, name: &str, mtu: u32) -> Result<(Self, Link), Error> {
        let what = || format!("open WireGuard device {name}");
        let socket = PathBuf::from(SOCKETS).join(format!("{name}.sock"));
        let found = match netlink.find_link(name)? {
            Some(link) => link,
            None => {
                netlink.create_wireguard(name).map_err(|error| {
                    let why = format!(
                        "{error}, and no program serves {}: the kernel's module wireguard is needed",
                        socket.display()
                    );
                    Error::invalid(what(), why)
                })?;
                netlink.link(name)?
            }
        };
        let device = match found.kind == WIREGUARD {
            true => Self::Kernel(kernel::Kernel::open(name)?),
            false if socket.exists() => Self::Program(socket),
            false => {
                let why =
                    format!("it is of kind '{}', and there is no {}", found.kind, socket.display());
                return Err(Error::invalid(what(), why));
            }
        };
        netlink.set_mtu(found.index, mtu)?;
        netlink.set_up(found.index)?;
        Ok((device, netlink.link(name)?))
    }

    /// Returns whether a program serves [`WIREGUARD_DEVICE`].
    pub fn is_served() -> bool {
        Path::new(SOCKETS).join(format!("{WIREGUARD_DEVICE}.sock")).exists()
    }

    /// Configures the device. Peers that stay as they are keep their sessions.
    ///
    /// # Errors
    /// Fails if it refuses. Another call continues from the state reached.
    pub fn set(&mut self, config: &WireGuardConfig) -> Result<(), Error> {
        let state = self.state()?;
        let changes = state.changes(config);
        self.apply(config, &changes)
    }

    /// Sets key and port alone; all peers stay.
    ///
    /// # Errors
    /// Fails if it refuses.
    pub fn set_identity(&mut self, config: &WireGuardConfig) -> Result<(), Error> {
        let state = self.state()?;
        let identity = Changes {
            removed: Vec::new(),
            added: Vec::new(),
            kept_alive: Vec::new(),
            ..state.changes(config)
        };
        self.apply(config, &identity)
    }

    fn apply(&mut self, config: &WireGuardConfig, changes: &Changes<'_>) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Kernel(kernel) => kernel.set(config, changes),
            Self::Program(path) => socket::set(path, config, changes),
        }
    }

    /// The peers as the device has them.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn peers(&mut self) -> Result<Vec<WireGuardPeerState>, Error> {
        self.state().map(|state| state.peers)
    }

    fn state(&mut self) -> Result<State, Error> {
        match self {
            Self::Kernel(kernel) => kernel.state(),
            Self::Program(path) => socket::state(path),
        }
    }
}

impl Netlink {
    fn create_wireguard(&mut self, name: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]),
        ];
        let what = format!("create WireGuard device {name}");
        self.change(&what, RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }
}

impl State {
    fn changes<'c>(&self, config: &'c WireGuardConfig) -> Changes<'c> {
        let there: BTreeMap<_, _> = self.peers.iter().map(|it| (it.public_key, it)).collect();
        let (stay, added): (Vec<_>, Vec<_>) = config.peers.iter().partition(|peer| {
            there.get(&peer.public_key).is_some_and(|it| {
                it.endpoint == Some(peer.endpoint) && it.networks == peer.networks
            })
        });
        let differs = |it: &&&WireGuardPeer| {
            there.get(&it.public_key).is_some_and(|is| is.keepalive != it.keepalive)
        };
        let kept_alive = stay.iter().filter(differs).copied().collect();
        let stay: BTreeSet<_> = stay.iter().map(|it| it.public_key).collect();
        let keys = self.peers.iter().map(|it| it.public_key);
        Changes {
            sets_key: self.public_key != Some(config.public_key),
            sets_port: self.port != Some(config.port),
            removed: keys.filter(|key| !stay.contains(key)).collect(),
            added,
            kept_alive,
        }
    }
}

impl Changes<'_> {
    fn is_empty(&self) -> bool {
        !self.sets_key
            && !self.sets_port
            && self.removed.is_empty()
            && self.added.is_empty()
            && self.kept_alive.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn peer(key: u8, endpoint: &str, network: &str) -> WireGuardPeer {
        WireGuardPeer {
            public_key: [key; 32],
            endpoint: endpoint.parse().unwrap(),
            networks: [network.parse().unwrap()].into(),
            keepalive: 0,
        }
    }

    #[test]
    fn peers_that_stay_as_they_are_are_not_touched() {
        let (one, two) =
            (peer(1, "192.0.2.1:1", "10.1.0.0/24"), peer(2, "192.0.2.2:1", "10.2.0.0/24"));
        let config = WireGuardConfig {
            private_key: [9; 32],
            public_key: [8; 32],
            port: 1,
            peers: vec![one.clone(), two.clone()],
        };
        let state_of = |peer: &WireGuardPeer| WireGuardPeerState {
            public_key: peer.public_key,
            endpoint: Some(peer.endpoint),
            networks: peer.networks.clone(),
            ..WireGuardPeerState::default()
        };
        let whole = State {
            public_key: Some([8; 32]),
            port: Some(1),
            peers: vec![state_of(&two), state_of(&one)],
        };
        assert!(whole.changes(&config).is_empty());
        let mut moved = whole.clone();
        moved.peers[1].networks = ["10.9.0.0/24".parse().unwrap()].into();
        moved.peers.push(state_of(&peer(3, "192.0.2.3:1", "10.3.0.0/24")));
        let changes = moved.changes(&config);
        assert_eq!(changes.removed, [[1; 32], [3; 32]]);
        assert_eq!(changes.added, [&one]);
        assert!(State::default().changes(&config).sets_key);
        let mut kept_alive = config.clone();
        kept_alive.peers[1].keepalive = 5;
        let changes = whole.changes(&kept_alive);
        assert_eq!((changes.kept_alive, changes.removed), (vec![&kept_alive.peers[1]], vec![]));
    }
}
