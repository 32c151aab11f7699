//! Connections with the node itself take the kernel's way, in both directions.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{ON, arrived, asks, bytes, forwarded, settled, wait_for_offload};
use crate::cluster_node::{ClusterNode, PATIENCE};
use crate::requires_the_machine;
use crate::storm::Raise;

/// The node's addresses on its host port.
const GATEWAYS: [&str; 2] = ["10.77.0.1", "fd77::1"];

/// Pieces of 64 KiB that a stream has.
const SENDS: usize = 640;

const NOTHING_OUT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing-out, namespace: default}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
";

/// Counts what arrives until the other end closes.
fn read(mut stream: TcpStream) -> usize {
    let (mut total, mut buffer) = (0, vec![0; 1 << 16]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        total += count;
    }
    total
}

#[test]
fn a_pods_connections_with_its_cluster_node_take_the_kernels_way() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let pod = node.pod("client", "client");
    let listen = || TcpListener::bind(("::", 7000));
    let listener = linux_net::in_namespace(node.namespace.path(), listen).unwrap().unwrap();
    for to in GATEWAYS {
        let to: IpAddr = to.parse().unwrap();
        // Packets of the pod, then packets to it.
        for sends in [true, false] {
            let near = pod.connect(to, 7000).unwrap();
            let (far, _) = listener.accept().unwrap();
            let (mut writer, reader) = if sends { (near, far) } else { (far, near) };
            reader.set_read_timeout(Some(PATIENCE)).unwrap();
            let reader = std::thread::spawn(move || read(reader));
            let (before, mut sent) = (bytes(&node), 0);
            for _ in 0..SENDS {
                writer.write_all(&[7; 1 << 16]).unwrap();
                sent += 1 << 16;
            }
            drop(writer);
            assert_eq!(reader.join().unwrap(), sent, "{to}, {sends}");
            let by_kernel = (bytes(&node) - before) as usize;
            assert!(by_kernel > sent / 2, "{to}, {sends}: {by_kernel} of {sent}");
        }
    }
}

/// As a kubelet probes, and as a proxy in the node's own network asks.
#[test]
fn connections_of_the_cluster_node_to_pods_take_the_kernels_way() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let pod = node.pod("server", "server");
    let _redis = pod.serve_redis();
    for address in [pod.v4(), pod.v6()] {
        let to = SocketAddr::new(address, 6379);
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let mut connection = node.namespace.enter(connect).unwrap();
        connection.set_nodelay(true).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        wait_for_offload(&node, &mut connection);
        let before = forwarded(&node);
        for _ in 0..100 {
            asks(&mut connection).unwrap();
        }
        // A question and its answer.
        assert!(forwarded(&node) >= before + 200, "{address}: both directions");
    }
}

/// Counted by the pod's kernel: of a stream that the node sends at full speed, nothing
/// arrives once the snapshot is in force that denies the connection. (Of TCP: a datagram would open a
/// connection of the node's own, which is permitted.)
#[test]
fn a_denial_holds_for_what_the_cluster_node_sends() {
    requires_the_machine!();
    let node = ClusterNode::start(&ON);
    let pod = node.pod("client", "client");
    let listener = node.namespace.enter(|| TcpListener::bind(("::", 7001))).unwrap();
    for to in GATEWAYS {
        let near = pod.connect(to.parse().unwrap(), 7001).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = near.try_clone().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stopping = Raise(&stop);
            scope.spawn(|| read(near));
            scope.spawn(|| {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Nothing is acknowledged after the denial.
                    sent += far.write(&[7; 1 << 16]).unwrap_or(0);
                }
                sent
            });
            let before = forwarded(&node);
            node.eventually("the kernel's way", || {
                (forwarded(&node) > before + 1000).then_some(())
            });
            node.apply("policy", NOTHING_OUT);
            let then = settled(&pod);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(arrived(&pod), then, "{to}: packets after the denial");
            end.shutdown(Shutdown::Both).unwrap();
            node.withdraw("policy");
        });
    }
}
