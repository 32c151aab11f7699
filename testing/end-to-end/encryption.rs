//! Encryption between two nodes, whose switches publish their keys by an API server. boringtun serves the devices.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use testkit::{RawReceiver, RawSender, packet};

use crate::cluster_node::{BLOCKED, ClusterNode};
use crate::lan::Lan;
use crate::pod::Pod;
use crate::requires_the_machine;

const SECRET: &[u8] = b"what pods of different nodes say to each other";
const PORT: u16 = 7000;
const UNDERLAYS: [&str; 2] = ["vxlan", "routed"];

/// Returns whether the nodes have sent these bytes since the last call.
fn saw(captures: &[RawReceiver], bytes: &[u8]) -> bool {
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
    let mut near = client.try_connect(to, PORT).ok()?;
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
        // Once the kernel forwards the connection, decrypted packets pass no further interface of the node.
        let ingress = [two.namespace.enter(|| RawReceiver::open("eth0").unwrap())];
        for (near, far) in &mut streams {
            two.eventually("a way from the device into the pod", || {
                assert!(says(near, far), "{underlay}");
                (!saw(&ingress, SECRET)).then_some(())
            });
        }
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

fn mac_of(lan: &Lan, path: &str) -> [u8; 6] {
    let text = lan.nodes[1].namespace.exec(["cat", path]);
    let octets = text.trim().split(':').map(|it| u8::from_str_radix(it, 16).unwrap());
    octets.collect::<Vec<u8>>().try_into().unwrap()
}

/// The packets of an attacker on the underlay: as node 1 would send them without encryption.
fn forged(lan: &Lan, from: IpAddr, to: IpAddr, underlay: &str) -> Vec<u8> {
    let eth0 = mac_of(lan, "/sys/class/net/eth0/address");
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
        for from in [client, "192.0.2.1".parse().unwrap()] {
            let frame = forged(&lan, from, pod.v4(), underlay);
            assert!(!gets_forged(&lan, &pod, &frame), "{underlay} {from}");
        }
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
        // It ends, and its published key is removed.
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

/// A stream of numbered datagrams from one pod to another.
struct Stream<'s> {
    from: &'s UdpSocket,
    to: SocketAddr,
    at: &'s UdpSocket,
    received: AtomicU32,
    /// The number sent in all, once that is known.
    sent: OnceLock<u32>,
}

/// Datagrams under way at most: fewer than a receive buffer holds, however busy the machine is.
const UNDER_WAY: u32 = 64;
/// Time without a datagram after which the others are lost.
const LOST: Duration = Duration::from_secs(20);

impl<'s> Stream<'s> {
    fn new(from: &'s UdpSocket, at: &'s UdpSocket) -> Self {
        let (to, received) = (at.local_addr().unwrap(), AtomicU32::new(0));
        Self { from, to, at, received, sent: OnceLock::new() }
    }

    fn send(&self, ended: &AtomicBool) {
        let mut sent = 0;
        while !ended.load(Ordering::Relaxed) {
            if sent - self.received.load(Ordering::Relaxed) < UNDER_WAY {
                let datagram = [SECRET, &u32::to_be_bytes(sent)].concat();
                self.from.send_to(&datagram, self.to).unwrap();
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sent.set(sent).unwrap();
    }

    /// The numbers that do not come.
    fn missing(&self) -> Vec<u32> {
        self.at.set_read_timeout(Some(BLOCKED)).unwrap();
        let (mut numbers, mut last) = (BTreeSet::new(), Instant::now());
        let mut buffer = [0; 1500];
        loop {
            if let Ok((length, _)) = self.at.recv_from(&mut buffer) {
                last = Instant::now();
                let number = buffer[length - 4..length].try_into().unwrap();
                if numbers.insert(u32::from_be_bytes(number)) {
                    self.received.fetch_add(1, Ordering::Relaxed);
                }
            }
            let Some(sent) = self.sent.get() else { continue };
            if numbers.len() == *sent as usize || last.elapsed() > LOST {
                assert!(*sent > UNDER_WAY, "{sent}");
                return (0..*sent).filter(|it| !numbers.contains(it)).collect();
            }
        }
    }
}

/// Ends streams, also where a test fails.
struct End<'e>(&'e AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_packet_is_lost_while_keys_are_rotated() {
    requires_the_machine!("boringtun-cli");
    let lan = Lan::encrypted(&[]);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
    one.eventually("an encrypted connection", || talk(&client, &server, server.v4()));
    let captures = lan.capture();
    let bound = |pod: &Pod<'_>| pod.namespace.enter(|| UdpSocket::bind((pod.v4(), PORT)).unwrap());
    let (near, far) = (bound(&client), bound(&server));
    let streams = [Stream::new(&near, &far), Stream::new(&far, &near)];
    let key = |node: &ClusterNode| node.status()["encryption"]["public_key"].clone();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let missing = streams.each_ref().map(|stream| {
            scope.spawn(|| stream.send(&ended));
            scope.spawn(|| stream.missing())
        });
        let end = End(&ended);
        for node in [one, two, one] {
            let before = key(node);
            node.podgate(&["rotate-key"]);
            assert_ne!(key(node), before);
        }
        drop(end);
        let missing: [Vec<u32>; 2] = missing.map(|it| it.join().unwrap());
        assert!(missing.iter().all(Vec::is_empty), "lost: {missing:?}");
    });
    assert!(!saw(&captures, SECRET));
    let published = one.api_server().object("nodeaddresses", None, "node1").unwrap();
    assert_eq!(published["spec"]["wireguard"]["publicKey"], key(one));
    // The device has a session by the new key, and there is no other one.
    one.kill_switch();
    one.start_switch();
    assert_eq!(published["spec"]["wireguard"]["publicKey"], key(one));
    one.eventually("a connection", || talk(&client, &server, server.v4()));
}

/// Returns whether a datagram with the secret gets from a process of the first node to one of the second.
fn say(lan: &Lan, addresses: [&str; 2]) -> bool {
    let [from, to] = addresses.map(|it| SocketAddr::new(it.parse().unwrap(), 0));
    let far = lan.nodes[1].namespace.enter(|| UdpSocket::bind(to).unwrap());
    far.set_read_timeout(Some(BLOCKED)).unwrap();
    let near = lan.nodes[0].namespace.enter(|| UdpSocket::bind(from).unwrap());
    let _ = near.send_to(SECRET, far.local_addr().unwrap());
    let mut buffer = [0; 1500];
    far.recv_from(&mut buffer).is_ok_and(|(length, _)| &buffer[..length] == SECRET)
}

/// Traffic of the nodes' processes is encrypted once both nodes have the option.
#[test]
fn processes_of_nodes_speak_encrypted_where_that_is_asked_for() {
    requires_the_machine!("boringtun-cli");
    for underlay in UNDERLAYS {
        let mut lan = Lan::encrypted(&["--underlay", underlay]);
        let captures = lan.capture();
        let families = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];
        let asks = |lan: &mut Lan, node: usize| {
            lan.nodes[node].stop_switch();
            let arguments =
                ["--uplink", "eth0", "--encryption", "wireguard", "--underlay", underlay];
            let arguments = [&arguments[..], &["--encryption-host-network", "on"]].concat();
            lan.nodes[node].set_arguments(&arguments);
            lan.nodes[node].start_switch();
        };
        asks(&mut lan, 0);
        for addresses in families {
            saw(&captures, SECRET);
            lan.nodes[0].eventually("the other node", || say(&lan, addresses).then_some(()));
            assert!(saw(&captures, SECRET), "{underlay}: the other node has no such option");
        }
        asks(&mut lan, 1);
        for addresses in families {
            lan.nodes[0].eventually("an encrypted datagram", || {
                saw(&captures, SECRET);
                (say(&lan, addresses) && !saw(&captures, SECRET)).then_some(())
            });
        }
        // In the name of the other node.
        let at = SocketAddr::new("192.0.2.2".parse().unwrap(), PORT);
        let far = lan.nodes[1].namespace.enter(|| UdpSocket::bind(at).unwrap());
        far.set_read_timeout(Some(BLOCKED)).unwrap();
        let mac = mac_of(&lan, "/sys/class/net/eth0/address");
        let forged = packet::udp("192.0.2.1:9", &format!("192.0.2.2:{PORT}"));
        let forged = forged.payload(SECRET).from_mac([2, 0, 0, 0, 0, 1]).to_mac(mac).build();
        lan.world.enter(|| RawSender::open("eth0").unwrap().send(&forged).unwrap());
        assert!(far.recv_from(&mut [0; 1500]).is_err(), "{underlay}");
    }
}
