//! Encryption between nodes: the device, its peers, and the programs in front of it.
//!
//! The control loop says which nodes there are before a snapshot leads to them, which takes changes of maps alone. A
//! thread configures the device, which may take longer: until it has a peer, it drops what is sent to it.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use control::model::WireGuard;
use control::{Durability, read_regular, replace_file};
use dataplane::Underlay;
use dataplane::wire::Mac;
use encryption::{Counters, Node, PrivateKey, Programs, Uplink, overhead};
use flow_offload::Offload;
use ipnet::IpNet;
use linux_net::{
    Netlink, WIREGUARD_DEVICE, WireGuardConfig, WireGuardDevice, WireGuardKey, WireGuardPeer,
    WireGuardPeerState,
};
use parking_lot::Mutex;

use super::error::StartError;
use super::thread::Thread;
use crate::config::Config;
use crate::run::kernel::KernelError;
use plan::{Nodes, Plan, Published};

/// Name of the file with the private key, in the folder of the state.
const KEY: &str = "wireguard.key";
/// The longest such file, in bytes.
const LONGEST_KEY: u64 = 4096;
/// Interval of reading the device's state, and of configuring it again after a failure.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time for which nothing is sent in clear to a node that is gone: workers may still decide by a snapshot with it.
const DEPARTED: Duration = Duration::from_secs(60);

/// Encryption as it is on.
pub(super) struct Encryption {
    key: PrivateKey,
    public_key: WireGuardKey,
    port: u16,
    vxlan_port: Option<u16>,
    programs: Programs,
    wanted: Mutex<Wanted>,
    /// The device, while the uplink is open.
    device: Mutex<Option<WireGuardDevice>>,
    state: Mutex<DeviceState>,
    changed: Sender<()>,
}

/// The desired state, and where it is in force.
#[derive(Default)]
struct Wanted {
    plan: Plan,
    /// The nodes that the plan was made of, and what they publish.
    made_of: Option<(Arc<Nodes>, Published)>,
    departed: Vec<(Instant, Node)>,
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
}

impl Encryption {
    /// Loads the programs and reads the key, which is made if there is none; `None` if encryption is off.
    ///
    /// # Errors
    /// If the kernel refuses the programs, or the key cannot be read or written.
    pub(super) fn start(config: &Config) -> Result<Option<Arc<Self>>, StartError> {
        let Some(port) = config.network.encryption_port() else { return Ok(None) };
        let failed = |what: String| StartError::Failed(format!("encryption: {what}"));
        let path = config.state_dir.join(KEY);
        let key =
            open_key(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let programs = Programs::load().map_err(|error| failed(error.to_string()))?;
        let (changed, changes) = channel();
        let vxlan_port = match &config.network.underlay {
            Underlay::Overlay(vxlan) => Some(vxlan.port),
            _ => None,
        };
        let this = Arc::new(Self {
            public_key: key.public(),
            key,
            port,
            vxlan_port,
            programs,
            wanted: Mutex::default(),
            device: Mutex::default(),
            state: Mutex::default(),
            changed,
        });
        let weak = Arc::downgrade(&this);
        Thread::start("encryption", move || run(&weak, &changes))?.detach();
        Ok(Some(this))
    }

    /// Returns the public key and port that this node publishes: others encrypt with them.
    pub(super) fn published(&self) -> WireGuard {
        WireGuard { public_key: self.public_key, port: self.port }
    }

    /// Follows the nodes and what they publish. Called before a snapshot leads to them.
    pub(super) fn follow(&self, nodes: &Arc<Nodes>, name: &str, published: Published) {
        let mut wanted = self.wanted.lock();
        let expired = wanted.departed.iter().any(|(since, _)| since.elapsed() >= DEPARTED);
        let is_settled = !expired && !wanted.is_unset;
        let is_same = |(of, what): &(Arc<Nodes>, _)| Arc::ptr_eq(of, nodes) && *what == published;
        if is_settled && wanted.made_of.as_ref().is_some_and(is_same) {
            return;
        }
        let is_routed = self.vxlan_port.is_none();
        let plan = Plan::of(nodes, name, &published, &self.public_key, is_routed);
        wanted.made_of = Some((Arc::clone(nodes), published));
        if is_settled && wanted.plan == plan {
            return;
        }
        for (node, why) in &plan.without {
            if wanted.plan.without.get(node) != Some(why) {
                tracing::warn!("encryption: nothing is sent to Node {node}: {why}");
            }
        }
        wanted.departed.retain(|(since, _)| since.elapsed() < DEPARTED);
        let there: BTreeSet<&[IpNet]> = plan.nodes.iter().map(|node| &node.networks[..]).collect();
        let former = std::mem::take(&mut wanted.plan.nodes).into_iter();
        let gone = former.filter(|node| !there.contains(&node.networks[..]));
        let gone = gone.map(|node| (Instant::now(), Node { has_peer: false, ..node }));
        wanted.departed.extend(gone);
        wanted.plan = plan;
        let set = self.set_nodes(&wanted);
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

    fn set_nodes(&self, wanted: &Wanted) -> Result<(), encryption::Error> {
        let departed = wanted.departed.iter().map(|(_, node)| node);
        self.programs.set_nodes(wanted.plan.nodes.iter().chain(departed), &wanted.plan.own)?;
        match &wanted.offload {
            Some(offload) => offload.require_encryption(&wanted.plan.networks()),
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
            WireGuardDevice::open(&mut netlink, WIREGUARD_DEVICE, inner)
        };
        let named = |error: KernelError| error.during("encryption");
        let (device, link) = open().map_err(|error| named(error.into()))?;
        let uplink = Uplink { index, mac, device: link.index, vxlan_port: self.vxlan_port };
        {
            let mut wanted = self.wanted.lock();
            wanted.offload = Some(Arc::clone(offload));
            self.set_nodes(&wanted).map_err(|error| named(error.into()))?;
            if wanted.plan.is_known() || !Programs::seals(index) {
                self.programs.attach(uplink).map_err(|error| named(error.into()))?;
            } else {
                wanted.postponed = Some(uplink);
            }
        }
        *self.device.lock() = Some(device);
        self.configure();
        match self.state.lock().error.clone() {
            Some(error) => Err(named(error.into())),
            None => Ok(()),
        }
    }

    /// Configures the device and reads its state. Without any node known, its peers stay as an earlier process left
    /// them.
    fn configure(&self) {
        let mut device = self.device.lock();
        let Some(device) = device.as_mut() else { return };
        let plan = self.wanted.lock().plan.clone();
        let config = WireGuardConfig {
            private_key: self.key.bytes(),
            public_key: self.public_key,
            port: self.port,
            peers: plan.peers.iter().map(|(_, peer)| peer.clone()).collect(),
        };
        let set = if plan.is_known() { device.set(&config) } else { device.set_identity(&config) };
        let read = set.and_then(|()| device.peers());
        let mut state = self.state.lock();
        let error = read.as_ref().err().map(ToString::to_string);
        if let Some(error) = error.as_ref().filter(|it| state.error.as_ref() != Some(*it)) {
            tracing::error!("encryption: {error}");
        }
        state.error = error;
        state.without = plan.without;
        let found = read.unwrap_or_default().into_iter();
        let mut found: BTreeMap<_, _> = found.map(|peer| (peer.public_key, peer)).collect();
        let of =
            |(node, peer): (Arc<str>, WireGuardPeer)| Some((node, found.remove(&peer.public_key)?));
        state.peers = plan.peers.into_iter().filter_map(of).collect();
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

/// The key of a file; a new one in a file that only this user reads, if there is none.
fn open_key(path: &Path) -> io::Result<PrivateKey> {
    match read_regular(path, LONGEST_KEY) {
        Ok(text) => {
            let key = std::str::from_utf8(&text).ok().and_then(PrivateKey::parse);
            key.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it has no WireGuard key"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key = PrivateKey::generate()?;
            replace_file(path, Durability::Synced, |out| key.write(out))?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}

fn run(encryption: &Weak<Encryption>, changes: &Receiver<()>) {
    loop {
        match changes.recv_timeout(INTERVAL) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while changes.try_recv().is_ok() {}
        let Some(encryption) = encryption.upgrade() else { return };
        encryption.configure();
    }
}

/// Takes off an uplink what an earlier process encrypted with.
pub(super) fn release(uplink: u32) {
    if !Programs::seals(uplink) {
        return;
    }
    tracing::info!("encryption between nodes is off from now on");
    if let Err(error) = Programs::release(uplink) {
        tracing::warn!("encryption: {error}");
    }
    let delete = || {
        let mut netlink = Netlink::open()?;
        let link = netlink.find_link(WIREGUARD_DEVICE)?;
        link.map_or(Ok(()), |link| netlink.delete_link(link.index))
    };
    if let Err(error) = delete() {
        tracing::warn!("encryption: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let folder = testkit::TempDir::new("key");
        let path = folder.path().join("key");
        let key = open_key(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open_key(&path).unwrap(), key);
        std::fs::write(&path, "AAAA\n").unwrap();
        assert!(open_key(&path).is_err(), "a damaged key is not replaced");
    }
}
