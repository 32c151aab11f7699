//! The kernel's WireGuard, by generic netlink (linux/wireguard.h).

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_generic::GenlMessage;
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute,
    WireguardCmd, WireguardMessage, WireguardPeer as Peer, WireguardPeerAttribute,
    WireguardPeerFlags,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{Changes, Error, State, WireGuardConfig, WireGuardPeerState};
use crate::raw_netlink;

/// A socket to the family.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    family: u16,
    device: String,
}

/// Peers in one request: a message's attribute of peers has 64 KiB.
const TOGETHER: usize = 64;

impl Kernel {
    pub(super) fn open(device: &str) -> Result<Self, Error> {
        let open = || {
            let socket = raw_netlink::open(NETLINK_GENERIC)?;
            let mut this = Self { socket, family: 0, device: device.to_owned() };
            this.family = this.find_family()?;
            Ok(this)
        };
        open().map_err(|cause| Error::new("find the kernel's WireGuard", cause))
    }

    fn find_family(&self) -> io::Result<u16> {
        let request = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName("wireguard".to_owned())],
        };
        let mut family = None;
        self.call(GenlMessage::from_payload(request), NLM_F_ACK, |answer: GenlCtrl| {
            family = answer.nlas.into_iter().find_map(|it| match it {
                GenlCtrlAttrs::FamilyId(id) => Some(id),
                _ => None,
            });
        })?;
        family.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn state(&mut self) -> Result<State, Error> {
        let attributes = vec![WireguardAttribute::IfName(self.device.clone())];
        let mut state = State::default();
        let mut request = GenlMessage::from_payload(WireguardMessage {
            cmd: WireguardCmd::GetDevice,
            attributes,
        });
        request.set_resolved_family_id(self.family);
        let asked =
            self.call(request, NLM_F_DUMP, |answer: WireguardMessage| read(answer, &mut state));
        asked.map_err(|cause| Error::new(format!("ask {}", self.device), cause))?;
        Ok(state)
    }

    pub(super) fn set(
        &mut self,
        config: &WireGuardConfig,
        changes: &Changes<'_>,
    ) -> Result<(), Error> {
        for attributes in requests(config, changes) {
            let named = [WireguardAttribute::IfName(self.device.clone())];
            let attributes = named.into_iter().chain(attributes).collect();
            let mut request = GenlMessage::from_payload(WireguardMessage {
                cmd: WireguardCmd::SetDevice,
                attributes,
            });
            request.set_resolved_family_id(self.family);
            let set = self.call(request, NLM_F_ACK, |_: WireguardMessage| {});
            set.map_err(|cause| Error::new(format!("configure {}", self.device), cause))?;
        }
        Ok(())
    }

    /// Sends a request and reads its answer.
    fn call<M>(
        &self,
        request: GenlMessage<M>,
        flags: u16,
        mut each: impl FnMut(M),
    ) -> io::Result<()>
    where
        GenlMessage<M>: NetlinkSerializable + NetlinkDeserializable,
        NetlinkMessage<GenlMessage<M>>: From<GenlMessage<M>>,
    {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let answer = raw_netlink::answer(&self.socket)?;
            let mut rest = &answer[..];
            while !rest.is_empty() {
                let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                let message =
                    NetlinkMessage::<GenlMessage<M>>::deserialize(rest).map_err(invalid)?;
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(inner) => each(inner.payload),
                    _ => {}
                }
            }
        }
    }
}

/// The attributes of the requests, in their order.
fn requests(config: &WireGuardConfig, changes: &Changes<'_>) -> Vec<Vec<WireguardAttribute>> {
    let mut device = Vec::new();
    if changes.sets_key {
        device.push(WireguardAttribute::PrivateKey(config.private_key));
    }
    if changes.sets_port {
        device.push(WireguardAttribute::ListenPort(config.port));
    }
    let removed = changes
        .removed
        .iter()
        // A changed peer is changed in place, which keeps its session.
        .filter(|key| !changes.added.iter().any(|peer| peer.public_key == **key))
        .map(|key| {
            vec![
                WireguardPeerAttribute::PublicKey(*key),
                WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
            ]
        });
    let added = changes.added.iter().chain(&changes.kept_alive).map(|peer| {
        vec![
            WireguardPeerAttribute::PublicKey(peer.public_key),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps),
            WireguardPeerAttribute::PersistentKeepalive(peer.keepalive),
            WireguardPeerAttribute::Endpoint(peer.endpoint),
            WireguardPeerAttribute::AllowedIps(peer.networks.iter().map(allowed).collect()),
        ]
    });
    let peers: Vec<Peer> = removed.chain(added).map(Peer).collect();
    let of_peers = peers.chunks(TOGETHER).map(|it| vec![WireguardAttribute::Peers(it.to_vec())]);
    let of_device = (!device.is_empty()).then_some(device);
    of_device.into_iter().chain(of_peers).collect()
}

fn allowed(network: &IpNet) -> WireguardAllowedIp {
    let family = match network {
        IpNet::V4(_) => WireguardAddressFamily::Ipv4,
        IpNet::V6(_) => WireguardAddressFamily::Ipv6,
    };
    WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Family(family),
        WireguardAllowedIpAttr::IpAddr(network.addr()),
        WireguardAllowedIpAttr::Cidr(network.prefix_len()),
    ])
}

/// Adds an answer; a peer with many networks comes in several.
fn read(answer: WireguardMessage, state: &mut State) {
    for attribute in answer.attributes {
        match attribute {
            WireguardAttribute::PublicKey(key) => state.public_key = Some(key),
            WireguardAttribute::ListenPort(port) => state.port = Some(port),
            WireguardAttribute::Peers(peers) => {
                peers.into_iter().for_each(|peer| read_peer(peer, state));
            }
            _ => {}
        }
    }
}

fn read_peer(Peer(attributes): Peer, state: &mut State) {
    let mut peer = WireGuardPeerState::default();
    for attribute in attributes {
        match attribute {
            WireguardPeerAttribute::PublicKey(key) => peer.public_key = key,
            WireguardPeerAttribute::Endpoint(endpoint) => peer.endpoint = Some(endpoint),
            WireguardPeerAttribute::RxBytes(bytes) => peer.received = bytes,
            WireguardPeerAttribute::TxBytes(bytes) => peer.sent = bytes,
            WireguardPeerAttribute::PersistentKeepalive(seconds) => peer.keepalive = seconds,
            WireguardPeerAttribute::LastHandshake(time) if time.seconds > 0 => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let time = Duration::from_secs(time.seconds.unsigned_abs());
                peer.handshake_age = Some(now.saturating_sub(time));
            }
            WireguardPeerAttribute::AllowedIps(networks) => {
                peer.networks.extend(networks.iter().filter_map(network_of));
            }
            _ => {}
        }
    }
    match state.peers.last_mut().filter(|last| last.public_key == peer.public_key) {
        Some(last) => last.networks.extend(peer.networks),
        None => state.peers.push(peer),
    }
}

fn network_of(WireguardAllowedIp(attributes): &WireguardAllowedIp) -> Option<IpNet> {
    let (mut address, mut length) = (None, None);
    for attribute in attributes {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(it) => address = Some(*it),
            WireguardAllowedIpAttr::Cidr(it) => length = Some(*it),
            _ => {}
        }
    }
    IpNet::new(address?, length?).ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::peer;
    use super::*;

    /// The kernel answers with the configuration that was requested.
    #[test]
    fn what_is_set_is_what_is_read() {
        let mut one = peer(1, "192.0.2.1:7", "10.1.0.0/24");
        one.networks.insert("fd00::/64".parse().unwrap());
        one.keepalive = 5;
        let changes = Changes {
            sets_key: true,
            sets_port: true,
            removed: vec![[1; 32], [2; 32]],
            added: vec![&one],
            kept_alive: vec![],
        };
        let config = WireGuardConfig {
            private_key: [3; 32],
            public_key: [4; 32],
            port: 51871,
            peers: vec![one.clone()],
        };
        let requests = requests(&config, &changes);
        let device =
            vec![WireguardAttribute::PrivateKey([3; 32]), WireguardAttribute::ListenPort(51871)];
        assert_eq!(requests[0], device);
        let [WireguardAttribute::Peers(peers)] = &requests[1][..] else { panic!() };
        let removed = Peer(vec![
            WireguardPeerAttribute::PublicKey([2; 32]),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
        ]);
        assert_eq!(peers[0], removed, "one that changes keeps its session");
        let mut state = State::default();
        read_peer(peers[1].clone(), &mut state);
        let [read] = &state.peers[..] else { panic!() };
        assert_eq!(read.public_key, [1; 32]);
        assert_eq!((read.endpoint, &read.networks), (Some(one.endpoint), &one.networks));
        assert_eq!(read.keepalive, 5);
    }

    /// The family is found if the kernel has it; generic netlink is there in any case.
    #[test]
    fn a_kernel_without_wireguard_says_so() {
        if let Err(error) = Kernel::open("none") {
            assert!(error.to_string().starts_with("find the kernel's WireGuard: "), "{error}");
            assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
        }
    }
}
