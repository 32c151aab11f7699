//! The loaded programs, their maps, and the interfaces they are attached to.

#![allow(unsafe_code, reason = "a value that the kernel reads byte by byte")]

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dataplane::bpf::{Counts, Entries, Error, Map, NetworkKey, Object, Plain};
use dataplane::wire::Mac;
use ipnet::IpNet;
use linux_net::{Direction, Netlink};

static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/encryption.bpf.o"));

/// Bits of a network's value, as `dataplane/bpf/sealed.h` has them.
const NODE: u32 = 1;
const PODS: u32 = 2;
const OWN: u32 = 4;
const KEYED: u32 = 8;
const SECOND: u32 = 16;
const HOSTS: u32 = 32;
const SELF: u32 = 64;
const ATTACH: &str = "attach the programs of encryption";

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
    forwarder: Map<u32, u32>,
    networks: Mutex<Entries<NetworkKey, u32>>,
    counters: Counts,
    places: Mutex<Places>,
    /// Keeps all of them open.
    _object: Object,
}

/// Interfaces that the programs are attached to.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    uplink: Option<Uplink>,
    /// Number of the second device, 0 without one.
    second: u32,
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
    /// UDP port of encrypted packets. The second device has the next one.
    pub wireguard_port: u16,
}

/// A node, as far as the programs know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its pod networks.
    pub networks: Vec<IpNet>,
    /// Whether the device has a peer for it. If not, what is sent to it is dropped.
    pub has_peer: bool,
    /// Whether the second device is taken.
    pub takes_second: bool,
    /// Whether what its processes and those of this node say to each other is encrypted as well.
    pub host_network: bool,
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
    wireguard_port: u32,
    device: u32,
    second: u32,
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
                forwarder: object.map(c"forwarder")?,
                networks: Mutex::new(Entries::new(object.map(c"networks")?)),
                counters: object.counts(c"counters")?,
                places: Mutex::default(),
                _object: object,
            })
        };
        find().map_err(|cause| Error::new("load the programs of encryption", cause))
    }

    /// Attaches both, in the place of those of an earlier process. [`Self::set_networks`] comes first: until then
    /// the overlay's packets are dropped, and those of routed pods are not known.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&self, uplink: Uplink) -> Result<(), Error> {
        let mut places = lock(&self.places);
        places.uplink = Some(uplink);
        self.set_places(&places)?;
        self.put("seal", uplink.index, Direction::Egress, self.seal)?;
        self.put("unseal", uplink.device, Direction::Ingress, self.unseal)
    }

    /// Takes packets of a second device as those of the first one, and sends some nodes' to it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach_second(&self, device: u32) -> Result<(), Error> {
        let mut places = lock(&self.places);
        places.second = device;
        self.set_places(&places)?;
        self.put("unseal", device, Direction::Ingress, self.unseal)
    }

    /// Hands what was decrypted to `program`, flow offload's, which knows the connections of pods. It has to be loaded as
    /// long as this is.
    ///
    /// # Errors
    /// If the kernel refuses: all of it takes the uplink's ingress.
    pub fn forward_by(&self, program: RawFd) -> Result<(), Error> {
        let put = self.forwarder.put(&0, &program.cast_unsigned());
        put.map_err(|cause| Error::new(ATTACH, cause))
    }

    fn set_places(&self, places: &Places) -> Result<(), Error> {
        let Some(uplink) = places.uplink else { return Ok(()) };
        let settings = Settings {
            vxlan_port: uplink.vxlan_port.unwrap_or(0).into(),
            wireguard_port: uplink.wireguard_port.into(),
            device: uplink.device,
            second: places.second,
            uplink: uplink.index,
            uplink_mac: uplink.mac,
            zeros: [0; 2],
        };
        self.settings.put(&0, &settings).map_err(|cause| Error::new(ATTACH, cause))
    }

    fn put(&self, name: &str, at: u32, direction: Direction, program: RawFd) -> Result<(), Error> {
        let put = || Netlink::open()?.put_program(at, direction, program, name);
        put().map_err(|error: linux_net::Error| Error::new(ATTACH, io::Error::other(error)))
    }

    /// Sets the networks of this node and the others, [`values`] of theirs. What is sent to a node that is not among
    /// them is dropped in a tunnel, and leaves in clear where it is routed.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_networks(&self, networks: &BTreeMap<NetworkKey, u32>) -> Result<(), Error> {
        lock(&self.networks).set(networks).map_err(|cause| Error::new("set the nodes", cause))
    }

    /// Whether all programs are where they were attached.
    pub fn are_attached(&self) -> bool {
        let Places { uplink, second } = *lock(&self.places);
        let Some(uplink) = uplink else { return true };
        let unseals = |device| has(device, Direction::Ingress, ":unseal");
        Self::seals(uplink.index) && unseals(uplink.device) && (second == 0 || unseals(second))
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

/// The networks of nodes as the programs have them. Of nodes that claim the same, the first one has it, as in routes,
/// and this one before all others.
pub fn values<'n>(
    own: &Node,
    others: impl IntoIterator<Item = &'n Node>,
) -> BTreeMap<NetworkKey, u32> {
    let pods = own.networks.iter().map(|it| (NetworkKey::of(it), OWN));
    let itself = own.addresses.iter().map(|it| (NetworkKey::of(&IpNet::from(*it)), SELF));
    let mut values: BTreeMap<NetworkKey, u32> = pods.chain(itself).collect();
    for node in others {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let way = bit(node.has_peer, KEYED) | bit(node.takes_second, SECOND);
        let hosts = bit(node.host_network, HOSTS);
        let addresses = node.addresses.iter().map(|it| (IpNet::from(*it), NODE | hosts | way));
        let networks = node.networks.iter().map(|it| (*it, PODS | way));
        for (network, value) in addresses.chain(networks) {
            values.entry(NetworkKey::of(&network)).or_insert(value);
        }
    }
    values
}

/// Nothing that can fail half-way runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
