//! The Hubble Peer API: which nodes answer where. Hubble Relay finds them by it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use observe::verdicts::EventBroker;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::flow::CLUSTER;
use crate::grpc::{Answer, append};
use crate::messages::peer::{ChangeNotification, ChangeNotificationType as Change, Tls};

/// Interval of looking for changes.
const PERIOD: Duration = Duration::from_secs(1);

/// Nodes, with where each answers.
type Peers = BTreeMap<String, String>;

/// The nodes of a cluster whose switches all listen on the same port; without an address, as on a unix socket, this
/// node alone.
fn peers(broker: &EventBroker, node: &str, address: &str) -> Peers {
    let mut found = Peers::new();
    if let Ok(own) = address.parse::<SocketAddr>() {
        let at = |ip: IpAddr| SocketAddr::new(ip, own.port()).to_string();
        let nodes = broker.directory().peers();
        found.extend(nodes.iter().map(|(name, ip)| (name.to_string(), at(*ip))));
    }
    found.entry(node.to_owned()).or_insert_with(|| address.to_owned());
    found
}

/// The name in a node's certificate, as Hubble has it: one wildcard covers all nodes.
fn server_name(node: &str) -> String {
    format!("{}.{CLUSTER}.hubble-grpc.cilium.io", node.replace('.', "-"))
}

/// Whether a server at this address speaks TLS: only a unix socket does not.
pub(crate) fn is_tls(address: &str) -> bool {
    !address.starts_with("unix://")
}

/// Changes of peers, as messages.
fn changes(before: &Peers, now: &Peers, is_tls: bool) -> Vec<ChangeNotification> {
    let of = |(name, address): (&String, &String), kind| ChangeNotification {
        name: name.clone(),
        address: address.clone(),
        r#type: kind as i32,
        tls: is_tls.then(|| Tls { server_name: server_name(name) }),
    };
    let gone = before.iter().filter(|(name, _)| !now.contains_key(*name));
    let here = now.iter().filter_map(|peer| match before.get(peer.0) {
        None => Some(of(peer, Change::PeerAdded)),
        Some(known) => (known != peer.1).then(|| of(peer, Change::PeerUpdated)),
    });
    gone.map(|peer| of(peer, Change::PeerDeleted)).chain(here).collect()
}

/// Sends the nodes, and then their changes until the client is gone; holds `permit` until then.
pub(crate) fn notify(
    broker: Arc<EventBroker>,
    node: String,
    address: String,
    permit: OwnedSemaphorePermit,
) -> Answer {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut known = Peers::new();
        while !broker.is_stopped() {
            let now = peers(&broker, &node, &address);
            let mut portion = BytesMut::new();
            let changes = changes(&known, &now, is_tls(&address));
            changes.iter().for_each(|change| append(change, &mut portion));
            known = now;
            if !portion.is_empty() && sender.send(portion.freeze()).await.is_err() {
                return;
            }
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_once() {
        let peers = |all: &[(&str, &str)]| -> Peers {
            all.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect()
        };
        let before = peers(&[("a", "192.0.2.1:9472"), ("b.x", "192.0.2.2:9472")]);
        let now = peers(&[("b.x", "192.0.2.9:9472"), ("c", "[2001:db8::1]:9472")]);
        let told = |before, now| {
            let all = changes(before, now, true).into_iter();
            all.map(|it| (it.name.clone(), it.address.clone(), it.r#type())).collect::<Vec<_>>()
        };
        let of = |name: &str, address: &str, kind| (name.to_owned(), address.to_owned(), kind);
        let wanted = [
            of("a", "192.0.2.1:9472", Change::PeerDeleted),
            of("b.x", "192.0.2.9:9472", Change::PeerUpdated),
            of("c", "[2001:db8::1]:9472", Change::PeerAdded),
        ];
        assert_eq!(told(&before, &now), wanted);
        assert!(told(&now, &now).is_empty());
        assert_eq!(server_name("b.x"), "b-x.default.hubble-grpc.cilium.io");
        assert_eq!(changes(&Peers::new(), &before, false)[0].tls, None);
    }

    #[test]
    fn all_nodes_answer_on_the_port_of_this_one() {
        let broker = EventBroker::new("a", 1);
        let addresses = [("a", "192.0.2.1"), ("b", "2001:db8::2")];
        let nodes = addresses.map(|(name, ip)| (name.into(), ip.parse().unwrap()));
        broker.directory().set_peers(nodes.into());
        let found = peers(&broker, "a", "0.0.0.0:9472");
        assert_eq!(found["a"], "192.0.2.1:9472");
        assert_eq!(found["b"], "[2001:db8::2]:9472");
        let alone = peers(&broker, "a", "unix:///run/hubble.sock");
        assert_eq!(alone, Peers::from([("a".to_owned(), "unix:///run/hubble.sock".to_owned())]));
        assert_eq!(peers(&broker, "new", "192.0.2.7:9472")["new"], "192.0.2.7:9472");
    }
}
