//! Encryption between two nodes, whose switches publish their keys by an API server. boringtun serves the devices.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use testkit::{RawReceiver, RawSender, packet};

use crate::cluster_node::BLOCKED;
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;

const SECRET: &[u8] = b"what pods of different nodes say to each other";
const PORT: u16 = 7000;
const UNDERLAYS: [&str; 2] = ["vxlan", "routed"];

/// Whether the nodes have sent these bytes since the last call.
fn saw(captures: &[RawReceiver; 2], bytes: &[u8]) -> bool {
    let mut found = false;
    for capture in captures {
        while let Some(frame) = capture.receive().unwrap() {
            found |= frame.windows(bytes.len()).any(|it| it == bytes);
        }
    }
    found
}

/// Both ends of a connection that has said the secret.
fn talk(client: &Pod<'_>, server: &Pod<'_>, to: IpAddr) -> Option<(TcpStream, TcpStream)> {
    let address = SocketAddr::new(to, PORT);
    let listener = server.namespace.enter(|| TcpListener::bind(address).unwrap());
    let mut near = client.connect(to, PORT).ok()?;
    let (mut far, _) = listener.accept().unwrap();
    says(&mut near, &mut far).then_some((near, far))
}

fn says(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    to.set_read_timeout(Some(BLOCKED)).unwrap();
    let mut received = [0; SECRET.len()];
    from.write_all(SECRET).is_ok() && to.read_exact(&mut received).is_ok() && received == SECRET
}

#[test]
fn what_pods_of_two_nodes_say_is_encrypted_through_restarts() {
    requires_the_machine!("boringtun-cli");
    for underlay in UNDERLAYS {
        let lan = Lan::encrypted(&["--underlay", underlay]);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let captures = lan.capture();
        let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
        let mut streams = [server.v4(), server.v6()].map(|to| {
            let (mut near, mut far) =
                one.eventually("an encrypted connection", || talk(&client, &server, to));
            // In the programs of flow offload as well.
            for _ in 0..20 {
                assert!(says(&mut near, &mut far) && says(&mut far, &mut near), "{underlay} {to}");
            }
            (near, far)
        });
        assert!(!saw(&captures, SECRET), "{underlay}");
        // Pods and the other node's own processes.
        assert!(client.pings("192.0.2.2".parse().unwrap()), "{underlay}");
        let status = one.eventually("a handshake", || {
            let status = one.status();
            status["encryption"]["peers"]["node2"]["handshake_age_seconds"].as_u64()?;
            Some(status)
        });
        let encryption = &status["encryption"];
        assert!(encryption["encrypted"].as_u64().unwrap() > 40, "{encryption}");
        assert_eq!(encryption["dropped"]["clear-text"], 0, "{encryption}");
        assert_eq!(one.metric("podgate_encryption_peers"), 1.0);

        one.kill_switch();
        for (near, far) in &mut streams {
            let _ = near.write_all(SECRET);
            let _ = far.write_all(SECRET);
        }
        assert!(!saw(&captures, SECRET), "{underlay}: killed");
        one.start_switch();
        let mut received = [0; SECRET.len()];
        for (near, far) in &mut streams {
            far.read_exact(&mut received).unwrap();
            near.read_exact(&mut received).unwrap();
            assert!(says(near, far) && says(far, near), "{underlay}: started again");
        }
        assert!(talk(&client, &server, server.v4()).is_some());
        assert!(!saw(&captures, SECRET), "{underlay}: started again");
    }
}

#[test]
fn what_pods_say_is_encrypted_between_addresses_of_ipv6() {
    requires_the_machine!("boringtun-cli");
    for (underlay, mtu) in UNDERLAYS.into_iter().zip([1350, 1420]) {
        let lan = Lan::encrypted_over_v6(&["--underlay", underlay]);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let captures = lan.capture();
        let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
        for to in [server.v4(), server.v6()] {
            let (mut near, mut far) =
                one.eventually("an encrypted connection", || talk(&client, &server, to));
            for _ in 0..20 {
                assert!(says(&mut near, &mut far) && says(&mut far, &mut near), "{underlay} {to}");
            }
        }
        assert!(!saw(&captures, SECRET), "{underlay}");
        assert_eq!(one.status()["pod_mtu"], mtu, "{underlay}");
        two.eventually("what the device has received", || {
            let peer = two.status()["encryption"]["peers"]["node1"].clone();
            (peer["received_bytes"].as_u64()? > 0).then_some(())
        });
        assert_eq!(two.status()["encryption"]["dropped"]["clear-text"], 0, "{underlay}");
    }
}

/// The packets of an attacker on the underlay: as node 1 would send them without encryption.
fn forged(lan: &Lan, from: IpAddr, to: IpAddr, underlay: &str) -> Vec<u8> {
    let mac = |path: &str| -> [u8; 6] {
        let text = lan.nodes[1].namespace.exec(["cat", path]);
        let octets = text.trim().split(':').map(|it| u8::from_str_radix(it, 16).unwrap());
        octets.collect::<Vec<u8>>().try_into().unwrap()
    };
    let eth0 = mac("/sys/class/net/eth0/address");
    let (from, to) = (format!("{from}:9"), format!("{to}:{PORT}"));
    let inner = packet::udp(&from, &to).payload(SECRET).from_mac([2, 0, 0, 0, 0, 1]);
    if underlay == "routed" {
        return inner.to_mac(eth0).build();
    }
    let header = [8, 0, 0, 0, 0, 0x10, 0, 0];
    let inside = [&header[..], &inner.to_mac([0; 6]).build()].concat();
    let outer = packet::udp("192.0.2.1:50000", "192.0.2.2:4789").ttl(255).payload(&inside);
    let mut frame = outer.from_mac([2, 0, 0, 0, 9, 9]).to_mac(eth0).build();
    // Without a checksum, as tunnels have it.
    frame[40..42].fill(0);
    frame
}

fn gets_forged(lan: &Lan, pod: &Pod<'_>, frame: &[u8]) -> bool {
    let address = SocketAddr::new(pod.v4(), PORT);
    let socket = pod.namespace.enter(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(BLOCKED)).unwrap();
    lan.world.enter(|| RawSender::open("eth0").unwrap().send(frame).unwrap());
    socket.recv_from(&mut [0; 1500]).is_ok()
}

#[test]
fn packets_forged_on_the_underlay_reach_no_pod() {
    requires_the_machine!("boringtun-cli");
    for underlay in UNDERLAYS {
        let client: IpAddr = "10.77.0.99".parse().unwrap();
        let lan = Lan::start(&["--underlay", underlay]);
        let pod = lan.nodes[1].pod("pod", "pod");
        let frame = forged(&lan, client, pod.v4(), underlay);
        assert!(gets_forged(&lan, &pod, &frame), "{underlay}: without encryption");
        drop(pod);
        drop(lan);
        let lan = Lan::encrypted(&["--underlay", underlay]);
        let pod = lan.nodes[1].pod("pod", "pod");
        let frame = forged(&lan, client, pod.v4(), underlay);
        assert!(!gets_forged(&lan, &pod, &frame), "{underlay}");
        lan.nodes[1].eventually("the drop to be counted", || {
            let status = lan.nodes[1].status();
            let dropped = status["encryption"]["dropped"]["clear-text"].as_u64()?;
            (dropped > 0).then_some(())
        });
    }
}

/// A node whose switch has published no key gets nothing, in clear or otherwise.
#[test]
fn nothing_is_sent_to_a_node_without_a_key() {
    requires_the_machine!("boringtun-cli");
    for underlay in UNDERLAYS {
        let lan = Lan::encrypted(&["--underlay", underlay]);
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let captures = lan.capture();
        let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
        one.eventually("an encrypted connection", || talk(&client, &server, server.v4()));
        // It ends, and what it published goes.
        two.kill_switch();
        one.api_server().delete("nodeaddresses", None, "node2");
        one.eventually("the status", || {
            let status = one.status();
            status["encryption"]["without_peer"]["node2"].as_str().map(drop)
        });
        saw(&captures, SECRET);
        let socket = client.namespace.enter(|| UdpSocket::bind((client.v4(), 0)).unwrap());
        for _ in 0..5 {
            let _ = socket.send_to(SECRET, (server.v4(), PORT));
        }
        one.eventually("drops", || {
            let dropped = one.status()["encryption"]["dropped"]["no-peer"].as_u64()?;
            (dropped > 0).then_some(())
        });
        assert!(!saw(&captures, SECRET), "{underlay}");
        let text = one.podgate(&["status"]);
        assert!(text.contains("nothing is sent to Node node2: it publishes no key"), "{text}");
        two.start_switch();
        one.eventually("the key again", || talk(&client, &server, server.v4()));
    }
}

#[test]
fn streams_and_the_longest_packets_fit_beside_encryption() {
    requires_the_machine!("boringtun-cli", "iperf3", "ping");
    let lan = Lan::encrypted(&[]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
    one.eventually("an encrypted connection", || talk(&client, &server, server.v4()));
    assert_eq!(one.status()["pod_mtu"], 1390);
    let to = server.v4().to_string();
    let ping = |payload: &str| {
        client.namespace.try_exec(["ping", "-c", "1", "-W", "2", "-M", "do", "-s", payload, &to])
    };
    assert!(ping("1362").status.success());
    let listener = server.namespace.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", crate::cluster_node::PATIENCE);
    let result = client.namespace.exec(["iperf3", "-J", "-n", "32M", "-c", &to]);
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    let bytes = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(bytes > 8 << 20, "{result}");
}
