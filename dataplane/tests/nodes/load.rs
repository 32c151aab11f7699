//! The load of pods of a busy node, packet by packet: DNS questions and TCP connections of one request, each from a
//! fresh port.
//!
//! Pod 0 asks much more than the others. Everything is sent to one pod that has the answers. Time is counted in
//! ticks: of [`Load::TICKS`] ticks a second each other pod asks a question and opens a connection twenty times, pod 0
//! does one of both twenty times or five times a tick. The next packet of a connection is sent once the last one has
//! arrived, at the next tick; nothing is sent twice, so that what the way between the pods drops is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use acl::{Action, Address, Rule, Table};
use dataplane::wire::{checksum, protocol};
use dataplane::{AclBinding, PortKind, PortState};
use testkit::packet::{Packet, tcp, udp};

/// The load of pod 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// 20,000 DNS questions a second.
    Questions,
    /// 5,000 TCP connections a second.
    Connections,
}

/// Questions or connections of some pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) asked: u64,
    /// Those whose last packet arrived.
    pub(crate) answered: u64,
}

impl Count {
    /// Those of which a packet was lost, once no packet is on its way.
    pub(crate) fn lost(self) -> u64 {
        self.asked - self.answered
    }
}

/// Addresses of the pod that answers: with each port of a client, more connections than end within two minutes.
const SERVERS: u32 = 16;
const SERVER: u32 = 0x0a01_8000;
const CLIENT_PORTS: u32 = 60_000;
/// Ticks between two questions of one of the other pods.
const EVERY: u64 = 50;
/// Connections that are known; an older one has ended or is lost.
const KNOWN: usize = 1 << 18;
/// Bytes of the sequence space that a connection may take.
const SPACE: u32 = 16;

/// A question or connection under way.
#[derive(Clone, Copy, Default)]
struct Flow {
    number: u32,
    pod: u16,
    /// The how many-th of its pod and kind.
    nth: u32,
    is_tcp: bool,
    /// Packets that have arrived.
    step: u8,
}

/// A packet to send.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    flow: Flow,
    /// The client, or `None` for the pod that answers.
    pub(crate) from: Option<u16>,
}

/// The pods, and what they have under way.
pub(crate) struct Load {
    flood: Flood,
    pods: u16,
    questions: Vec<Vec<u8>>,
    segments: Vec<Vec<u8>>,
    flows: Vec<Flow>,
    numbers: u32,
    /// By pod: questions, connections.
    begun: Vec<[u32; 2]>,
    pub(crate) due: VecDeque<Due>,
    /// Packets of pod 0.
    pub(crate) one: Count,
    /// Packets of the others: questions, connections.
    pub(crate) others: [Count; 2],
}

impl Load {
    /// Ticks of a second.
    pub(crate) const TICKS: u64 = 1000;

    pub(crate) fn new(flood: Flood, pods: u16) -> Self {
        let (client, server) = ("10.1.0.2:1", "10.1.128.0:80");
        let segment = |from, to, sequence: u32, acknowledged: u32, bytes: &[u8]| {
            tcp(from, to).data(bytes).tcp_header(|tcp| {
                tcp.psh = !bytes.is_empty();
                (tcp.sequence_number, tcp.acknowledgment_number) = (sequence, acknowledged);
            })
        };
        let ask =
            |sequence, acknowledged, bytes| segment(client, server, sequence, acknowledged, bytes);
        let answer =
            |sequence, acknowledged, bytes| segment(server, client, sequence, acknowledged, bytes);
        let segments = [
            tcp(client, server).syn().tcp_header(|tcp| tcp.sequence_number = 0),
            answer(0, 1, b"").syn(),
            ask(1, 1, b""),
            ask(1, 1, b"GET!"),
            answer(1, 5, b"here"),
            ask(5, 5, b"").fin(),
            answer(5, 6, b"").fin(),
            ask(6, 6, b""),
        ];
        let resolver = "10.1.128.0:53";
        let questions =
            [udp(client, resolver), udp(resolver, client)].map(|it| it.payload(&[0; 32]));
        let built = |packets: &[Packet]| packets.iter().map(Packet::build).collect();
        Self {
            flood,
            pods,
            questions: built(&questions),
            segments: built(&segments),
            flows: vec![Flow::default(); KNOWN],
            numbers: 0,
            begun: vec![[0; 2]; pods.into()],
            due: VecDeque::new(),
            one: Count::default(),
            others: [Count::default(); 2],
        }
    }

    /// The pods' ports, with the one that answers behind them. A packet towards a client passes as a reply alone.
    pub(crate) fn ports(pods: u16) -> Vec<Option<PortState>> {
        let none = vec![Rule::new(Action::Deny, "none")].into();
        let closed = AclBinding::Table(Arc::new(Table::compile(none, &Arc::default())));
        let port = |name: String, addresses: Vec<u32>, to_pod: &AclBinding| {
            Some(PortState {
                addresses: addresses.into_iter().map(Address::from_v4_bits).collect(),
                to_pod: to_pod.clone(),
                from_pod: AclBinding::Open,
                ..PortState::new(name, PortKind::Pod)
            })
        };
        let clients = (0..pods).map(|n| port(format!("default/pod{n}"), vec![client(n)], &closed));
        let servers = (0..SERVERS).map(|n| SERVER + n).collect();
        clients.chain([port("default/server".to_owned(), servers, &AclBinding::Open)]).collect()
    }

    /// Begins the questions and connections of this tick.
    pub(crate) fn begin(&mut self, tick: u64) {
        for _ in 0..if self.flood == Flood::Questions { 20 } else { 5 } {
            self.ask(0, self.flood == Flood::Connections);
        }
        for pod in 1..self.pods {
            match (tick + u64::from(pod)) % EVERY {
                0 => self.ask(pod, false),
                25 => self.ask(pod, true),
                _ => {}
            }
        }
    }

    fn ask(&mut self, pod: u16, is_tcp: bool) {
        let begun = &mut self.begun[usize::from(pod)][usize::from(is_tcp)];
        let flow = Flow { number: self.numbers, pod, nth: *begun, is_tcp, step: 0 };
        *begun += 1;
        self.numbers += 1;
        self.flows[flow.number as usize % KNOWN] = flow;
        self.count(&flow).asked += 1;
        self.due.push_back(Due { flow, from: Some(pod) });
    }

    fn count(&mut self, flow: &Flow) -> &mut Count {
        if flow.pod == 0 { &mut self.one } else { &mut self.others[usize::from(flow.is_tcp)] }
    }

    /// Takes a frame that has arrived, and has what follows it sent.
    pub(crate) fn arrived(&mut self, frame: &[u8]) {
        let field = |at: usize| frame.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let (number, steps) = match frame.get(23) {
            Some(&protocol::TCP) => (field(38).map(|it| u32::from_be_bytes(it) / SPACE), 8),
            Some(&protocol::UDP) => (field(42).map(u32::from_be_bytes), 2),
            _ => return,
        };
        let Some(number) = number else { return };
        let flow = &mut self.flows[number as usize % KNOWN];
        if flow.number != number || flow.step == steps {
            return;
        }
        flow.step += 1;
        let flow = *flow;
        if flow.step == steps {
            self.count(&flow).answered += 1;
        } else {
            let from = if flow.is_initiators() { Some(flow.pod) } else { None };
            self.due.push_back(Due { flow, from });
        }
    }

    /// The frame of a packet, with right checksums (or none, in UDP).
    pub(crate) fn frame(&self, due: &Due) -> Vec<u8> {
        let flow = &due.flow;
        let templates = if flow.is_tcp { &self.segments } else { &self.questions };
        let mut frame = templates[usize::from(flow.step)].clone();
        let client = (client(flow.pod), 1024 + (flow.nth % CLIENT_PORTS) as u16);
        let server =
            (SERVER + flow.nth / CLIENT_PORTS % SERVERS, if flow.is_tcp { 80 } else { 53 });
        let (from, to) = if due.from.is_some() { (client, server) } else { (server, client) };
        frame[24..26].fill(0);
        frame[26..30].copy_from_slice(&from.0.to_be_bytes());
        frame[30..34].copy_from_slice(&to.0.to_be_bytes());
        frame[34..36].copy_from_slice(&from.1.to_be_bytes());
        frame[36..38].copy_from_slice(&to.1.to_be_bytes());
        let sum = !checksum::fold(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        if !flow.is_tcp {
            frame[40..42].fill(0);
            frame[42..46].copy_from_slice(&flow.number.to_be_bytes());
            return frame;
        }
        // Sequence and acknowledgement numbers: the template's from the connection's own place on.
        for at in [38, 42] {
            let field: [u8; 4] = frame[at..at + 4].try_into().expect("four bytes");
            let number = u32::from_be_bytes(field).wrapping_add(flow.number.wrapping_mul(SPACE));
            frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        frame[50..52].fill(0);
        let pseudo = checksum::pseudo(&frame[26..34], protocol::TCP, frame.len() - 34);
        let sum = !checksum::fold(pseudo + checksum::sum(&frame[34..]));
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        frame
    }
}

fn client(pod: u16) -> u32 {
    0x0a01_0002 + u32::from(pod)
}

impl Flow {
    /// Whether its next packet is the client's.
    fn is_initiators(&self) -> bool {
        match self.is_tcp {
            true => !matches!(self.step, 1 | 4 | 6),
            false => self.step == 0,
        }
    }
}
