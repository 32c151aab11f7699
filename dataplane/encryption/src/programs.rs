//! The loaded programs, their maps, and the interfaces they are attached to.

#![allow(unsafe_code, reason = "a value that the kernel reads byte by byte")]

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dataplane::bpf::{Counts, Error, Map, NetworkKey, Object, Plain};
use dataplane::wire::Mac;
use ipnet::IpNet;
use linux_net::{Direction, Netlink};

static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/encryption.bpf.o"));

/// Bits of a network's value, as the programs have them.
const NODE: u32 = 1;
const PODS: u32 = 2;
const OWN: u32 = 4;
const KEYED: u32 = 8;
/// Places of counters.
const SEALED: u32 = 0;
const UNSEALED: u32 = 1;
const WITHOUT_PEER: u32 = 2;
const UNEXPECTED: u32 = 3;

/// Bytes that encryption adds to a packet: IP, UDP, and WireGuard's header, padding excepted, and tag.
pub fn overhead(is_v6: bool) -> u16 {
    if is_v6 { 80 } else { 60 }
}

/// The loaded programs with their maps.
#[derive(Debug)]
pub struct Programs {
    seal: RawFd,
    unseal: RawFd,
    settings: Map<u32, Settings>,
    networks: Mutex<Networks>,
    counters: Counts,
    uplink: Mutex<Option<Uplink>>,
    /// Keeps all of them open.
    _object: Object,
}

#[derive(Debug)]
struct Networks {
    map: Map<NetworkKey, u32>,
    values: BTreeMap<NetworkKey, u32>,
}

/// The interfaces that the programs stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Number of the uplink's interface.
    pub index: u32,
    /// Its MAC address.
    pub mac: Mac,
    /// Number of the WireGuard device.
    pub device: u32,
    /// UDP port of the overlay; `None` without one.
    pub vxlan_port: Option<u16>,
}

/// Another node, as far as the programs know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its pod networks.
    pub networks: Vec<IpNet>,
    /// Whether the device has a peer for it. If not, what is sent to it is dropped.
    pub has_peer: bool,
}

/// Counters of the programs, since they were loaded. Segments that are still to be cut count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the device.
    pub sealed: u64,
    /// Packets from the device that the switch or the kernel got.
    pub unsealed: u64,
    /// Packets dropped to nodes for which the device has no peer.
    pub without_peer: u64,
    /// Packets dropped from peers that are none between pods.
    pub unexpected: u64,
}

/// `struct settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    vxlan_port: u32,
    device: u32,
    uplink: u32,
    uplink_mac: Mac,
    zeros: [u8; 2],
}

// SAFETY: the fields fill the structure.
unsafe impl Plain for Settings {}

impl Programs {
    /// Loads the programs.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn load() -> Result<Self, Error> {
        let find = || {
            let object = Object::load(FILE, &[])?;
            Ok(Self {
                seal: object.program(c"seal")?,
                unseal: object.program(c"unseal")?,
                settings: object.map(c"settings")?,
                networks: Mutex::new(Networks {
                    map: object.map(c"networks")?,
                    values: BTreeMap::new(),
                }),
                counters: object.counts(c"counters")?,
                uplink: Mutex::new(None),
                _object: object,
            })
        };
        find().map_err(|cause| Error::new("load the programs of encryption", cause))
    }

    /// Attaches both, in the place of those of an earlier process. [`Self::set_nodes`] comes first: until then
    /// the overlay's packets are dropped, and those of routed pods are not known.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&self, uplink: Uplink) -> Result<(), Error> {
        let settings = Settings {
            vxlan_port: uplink.vxlan_port.unwrap_or(0).into(),
            device: uplink.device,
            uplink: uplink.index,
            uplink_mac: uplink.mac,
            zeros: [0; 2],
        };
        let failed = |cause| Error::new("attach the programs of encryption", cause);
        self.settings.put(&0, &settings).map_err(failed)?;
        let attach = || {
            let mut netlink = Netlink::open()?;
            netlink.put_program(uplink.index, Direction::Egress, self.seal, "seal")?;
            netlink.put_program(uplink.device, Direction::Ingress, self.unseal, "unseal")
        };
        attach().map_err(|error: linux_net::Error| failed(io::Error::other(error)))?;
        *lock(&self.uplink) = Some(uplink);
        Ok(())
    }

    /// Sets the other nodes, and the pod networks of this one. What is sent to a node that is not among them is
    /// dropped in a tunnel, and leaves in clear where it is routed.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_nodes<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n Node>,
        own: &[IpNet],
    ) -> Result<(), Error> {
        let mut wanted: BTreeMap<NetworkKey, u32> =
            own.iter().map(|it| (NetworkKey::of(it), OWN)).collect();
        for node in nodes {
            let keyed = if node.has_peer { KEYED } else { 0 };
            let addresses = node.addresses.iter().map(|it| (IpNet::from(*it), NODE | keyed));
            let networks = node.networks.iter().map(|it| (*it, PODS | keyed));
            for (network, value) in addresses.chain(networks) {
                // Of nodes that claim the same, the first one has it, as in routes.
                wanted.entry(NetworkKey::of(&network)).or_insert(value);
            }
        }
        lock(&self.networks).set(wanted).map_err(|cause| Error::new("set the nodes", cause))
    }

    /// Whether both programs are where they were attached.
    pub fn are_attached(&self) -> bool {
        let Some(uplink) = *lock(&self.uplink) else { return true };
        Self::seals(uplink.index) && has(uplink.device, Direction::Ingress, ":unseal")
    }

    /// Whether an uplink has the program of this process or of an earlier one.
    pub fn seals(uplink: u32) -> bool {
        has(uplink, Direction::Egress, ":seal")
    }

    /// Counters of the programs.
    pub fn counters(&self) -> Counters {
        let sum = |counter| self.counters.sum(counter);
        Counters {
            sealed: sum(SEALED),
            unsealed: sum(UNSEALED),
            without_peer: sum(WITHOUT_PEER),
            unexpected: sum(UNEXPECTED),
        }
    }

    /// Takes the program of this process, or of an earlier one, off an uplink: what leaves it is in clear from now on.
    ///
    /// # Errors
    /// If the kernel keeps it.
    pub fn release(uplink: u32) -> Result<(), Error> {
        let remove = || Netlink::open()?.remove_programs(uplink, Direction::Egress);
        match remove() {
            Err(error) if !error.is_not_found() => {
                Err(Error::new("take encryption off the uplink", io::Error::other(error)))
            }
            _ => Ok(()),
        }
    }
}

fn has(index: u32, direction: Direction, name: &str) -> bool {
    let filters = Netlink::open().and_then(|mut netlink| netlink.filters(index, direction));
    filters.is_ok_and(|all| all.iter().any(|it| it.is_own() && it.name.ends_with(name)))
}

impl Networks {
    /// Makes the map hold exactly these. Puts first and removes afterwards, unlike [`dataplane::bpf::KeySet`]: no
    /// address is in no network in between, and leaves in clear.
    fn set(&mut self, wanted: BTreeMap<NetworkKey, u32>) -> io::Result<()> {
        for (key, value) in &wanted {
            if self.values.get(key) != Some(value) {
                self.map.put(key, value)?;
                self.values.insert(*key, *value);
            }
        }
        let surplus: Vec<_> =
            self.values.keys().filter(|it| !wanted.contains_key(it)).copied().collect();
        for key in surplus {
            self.map.remove(&key)?;
            self.values.remove(&key);
        }
        Ok(())
    }
}

/// Nothing that can fail half-way runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
