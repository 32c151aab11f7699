//! Configuration of the paths to other nodes and to the world.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use cli_runtime::{Networks, Underlay};
use dataplane::Underlay as DataplaneUnderlay;
use dataplane::wire::vxlan::Vxlan;
use ipnet::{IpNet, Ipv4Net};

use super::choices::{Encryption, Masquerade};
use super::options::Options;
use super::text::{OnOff, PortSpan};
use super::{AUTO, Faults};

/// Configuration of the paths out of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Name of the uplink's interface, or [`AUTO`]; `None`: no uplink.
    pub uplink: Option<String>,
    /// The underlay between nodes.
    pub underlay: DataplaneUnderlay,
    /// Masquerading of pods' traffic to the world.
    pub masquerade: Masquerade,
    /// Ports of the node's addresses for translated connections.
    pub translation_ports: RangeInclusive<u16>,
    /// Link-local destinations that pods reach through the kernel.
    pub link_local_destinations: Vec<IpNet>,
    /// Networks of which services take external IPs.
    pub external_ips: Vec<IpNet>,
    /// Networks of cluster addresses that the kernel routes to the switch.
    pub service_networks: Vec<IpNet>,
    /// Encryption between nodes.
    pub encryption: Encryption,
    /// UDP port of encrypted packets.
    pub wireguard_port: u16,
    /// True if traffic of nodes' own processes is encrypted as well.
    pub encrypts_hosts: bool,
}

/// The link-local networks that a kernel has routes to (RFC 3927). IPv6 has one on each link.
const LINK_LOCAL: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16));

/// An interface's name has at most this many bytes (`IFNAMSIZ` less the end mark).
const LONGEST_INTERFACE: usize = 15;

impl Network {
    pub(super) fn resolve(options: &Options, faults: &mut Faults) -> Self {
        let uplink = options.uplink.clone();
        if let Some(name) = &uplink
            && (name.is_empty()
                || name.len() > LONGEST_INTERFACE
                || name.contains(|c: char| !c.is_ascii_graphic() || c == '/'))
        {
            let name = name.escape_debug();
            faults.add("uplink", format_args!("'{name}' is not a valid interface name"));
        }
        let vxlan = Vxlan {
            network: options.vxlan_network(),
            port: options.vxlan_port(),
            group: options.vxlan_group() == OnOff::On,
        };
        faults.range("vxlan-network", vxlan.network.into(), 1, (1 << 24) - 1);
        faults.range("vxlan-port", vxlan.port.into(), 1, u16::MAX.into());
        let masquerade = options.masquerade.unwrap_or(match uplink {
            Some(_) => Masquerade::Kernel,
            None => Masquerade::Off,
        });
        if masquerade == Masquerade::Direct && uplink.is_none() {
            faults.add("masquerade", format_args!("direct needs an uplink"));
        }
        let Networks(link_local) = options.link_local_destinations();
        for net in link_local.iter().filter(|net| !LINK_LOCAL.contains(*net)) {
            let words = format_args!("{net} is not in {LINK_LOCAL}");
            faults.add("link-local-destinations", words);
        }
        let PortSpan(first, last) = options.translation_ports();
        let encryption = options.encryption();
        let wireguard_port = options.encryption_port();
        faults.range("encryption-port", wireguard_port.into(), 1, u16::MAX.into());
        let encrypts_hosts = options.encryption_host_network() == OnOff::On;
        if encrypts_hosts && encryption != Encryption::WireGuard {
            faults.add("encryption-host-network", format_args!("on goes with encryption"));
        }
        if encryption == Encryption::WireGuard {
            if uplink.is_none() {
                faults.add("encryption", format_args!("wireguard needs an uplink"));
            }
            // While a key changes, the next port is the second device's.
            match wireguard_port.checked_add(1) {
                Some(second) => {
                    for port in [wireguard_port, second] {
                        if port == vxlan.port || (first..=last).contains(&port) {
                            let text = "is the port of tunnels, or one for translated connections";
                            faults.add("encryption-port", format_args!("{port} {text}"));
                        }
                    }
                }
                None => faults.add("encryption-port", format_args!("no port follows it")),
            }
        }
        Self {
            uplink,
            underlay: match options.underlay() {
                Underlay::Vxlan => DataplaneUnderlay::Overlay(vxlan),
                Underlay::Routed => DataplaneUnderlay::Routed,
            },
            masquerade,
            translation_ports: first..=last,
            link_local_destinations: link_local,
            external_ips: options.external_ips().0,
            service_networks: options.service_networks.clone(),
            encryption,
            wireguard_port,
            encrypts_hosts,
        }
    }

    /// UDP port of encrypted packets; `None` without encryption.
    pub fn encryption_port(&self) -> Option<u16> {
        (self.encryption == Encryption::WireGuard).then_some(self.wireguard_port)
    }

    /// Returns whether the uplink is [`AUTO`].
    pub fn finds_uplink(&self) -> bool {
        self.uplink.as_deref() == Some(AUTO)
    }
}
