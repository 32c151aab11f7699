//! Bridges: their ports, their forwarding databases, and filtering of bridged frames.

use netlink_packet_route::link::{InfoBridge, InfoData, InfoKind, LinkAttribute, LinkInfo};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::Error;
use super::link;
use super::netlink::Netlink;
use crate::MacAddress;

impl Netlink {
    /// The forwarding databases of all bridges: Ethernet addresses, each with the number of the port
    /// it was learnt at.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn bridge_entries(&mut self) -> Result<Vec<(MacAddress, u32)>, Error> {
        let mut query = NeighbourMessage::default();
        query.header.family = AddressFamily::Bridge;
        let query = RouteNetlinkMessage::GetNeighbour(query);
        let answers = self.all("list what bridges have learnt", query)?;
        let entry = |answer| {
            let RouteNetlinkMessage::NewNeighbour(message) = answer else { return None };
            let mac = message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => MacAddress::of(bytes),
                _ => None,
            });
            Some((mac?, message.header.ifindex))
        };
        Ok(answers.into_iter().filter_map(entry).collect())
    }

    /// Passes the frames of one bridge to the hooks of IPv4 and IPv6 (`nf_call_iptables` and
    /// `nf_call_ip6tables` of the bridge, not of all).
    ///
    /// # Errors
    /// Fails if it is gone or no bridge, or the kernel lacks `CONFIG_BRIDGE_NETFILTER`.
    pub fn pass_bridged_to_filters(&mut self, bridge: u32) -> Result<(), Error> {
        let settings = vec![InfoBridge::NfCallIpTables(true), InfoBridge::NfCallIp6Tables(true)];
        let info =
            vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(settings))];
        let message = link::message(bridge, vec![LinkAttribute::LinkInfo(info)]);
        let what = format!("pass frames of bridge {bridge} to IP filters");
        self.change(&what, RouteNetlinkMessage::NewLink(message), 0)
    }
}

/// Returns whether the kernel has `br_netfilter` loaded: without it, bridges' frames meet no IP filter
/// whatever their settings say.
pub fn can_pass_bridged_to_filters() -> bool {
    std::path::Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
}

/// Reads both settings of a bridge.
pub(super) fn passes_to_filters(data: &[InfoBridge]) -> bool {
    let has = |wanted: &InfoBridge| data.contains(wanted);
    has(&InfoBridge::NfCallIpTables(true)) && has(&InfoBridge::NfCallIp6Tables(true))
}
