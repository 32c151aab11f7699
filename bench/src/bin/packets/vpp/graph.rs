//! VPP's graph between two ports of its packet generator.
//!
//! ```text
//!   pg-input, packets of a capture in a row ── ethernet-input ── ip4-input
//!     ── ip4-lookup ── ip4-rewrite ── acl-plugin-out-ip4-fa: sessions of the second port ── (interface-output, pg1-output, pg1-tx)
//! ```
//!
//! The nodes in brackets and the generator are left out of the clocks, and so are those that free what was refused.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use acl::Address;
use dataplane::wire::Mac;
use linux_net::MacAddress;

use super::{PATIENCE, Result, Vpp};
use bench::Samples;

/// The packets that VPP's graph forwards or refuses.
pub(crate) struct Case<'a> {
    /// Packets, sent over and over in this order.
    pub(crate) packets: Vec<Vec<u8>>,
    /// The servers behind the second port.
    pub(crate) servers: Vec<(Address, Mac)>,
    /// Rules of the second port.
    pub(crate) acl: &'a str,
    /// Sessions that there is room for.
    pub(crate) sessions: u32,
    /// The counter of the ACL plugin that each packet increments.
    pub(crate) outcome: &'a str,
}

/// A VPP that has forwarded or refused all packets of a case once.
pub(crate) struct Graph {
    vpp: Vpp,
    outcome: String,
}

/// Beginnings of the names of nodes that count.
pub(crate) const NODES: [&str; 5] =
    ["ethernet-input", "ip4-input", "ip4-lookup", "ip4-rewrite", "acl-plugin"];
/// Duration of a count of packets, and counts in a round.
const STRETCH: Duration = Duration::from_millis(20);
const STRETCHES: usize = 10;

impl Graph {
    /// Starts VPP and sends each packet once.
    pub(crate) fn new(program: &Path, case: &Case<'_>) -> Result<Self> {
        let buckets = |count: usize| count.next_power_of_two().max(1 << 16);
        // Tuple merge, its default, puts all rules of one source into one chain: 1,000 rules of ports then
        // cost thousands of clocks a packet.
        let more = format!(
            "acl-plugin {{ use tuple merge 0 hash lookup hash buckets {} \
             connection hash buckets {} connection count max {} }}",
            buckets(case.acl.matches(',').count()),
            buckets(case.sessions as usize),
            2 * case.sessions
        );
        let acl_mb = (case.acl.len() as u64 * 20) >> 20;
        let packets_mb = (case.packets.len() as u64 * 200) >> 20;
        let heap_mb = 256 + u64::from(case.sessions) / 1000 + acl_mb + packets_mb;
        let mut vpp = Vpp::start(program, heap_mb, &more)?;
        let capture = vpp.folder.path().join("packets.pcap");
        fs::write(&capture, pcap(&case.packets))?;
        vpp.ask("create packet-generator interface pg0")?;
        vpp.ask("create packet-generator interface pg1")?;
        let own = *case.packets[0].first_chunk().ok_or("a packet without an Ethernet header")?;
        vpp.tell(&format!(
            "set interface mac address pg0 {}
             set interface ip address pg0 192.0.2.1/24
             set interface ip address pg1 10.1.0.1/16
             set interface state pg0 up
             set interface state pg1 up",
            MacAddress(own)
        ))?;
        for (address, mac) in &case.servers {
            let (address, mac) = (address.to_ip(), MacAddress(*mac));
            vpp.tell(&format!("set ip neighbor pg1 {address} {mac} static"))?;
        }
        vpp.add_acl(case.acl)?;
        let number = case.packets.len();
        vpp.tell(&format!(
            "set acl-plugin interface pg1 output acl 0
             packet-generator new {{ name all pcap {} interface pg0 limit {number} }}",
            capture.display(),
        ))?;
        let mut graph = Self { vpp, outcome: case.outcome.to_owned() };
        graph.send()?;
        graph.vpp.tell("packet-generator configure all limit 1000000000000")?;
        Ok(graph)
    }

    /// Whether its memory is in huge pages.
    pub(crate) fn in_huge_pages(&self) -> bool {
        self.vpp.in_huge_pages
    }

    /// Clocks a packet, and those of the nodes in [`NODES`]. The generator works all the time, so that caches are
    /// as warm as they get; the median of some stretches leaves out those that the operating system
    /// interrupted.
    pub(crate) fn measure(&mut self) -> Result<[f64; NODES.len() + 1]> {
        self.vpp.tell("clear node counters\npacket-generator enable-stream all")?;
        thread::sleep(STRETCH);
        let stretches: Vec<_> = (0..STRETCHES).map(|_| self.stretch()).collect::<Result<_>>()?;
        self.vpp.tell("packet-generator disable-stream all")?;
        let counters = self.vpp.ask("show node counters")?;
        let counted = |what: &str| -> Option<u64> {
            let line = counters.lines().find(|line| line.contains(what))?;
            line.split_whitespace().next()?.parse().ok()
        };
        if counted(&self.outcome).is_none() || counted(&self.outcome) != counted("checked packets")
        {
            return Err(format!("VPP: not all are {}:\n{counters}", self.outcome).into());
        }
        let median = |of: &dyn Fn(&[f64; NODES.len()]) -> f64| {
            stretches.iter().map(of).collect::<Samples>().median()
        };
        Ok(std::array::from_fn(|n| match n.checked_sub(1) {
            None => median(&|nodes| nodes.iter().sum()),
            Some(node) => median(&|nodes| nodes[node]),
        }))
    }

    /// Clocks of the nodes that count during a moment, for each packet.
    fn stretch(&mut self) -> Result<[f64; NODES.len()]> {
        self.vpp.tell("clear runtime")?;
        thread::sleep(STRETCH);
        let runtime = self.vpp.ask("show runtime")?;
        let (mut clocks, mut packets) = ([0.0; NODES.len()], 0.0);
        for line in runtime.lines() {
            let Some(node) = NODES.iter().position(|node| line.trim_start().starts_with(node))
            else {
                continue;
            };
            // Name, state (a word or two), calls, vectors, suspends, clocks, vectors a call.
            let words: Vec<&str> = line.split_whitespace().collect();
            let from_end = |place: usize| -> Result<f64> {
                let word = words.len().checked_sub(place).map_or("", |at| words[at]);
                word.parse().map_err(|_| format!("VPP's runtime: {line}").into())
            };
            let vectors = from_end(4)?;
            packets = if node == 0 { vectors } else { packets };
            clocks[node] += from_end(2)? * vectors;
        }
        if packets == 0.0 {
            return Err(format!("VPP forwarded nothing:\n{runtime}").into());
        }
        Ok(clocks.map(|clocks| clocks / packets))
    }

    /// Sends each packet once.
    fn send(&mut self) -> Result<()> {
        self.vpp.tell("packet-generator enable-stream all")?;
        let end = Instant::now() + PATIENCE;
        while self.vpp.ask("show packet-generator")?.contains("Yes") {
            if Instant::now() > end {
                return Err("VPP's packet generator does not end".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// A capture of Ethernet packets in the format that VPP reads (pcap; the switch writes pcapng).
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    // Version 2.4, no time zone, no accuracy, no limit to speak of, Ethernet.
    let mut file = words(&[0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1]);
    for packet in packets {
        let length = packet.len() as u32;
        file.extend(words(&[0, 0, length, length]));
        file.extend_from_slice(packet);
    }
    file
}
