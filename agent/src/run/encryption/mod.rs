//! Encryption between nodes: the device, its peers, and the programs in front of it.
//!
//! The control loop says which nodes there are before a snapshot leads to them, which takes changes of maps alone. A
//! thread configures the device, which may take longer: until it has a peer, it drops what is sent to it.

mod devices;
mod holders;
mod keys;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use control::model::WireGuard;
use dataplane::Underlay;
use dataplane::wire::Mac;
use encryption::{Counters, Node, PrivateKey, Programs, Uplink, overhead};
use flow_offload::Offload;
use ipnet::IpNet;
use linux_net::{
    Netlink, SECOND_WIREGUARD_DEVICE, WIREGUARD_DEVICE, WireGuardDevice, WireGuardPeer,
    WireGuardPeerState,
};
use local_api::{ApiError, ErrorKind};
use parking_lot::Mutex;

use super::error::StartError;
use super::thread::Thread;
use crate::config::Config;
use crate::run::kernel::KernelError;
pub(super) use devices::release;
use devices::{Devices, config, found};
use holders::Holders;
use keys::{Keys, Progress, is_live, takes_second};
use plan::{Nodes, Plan, Published};

/// Interval of reading the device's state, and of configuring it again after a failure.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same while this node or another one changes its key.
const CHANGING: Duration = Duration::from_secs(1);
/// Time for which nothing is sent in clear to a node that is gone: workers may still decide by a snapshot with it.
const DEPARTED: Duration = Duration::from_secs(60);

/// Encryption as it is on.
pub(super) struct Encryption {
    /// This node's name.
    node: String,
    keys: Mutex<Keys>,
    port: u16,
    vxlan_port: Option<u16>,
    /// Whether processes of nodes are to speak encrypted, and whether this node's do: not where the API server runs.
    wants_hosts: bool,
    has_hosts: AtomicBool,
    programs: Programs,
    wanted: Mutex<Wanted>,
    devices: Mutex<Devices>,
    state: Mutex<DeviceState>,
    changed: Sender<()>,
}

/// The desired state, and where it is in force.
#[derive(Default)]
struct Wanted {
    plan: Plan,
    /// The nodes that the plan was made of, and what they publish.
    made_of: Option<(Arc<Nodes>, Published)>,
    own: Option<WireGuard>,
    holders: Holders,
    /// Peers that the devices had for an earlier process, until the nodes are known.
    left: Vec<WireGuardPeerState>,
    departed: Vec<(Instant, Node)>,
    /// Nodes whose packets take the second device.
    on_second: BTreeSet<Arc<str>>,
    /// Whether the programs do not know it yet.
    is_unset: bool,
    offload: Option<Arc<Offload>>,
    /// Where the program of an earlier process stands until the nodes are known: it knows them.
    postponed: Option<Uplink>,
}

/// The device as read last.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceState {
    /// Why it is not configured.
    pub(super) error: Option<String>,
    /// Its peers, by node.
    pub(super) peers: BTreeMap<Arc<str>, WireGuardPeerState>,
    /// Nodes without a peer, each with the reason.
    pub(super) without: BTreeMap<Arc<str>, String>,
    /// The step of a rotation of this node's key.
    pub(super) rotation: Option<&'static str>,
}

impl Encryption {
    /// Reads the key, which is made if there is none, and loads the programs unless they are;
    /// `None` if encryption is off.
    ///
    /// # Errors
    /// If the kernel refuses the programs, or the key cannot be read or written.
    pub(super) fn start(
        config: &Config,
        programs: Option<Result<Programs, encryption::Error>>,
    ) -> Result<Option<Arc<Self>>, StartError> {
        let Some(port) = config.network.encryption_port() else { return Ok(None) };
        let failed = |what: String| StartError::Failed(format!("encryption: {what}"));
        let keys = Keys::open(&config.state_dir).map_err(failed)?;
        let programs = programs.unwrap_or_else(Programs::load);
        let programs = programs.map_err(|error| failed(error.to_string()))?;
        let (changed, changes) = channel();
        let vxlan_port = match &config.network.underlay {
            Underlay::Overlay(vxlan) => Some(vxlan.port),
            _ => None,
        };
        let this = Arc::new(Self {
            node: config.node_name.clone(),
            keys: Mutex::new(keys),
            port,
            vxlan_port,
            wants_hosts: config.network.encrypts_hosts,
            has_hosts: AtomicBool::new(false),
            programs,
            wanted: Mutex::default(),
            devices: Mutex::default(),
            state: Mutex::default(),
            changed,
        });
        let weak = Arc::downgrade(&this);
        Thread::start("encryption", move || run(&weak, &changes))?.detach();
        Ok(Some(this))
    }

    /// Returns the public key and port that this node publishes: others encrypt with them.
    pub(super) fn published(&self) -> WireGuard {
        let keys = self.keys.lock();
        WireGuard {
            public_key: keys.own().public(),
            port: self.port,
            next: keys.next().map(PrivateKey::public),
            host_network: self.has_hosts.load(Ordering::Relaxed),
        }
    }

    /// Follows the nodes and what they publish. Called before a snapshot leads to them. `runs_api_server`: whether this
    /// node does; keys come from there, so what its processes say stays in clear.
    pub(super) fn follow(&self, nodes: &Arc<Nodes>, published: Published, runs_api_server: bool) {
        self.has_hosts.store(self.wants_hosts && !runs_api_server, Ordering::Relaxed);
        let own = self.published();
        let mut wanted = self.wanted.lock();
        let expired = wanted.departed.iter().any(|(since, _)| since.elapsed() >= DEPARTED);
        let is_settled = !expired && !wanted.is_unset;
        let is_same = |(of, what): &(Arc<Nodes>, _)| Arc::ptr_eq(of, nodes) && *what == published;
        let is_own = wanted.own.as_ref() == Some(&own);
        if is_settled && is_own && wanted.made_of.as_ref().is_some_and(is_same) {
            return;
        }
        let is_routed = self.vxlan_port.is_none();
        if !nodes.is_empty() {
            let left = std::mem::take(&mut wanted.left);
            wanted.holders.had_peers(nodes, &left);
            wanted.holders.follow(nodes, &published);
        }
        let plan = Plan::of(nodes, &self.node, &published, &own, is_routed, &wanted.holders);
        wanted.made_of = Some((Arc::clone(nodes), published));
        wanted.own = Some(own);
        if is_settled && wanted.plan == plan {
            return;
        }
        for (node, why) in &plan.without {
            if wanted.plan.without.get(node) != Some(why) {
                tracing::warn!("encryption: nothing is sent to Node {node}: {why}");
            }
        }
        wanted.departed.retain(|(since, _)| since.elapsed() < DEPARTED);
        let there: BTreeSet<&[IpNet]> =
            plan.nodes.iter().map(|(_, node)| &node.networks[..]).collect();
        let former = std::mem::take(&mut wanted.plan.nodes).into_iter().map(|(_, node)| node);
        let gone = former.filter(|node| !there.contains(&node.networks[..]));
        let gone = gone
            .map(|node| (Instant::now(), Node { has_peer: false, host_network: false, ..node }));
        wanted.departed.extend(gone);
        wanted.plan = plan;
        let set = self.set_networks(&wanted);
        // The next call tries it again.
        wanted.is_unset = set.is_err();
        if let Err(error) = set {
            tracing::error!("encryption: {error}");
        }
        if let Some(uplink) = wanted.postponed
            && wanted.plan.is_known()
            && !wanted.is_unset
        {
            match self.programs.attach(uplink) {
                Ok(()) => wanted.postponed = None,
                Err(error) => {
                    tracing::error!("encryption: {error}");
                    wanted.is_unset = true;
                }
            }
        }
        drop(wanted);
        // The thread ends with this.
        let _ = self.changed.send(());
    }

    fn set_networks(&self, wanted: &Wanted) -> Result<(), encryption::Error> {
        let nodes = wanted.plan.nodes.iter().map(|(name, node)| Node {
            takes_second: wanted.on_second.contains(name),
            ..node.clone()
        });
        let departed = wanted.departed.iter().map(|(_, node)| node.clone());
        let nodes: Vec<Node> = nodes.chain(departed).collect();
        let networks = encryption::values(&wanted.plan.own, &nodes);
        self.programs.set_networks(&networks)?;
        match &wanted.offload {
            Some(offload) => offload.kernel().require_encryption(&networks, self.port),
            None => Ok(()),
        }
    }

    /// Bytes that encryption adds to a packet.
    pub(super) fn overhead(&self) -> u16 {
        overhead(!self.wanted.lock().plan.is_v4)
    }

    /// Begins to encrypt at an uplink that was opened and does not serve yet.
    ///
    /// # Errors
    /// If there is no device, or the kernel refuses the programs.
    pub(super) fn attach(
        &self,
        index: u32,
        mac: Mac,
        mtu: u16,
        offload: &Arc<Offload>,
    ) -> Result<(), KernelError> {
        // The smaller of both: which one it is follows from the nodes, and pods keep to it.
        let inner = mtu.saturating_sub(overhead(false)).into();
        let open = || {
            let mut netlink = Netlink::open()?;
            let is_left = netlink.find_link(SECOND_WIREGUARD_DEVICE)?.is_some();
            let (mut device, link) = WireGuardDevice::open(&mut netlink, WIREGUARD_DEVICE, inner)?;
            let peers = device.peers()?;
            Ok(((device, link), is_left, peers))
        };
        let named = |error: KernelError| error.during("encryption");
        let opened = open().map_err(|error: linux_net::Error| named(error.into()))?;
        let ((device, link), is_left, peers) = opened;
        let uplink = Uplink {
            index,
            mac,
            device: link.index,
            vxlan_port: self.vxlan_port,
            wireguard_port: self.port,
        };
        {
            let mut wanted = self.wanted.lock();
            match wanted.made_of.clone() {
                Some((nodes, _)) if !nodes.is_empty() => wanted.holders.had_peers(&nodes, &peers),
                _ => wanted.left = peers,
            }
            wanted.offload = Some(Arc::clone(offload));
            self.set_networks(&wanted).map_err(|error| named(error.into()))?;
            self.programs
                .forward_by(offload.kernel().from_device())
                .map_err(|it| named(it.into()))?;
            if wanted.plan.is_known() || !Programs::seals(index) {
                self.programs.attach(uplink).map_err(|error| named(error.into()))?;
            } else {
                wanted.postponed = Some(uplink);
            }
        }
        *self.devices.lock() =
            Devices { first: Some(device), is_left, mtu: inner, ..Devices::default() };
        self.configure();
        match self.state.lock().error.clone() {
            Some(error) => Err(named(error.into())),
            None => Ok(()),
        }
    }

    /// Configures the devices, reads their state, and chooses the one that packets for each node take. Without any node
    /// known, peers stay as an earlier process left them. Returns the time after which to do it again.
    fn configure(&self) -> Duration {
        let mut devices = self.devices.lock();
        let Some(first) = devices.first.as_mut() else { return INTERVAL };
        let plan = self.wanted.lock().plan.clone();
        let read = self.configure_first(first, &plan);
        let error = read.as_ref().err().map(ToString::to_string);
        let first = found(&plan.peers, read.unwrap_or_default());
        let second = match devices.second(&plan, &self.programs) {
            Some(device) => self.configure_second(device, &plan),
            None => Ok(Vec::new()),
        };
        devices.report(&second);
        let second = found(&plan.second, second.unwrap_or_default());
        self.note_sessions(&plan.peers, &first);
        self.note_sessions(&plan.second, &second);
        let age = self.keys.lock().age(Instant::now());
        let takes = |node: &&Arc<str>| {
            takes_second(first.get(*node), second.get(*node), plan.changed.contains(*node), age)
        };
        let on_second: BTreeSet<Arc<str>> = second.keys().filter(takes).cloned().collect();
        let live = first.iter().filter(|(node, it)| is_live(Some(it)) || on_second.contains(*node));
        let (live, on_second) = (live.count(), self.send_by_second(on_second));
        let sum = |states: &BTreeMap<Arc<str>, WireGuardPeerState>| {
            states.values().map(|it| it.received).sum()
        };
        let received = [sum(&first), sum(&second)];
        self.advance(&mut devices, &plan, live, on_second, received);
        let mut state = self.state.lock();
        if let Some(error) = error.as_ref().filter(|it| state.error.as_ref() != Some(*it)) {
            tracing::error!("encryption: {error}");
        }
        state.error = error;
        state.without = plan.without;
        state.peers = first;
        state.rotation = self.keys.lock().step();
        match plan.second.is_empty() && state.rotation.is_none() {
            true => INTERVAL,
            false => CHANGING,
        }
    }

    /// Notes the keys that nodes have sessions with.
    fn note_sessions(
        &self,
        peers: &[(Arc<str>, WireGuardPeer)],
        states: &BTreeMap<Arc<str>, WireGuardPeerState>,
    ) {
        let holders = &mut self.wanted.lock().holders;
        for (node, peer) in peers {
            if states.get(node).is_some_and(|state| state.handshake_age.is_some()) {
                holders.had_session(peer.public_key, node);
            }
        }
    }

    fn configure_first(
        &self,
        device: &mut WireGuardDevice,
        plan: &Plan,
    ) -> Result<Vec<WireGuardPeerState>, linux_net::Error> {
        let own = self.keys.lock().own().clone();
        let config = config(&own, self.port, &plan.peers);
        let set = if plan.is_known() { device.set(&config) } else { device.set_identity(&config) };
        set.and_then(|()| device.peers())
    }

    fn configure_second(
        &self,
        device: &mut WireGuardDevice,
        plan: &Plan,
    ) -> Result<Vec<WireGuardPeerState>, linux_net::Error> {
        let key = self.keys.lock().second().clone();
        device.set(&config(&key, self.port + 1, &plan.second))?;
        device.peers()
    }

    /// Sends packets for these nodes, and no others, by the second device. Returns for how many it does.
    fn send_by_second(&self, nodes: BTreeSet<Arc<str>>) -> usize {
        let mut wanted = self.wanted.lock();
        let count = nodes.len();
        if wanted.on_second != nodes {
            wanted.on_second = nodes;
            let set = self.set_networks(&wanted);
            wanted.is_unset |= set.is_err();
            if let Err(error) = set {
                tracing::error!("encryption: {error}");
            }
        }
        count
    }

    /// Goes on with a change of the key.
    fn advance(
        &self,
        devices: &mut Devices,
        plan: &Plan,
        live: usize,
        on_second: usize,
        received: [u64; 2],
    ) {
        let wanted = self.wanted.lock();
        let published = wanted.made_of.as_ref().and_then(|(_, it)| it.get(&*self.node)).cloned();
        drop(wanted);
        let seen = Progress { published: published.as_ref(), live, on_second, received };
        let advanced = self.keys.lock().advance(&seen, Instant::now());
        match (advanced, &mut devices.first) {
            (Ok(true), Some(first)) => {
                // What fails is tried again.
                if let Err(error) = self.configure_first(first, plan) {
                    tracing::error!("encryption: {error}");
                }
                self.keys.lock().has_changed(Instant::now());
            }
            (Ok(_), _) => {}
            (Err(error), _) => tracing::error!("encryption: the next key: {error}"),
        }
    }

    /// Begins to rotate this node's key.
    ///
    /// # Errors
    /// `not-ready` while another node rotates its own; `internal` if the next key cannot be kept.
    pub(super) fn rotate_key(&self) -> Result<(), ApiError> {
        let wanted = self.wanted.lock();
        let published = wanted.made_of.iter().flat_map(|(_, published)| published);
        let mut others = published.filter(|(name, it)| ***name != *self.node && it.next.is_some());
        if let Some((other, _)) = others.next() {
            let text =
                format!("the key of Node {other} is being rotated; one node after the other");
            return Err(ApiError::new(ErrorKind::NotReady, text));
        }
        let begun = self.keys.lock().begin();
        begun.map_err(|error| ApiError::new(ErrorKind::Internal, error))?;
        // The thread ends with this.
        let _ = self.changed.send(());
        Ok(())
    }

    /// Whether the programs are where they were attached.
    pub(super) fn is_attached(&self) -> bool {
        self.programs.are_attached()
    }

    /// The device as read last.
    pub(super) fn device_state(&self) -> DeviceState {
        self.state.lock().clone()
    }

    /// Counters of the programs.
    pub(super) fn counters(&self) -> Counters {
        self.programs.counters()
    }
}

fn run(encryption: &Weak<Encryption>, changes: &Receiver<()>) {
    let mut interval = INTERVAL;
    loop {
        match changes.recv_timeout(interval) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while changes.try_recv().is_ok() {}
        let Some(encryption) = encryption.upgrade() else { return };
        interval = encryption.configure();
    }
}
