//! A node with pods that another network made, and frames sent from each.
//!
//! Pods' namespaces have no addresses: nothing answers, and every frame that arrives is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use control::{PodKey, View};
use nftables::{Attachment, Enforcer, Renderer, Site};
use testkit::packet::{Mac, Packet, SWITCH_MAC, icmp, ping, sctp, tcp, udp};
use testkit::{Namespace, RawReceiver, RawSender};

use crate::common::{ICMP, SCTP, TCP, UDP};

/// Connection of the pods' interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// The kernel routes between them, as for the plugin ptp.
    Routed,
    /// Pods are ports of a bridge, as with the plugin bridge.
    Bridged,
}

/// A packet that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
}

/// The namespaces.
pub(crate) struct Lab {
    pub(crate) node: Namespace,
    pub(crate) network: Network,
    ends: Vec<End>,
    /// The end that has each address.
    at: BTreeMap<IpAddr, usize>,
    /// The next source port or echo identifier: each question has its own.
    next: u16,
    /// True if TCP and UDP go to services; see [`Lab::serve`].
    services: bool,
}

struct End {
    name: String,
    mac: Mac,
    sender: RawSender,
    receiver: RawReceiver,
    _namespace: Namespace,
}

/// Time in which frames arrive; a busy machine takes longer.
const TRANSIT: Duration = Duration::from_millis(30);
/// The same where that is seldom.
const LATE: Duration = Duration::from_millis(100);
const BRIDGE: &str = "cni0";
/// Difference of a service's port and its endpoint's.
const SERVICE_PORT: u16 = 1000;

impl Lab {
    /// One end for each list of addresses.
    pub(crate) fn new(network: Network, ends: &[(String, Vec<IpAddr>)]) -> Self {
        let node = Namespace::new("nftnode");
        let sh = |command: &str| drop(node.exec(["sh", "-c", command]));
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        if network == Network::Bridged {
            sh(&format!(
                "ip link add {BRIDGE} type bridge mcast_snooping 0 && ip link set {BRIDGE} up"
            ));
        }
        let mut at = BTreeMap::new();
        let mut made = Vec::new();
        for (index, (name, addresses)) in ends.iter().enumerate() {
            let namespace = Namespace::new("nftpod");
            let interface = interface(index);
            let mac: Mac = [0x02, 0, 0, 0, 1, index as u8];
            let inside = namespace.name();
            let mut script = format!(
                "set -e; ip link add {interface} type veth peer name eth0 netns {inside} address {}\n\
                 ip link set {interface} address {} up\n",
                text(mac),
                text(if network == Network::Routed {
                    SWITCH_MAC
                } else {
                    [0x02, 0, 0, 0, 2, index as u8]
                })
            );
            if network == Network::Bridged {
                script += &format!("ip link set {interface} master {BRIDGE}\n");
            } else {
                for address in addresses {
                    script += &format!(
                        "ip route add {address} dev {interface}\n\
                         ip neigh replace {address} dev {interface} lladdr {} nud permanent\n",
                        text(mac)
                    );
                }
            }
            sh(&script);
            namespace.exec(["ip", "link", "set", "eth0", "up"]);
            let (sender, receiver) = namespace
                .enter(|| (RawSender::open("eth0").unwrap(), RawReceiver::open("eth0").unwrap()));
            at.extend(addresses.iter().map(|address| (*address, index)));
            made.push(End { name: name.clone(), mac, sender, receiver, _namespace: namespace });
        }
        Self { node, network, ends: made, at, next: 1024, services: false }
    }

    /// Puts a service in front of every address and port, as kube-proxy does: a virtual address and
    /// another port, translated on the way in. TCP and UDP questions go to it from now on.
    pub(crate) fn serve(&mut self, ports: &[u16]) {
        let mut table = String::from(
            "table inet services {\n chain services {\n type nat hook prerouting priority dstnat;\n",
        );
        for address in self.at.keys() {
            for (protocol, port) in
                ["tcp", "udp"].into_iter().flat_map(|it| ports.iter().map(move |port| (it, port)))
            {
                let (service, shown, family) = match (self.service(*address), address) {
                    (service, IpAddr::V4(address)) => (service, address.to_string(), "ip"),
                    (service, IpAddr::V6(address)) => (service, format!("[{address}]"), "ip6"),
                };
                table += &format!(
                    "{family} daddr {service} {protocol} dport {} dnat {family} to {shown}:{port}\n",
                    port + SERVICE_PORT
                );
            }
        }
        self.node.exec(["nft", &(table + "}\n}\n")]);
        self.services = true;
    }

    /// The virtual address in front of an address.
    fn service(&self, address: IpAddr) -> IpAddr {
        let index = self.at.keys().position(|it| *it == address).unwrap() as u16;
        match address {
            IpAddr::V4(_) => [172, 30, (index >> 8) as u8, index as u8].into(),
            IpAddr::V6(_) => [0xfd30, 0, 0, 0, 0, 0, 0, index].into(),
        }
    }

    /// The site, for pods named as the ends are.
    pub(crate) fn site(&self, view: &View) -> Site {
        let attachment = |key: &PodKey| {
            let name = key.to_string();
            let index = self.ends.iter().position(|end| end.name == name)?;
            let bridge = (self.network == Network::Bridged).then(|| BRIDGE.to_owned());
            Some((key.clone(), Attachment { interface: interface(index), bridge }))
        };
        Site {
            attachments: view.pods.keys().filter_map(attachment).collect(),
            bridge_filter: true,
            ..Site::default()
        }
    }

    /// An enforcer for the tables of the node's namespace.
    pub(crate) fn enforce(&self, state: &mut (Renderer, Enforcer), view: &View) {
        self.replace(state, view, &BTreeSet::new());
    }

    /// The same, where pods have departed from addresses.
    pub(crate) fn replace(
        &self,
        state: &mut (Renderer, Enforcer),
        view: &View,
        departed: &BTreeSet<IpAddr>,
    ) {
        let ruleset = state.0.render(view, &self.site(view));
        let result = self.node.enter(|| state.1.replace(ruleset.clone(), view, departed));
        result.unwrap_or_else(|error| panic!("{error}\n{}", ruleset.whole("t")));
    }

    /// The questions whose packet arrived. One that is lost on its way is sent again where it was
    /// `expected`.
    pub(crate) fn ask(
        &mut self,
        questions: &[Question],
        expected: impl Fn(&Question) -> bool,
    ) -> BTreeSet<Question> {
        let mut arrived = self.send(questions);
        let again = questions.iter().filter(|it| expected(it) && !arrived.contains(it));
        let again: Vec<Question> = again.copied().collect();
        if !again.is_empty() {
            arrived.extend(self.send(&again));
        }
        arrived
    }

    /// Returns whether a packet that one end sends reaches another.
    pub(crate) fn arrives(&self, from: &str, to: &str, packet: &Packet) -> bool {
        self.received(to);
        self.send_frame(from, to, packet);
        within_transit(|| self.has_arrived(to, packet))
    }

    /// Returns whether a packet is among those that an end has received and not read.
    pub(crate) fn has_arrived(&self, to: &str, packet: &Packet) -> bool {
        // The hop is counted in the header, and in its checksum.
        let same = |packet: &[u8]| match packet.first().map(|byte| byte >> 4) {
            Some(4) => packet[12..].to_vec(),
            _ => packet[8..].to_vec(),
        };
        let sent = same(&packet.internet_packet());
        self.received(to).iter().any(|packet| same(packet).starts_with(&sent))
    }

    /// Returns whether a frame that one end sends reaches another as it is.
    pub(crate) fn hears(&self, from: &str, to: &str, frame: &[u8]) -> bool {
        let frames = || std::iter::from_fn(|| self.end(to).receiver.receive().unwrap());
        frames().for_each(drop);
        self.end(from).sender.send(frame).unwrap();
        within_transit(|| frames().any(|received| received == frame))
    }

    /// The Ethernet address of an end.
    pub(crate) fn mac(&self, name: &str) -> Mac {
        self.end(name).mac
    }

    /// Sends a packet from one end, for another.
    pub(crate) fn send_frame(&self, from: &str, to: &str, packet: &Packet) {
        let (sender, receiver) = (self.end(from), self.end(to));
        let to = match self.network {
            Network::Routed => SWITCH_MAC,
            Network::Bridged => receiver.mac,
        };
        sender.sender.send(&packet.clone().from_mac(sender.mac).to_mac(to).build()).unwrap();
    }

    /// The IP packets that an end received since this was last called.
    pub(crate) fn received(&self, name: &str) -> Vec<Vec<u8>> {
        let next = || self.end(name).receiver.receive().unwrap();
        std::iter::from_fn(next)
            .map(|frame| frame[14..].to_vec())
            .filter(|it| it.len() >= 20)
            .collect()
    }

    fn end(&self, name: &str) -> &End {
        self.ends.iter().find(|end| end.name == name).unwrap()
    }

    fn send(&mut self, questions: &[Question]) -> BTreeSet<Question> {
        let mut marks: BTreeMap<(u8, u16), Question> = BTreeMap::new();
        self.ends.iter().for_each(|end| while end.receiver.receive().unwrap().is_some() {});
        for question in questions {
            self.next = if self.next == u16::MAX { 1024 } else { self.next + 1 };
            let mut sent = *question;
            if self.services && matches!(question.protocol, TCP | UDP) {
                sent.to = self.service(question.to);
                sent.port += SERVICE_PORT;
            }
            let packet = packet(&sent, self.next);
            let end = &self.ends[self.at[&question.from]];
            let to = match self.network {
                Network::Routed => SWITCH_MAC,
                Network::Bridged => self.ends[self.at[&question.to]].mac,
            };
            end.sender.send(&packet.from_mac(end.mac).to_mac(to).build()).unwrap();
            marks.insert((protocol_of(question), self.next), *question);
        }
        testkit::transit(TRANSIT);
        let mut arrived = BTreeSet::new();
        for (index, end) in self.ends.iter().enumerate() {
            while let Some(frame) = end.receiver.receive().unwrap() {
                let Some(mark) = mark(&frame) else { continue };
                let Some(question) = marks.get(&mark) else { continue };
                // A bridge floods what it has not learnt; others than the receiver pass it by.
                if self.at[&question.to] == index {
                    arrived.insert(*question);
                }
            }
        }
        arrived
    }
}

/// Waits until conntrack has forgotten the connections of TCP in a namespace where it does after a second.
pub(crate) fn until_forgotten(node: &Namespace) {
    std::thread::sleep(Duration::from_secs(1));
    testkit::eventually("the end of conntrack's entries", || {
        let entries = node.exec(["cat", "/proc/net/nf_conntrack"]);
        (!entries.contains("tcp")).then_some(())
    });
}

/// Returns whether something happens while a packet may be under way.
fn within_transit(mut happens: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + LATE;
    while Instant::now() < end {
        if happens() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    testkit::transit(Duration::ZERO);
    happens()
}

fn interface(index: usize) -> String {
    format!("veth{index}")
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn protocol_of(question: &Question) -> u8 {
    match (question.protocol, question.from.is_ipv6()) {
        (ICMP, true) => 58,
        (protocol, _) => protocol,
    }
}

fn packet(question: &Question, mark: u16) -> Packet {
    let end = |address: IpAddr, port: u16| std::net::SocketAddr::new(address, port).to_string();
    let (from, to) = (end(question.from, mark), end(question.to, question.port));
    match question.protocol {
        TCP => tcp(&from, &to).syn(),
        UDP => udp(&from, &to),
        // An INIT with its tag, window, streams and sequence number.
        SCTP => sctp(&from, &to, 1).payload(&[0, 0, 0, 1, 0, 0, 16, 0, 0, 1, 0, 1, 0, 0, 0, 1]),
        ICMP => ping(&question.from.to_string(), &question.to.to_string(), mark, 1),
        other => icmp(&question.from.to_string(), &question.to.to_string(), other, 0),
    }
}

/// Protocol, and source port or echo identifier.
fn mark(frame: &[u8]) -> Option<(u8, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (protocol, header) = match word(12)? {
        0x0800 => (*frame.get(23)?, 34),
        0x86dd => (*frame.get(20)?, 54),
        _ => return None,
    };
    Some((protocol, word(header + if matches!(protocol, 1 | 58) { 4 } else { 0 })?))
}
