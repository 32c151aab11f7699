//! Encryption between nodes in the status.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cli_runtime::counted;
use serde::{Deserialize, Serialize};

use crate::run::shared_status::SharedStatus;

/// State of encryption between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionStatus {
    /// `on` or `off`.
    pub state: String,
    /// Why the device is not configured.
    pub reason: Option<String>,
    /// The public key of this node, in base64.
    #[serde(default)]
    pub public_key: String,
    /// The step of a rotation of this node's key.
    #[serde(default)]
    pub key_rotation: Option<String>,
    /// Whether what processes of this node and of other such nodes say is encrypted.
    #[serde(default)]
    pub host_network: bool,
    /// Peers of the device, by node.
    pub peers: BTreeMap<String, PeerStatus>,
    /// Nodes that nothing is sent to, with the reason.
    pub without_peer: BTreeMap<String, String>,
    /// Packets that were encrypted; those that were still to be cut count as one.
    pub encrypted: u64,
    /// Packets that arrived encrypted.
    pub decrypted: u64,
    /// Packets dropped, by reason: `clear-text`, `no-peer`, `not-of-pods`.
    pub dropped: BTreeMap<String, u64>,
}

/// A peer of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Seconds since the last handshake; absent before the first one.
    pub handshake_age_seconds: Option<u64>,
    /// Encrypted bytes received.
    pub received_bytes: u64,
    /// Encrypted bytes sent.
    pub sent_bytes: u64,
}

impl EncryptionStatus {
    pub(super) fn of(shared: &SharedStatus) -> Self {
        let Some(encryption) = &shared.encryption else {
            return Self { state: "off".to_owned(), ..Self::default() };
        };
        let device = encryption.device_state();
        let published = encryption.published();
        let counters = encryption.counters();
        let offload = shared.flow_offload();
        let clear_text = offload.running().map_or(0, |it| it.state().counters.clear_text);
        let dropped = [
            ("clear-text", clear_text),
            ("no-peer", counters.without_peer),
            ("not-of-pods", counters.unexpected),
        ];
        Self {
            state: "on".to_owned(),
            reason: device.error,
            public_key: BASE64_STANDARD.encode(published.public_key),
            key_rotation: device.rotation.map(str::to_owned),
            host_network: published.host_network,
            peers: device
                .peers
                .iter()
                .map(|(node, peer)| {
                    let peer = PeerStatus {
                        handshake_age_seconds: peer.handshake_age.map(|age| age.as_secs()),
                        received_bytes: peer.received,
                        sent_bytes: peer.sent,
                    };
                    (node.to_string(), peer)
                })
                .collect(),
            without_peer: device
                .without
                .iter()
                .map(|(node, why)| (node.to_string(), why.clone()))
                .collect(),
            encrypted: counters.sealed,
            decrypted: counters.unsealed,
            dropped: dropped.map(|(reason, count)| (reason.to_owned(), count)).into(),
        }
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        if let Some(reason) = &self.reason {
            return format!("{}: {reason}", self.state);
        }
        let heard = self.peers.values().filter(|it| it.handshake_age_seconds.is_some()).count();
        let without = match self.without_peer.len() {
            0 => String::new(),
            count => format!(", {} without", counted(count, "node")),
        };
        let dropped: u64 = self.dropped.values().sum();
        let hosts = if self.host_network { ", host network too" } else { "" };
        let change = self.key_rotation.iter().map(|step| format!("; {step}")).collect::<String>();
        format!(
            "wireguard{hosts}, {} ({heard} with a handshake){without}, {} encrypted, {} decrypted, {dropped} \
             dropped{change}",
            counted(self.peers.len(), "peer"),
            counted(self.encrypted, "packet"),
            self.decrypted
        )
    }
}
