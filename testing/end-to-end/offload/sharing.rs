//! All pods share the punt link; none may take it from the others.

use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt;
use rustix::process::{Signal, kill_process};
use testkit::{RawSender, packet};

use super::{ON, offload};
use crate::cluster_node::PATIENCE;
use crate::hostile::mac;
use crate::{ClusterNode, requires_the_machine};

/// Frames of the flood, more than any ring holds.
const FLOOD: u16 = 20_000;
/// Connections that another pod opens beside it.
const CONNECTIONS: u16 = 40;

/// The switch is stopped, so that everything depends on what the punt link has room for. Of a pod
/// that sends less than its share nothing may be lost.
#[test]
fn a_flood_of_one_pod_leaves_room_for_the_connections_of_others() {
    requires_the_machine!();
    for workers in ["1", "2"] {
        let node = ClusterNode::start(&[&ON[..], &["--workers", workers]].concat());
        let (flooder, client) = (node.pod("flooder", "flooder"), node.pod("client", "client"));
        let server = node.pod("server", "server");
        let to = SocketAddr::new(server.v4(), 7000);
        let receiver = server.namespace.enter(|| UdpSocket::bind(to)).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        // One burst of the switch fits, the flood's part included.
        sockopt::set_socket_recv_buffer_size_force(&receiver, 8 << 20).unwrap();
        let senders = client.namespace.enter(|| {
            let sender = |_| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(to).unwrap();
                socket
            };
            (0..CONNECTIONS).map(sender).collect::<Vec<_>>()
        });
        // Whatever an earlier frame waits for (neighbours) is over.
        senders[0].send(b"first").unwrap();
        assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 5);
        let own = mac(&flooder);
        kill_process(node.switch_id(), Signal::STOP).unwrap();
        flooder.namespace.enter(|| {
            let sender = RawSender::open("eth0").unwrap();
            for n in 0..FLOOD {
                let from = SocketAddr::new(flooder.v4(), 1024 + n).to_string();
                let frame = packet::udp(&from, &to.to_string()).from_mac(own).build();
                // Frames are dropped while the kernel has no room.
                let _ = sender.send(&frame);
            }
        });
        for (n, sender) in senders.iter().enumerate() {
            sender.send(&(n as u16).to_be_bytes()).unwrap();
        }
        kill_process(node.switch_id(), Signal::CONT).unwrap();
        let mut missing: Vec<u16> = (0..CONNECTIONS).collect();
        while !missing.is_empty() {
            let mut bytes = [0; 2];
            let received = receiver.recv_from(&mut bytes);
            let (_, from) = received.unwrap_or_else(|error| {
                panic!("{workers} workers: {missing:?} are lost ({error}): {}", offload(&node))
            });
            if from.ip() == client.v4() {
                let number = u16::from_be_bytes(bytes);
                missing.retain(|it| *it != number);
            }
        }
        let dropped = offload(&node)["over_share"].as_u64().unwrap();
        assert!(dropped > u64::from(FLOOD) / 2, "{}", offload(&node));
        let status = node.status();
        let mut ports = status["ports"].as_array().unwrap().iter();
        let port = ports.find(|port| port["name"] == "default/flooder").unwrap();
        assert_eq!(port["missed"].as_u64(), Some(dropped), "it is the flooder's loss");
    }
}
