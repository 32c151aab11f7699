//! Tries the loaded programs on frames with unfinished checksums.
//!
//! What a kernel makes of such a frame, and what programs can learn of it, depends on more than its version. So the
//! programs forward frames between interfaces of their own, before any pod's: an ordinary frame has to leave as the
//! graph would send it, and one whose checksum the kernel would write over what was looked at must not leave.

use std::io;
use std::time::{Duration, Instant};

use dataplane::wire::checksum::decrement_ttl;
use dataplane::wire::{Headers, Mac, parse, partial_checksum};
use etherparse::PacketBuilder;
use linux_net::{
    MacAddress, Namespace, Netlink, PacketSocket, UnfinishedChecksum, VethEnd, VethPair,
    switch_off_offloads,
};

use crate::ingress::Ingress;
use crate::layout::{FlowEntry, FlowKey};
use crate::{Error, Kernel};

/// Time within which a frame crosses two veth pairs, on a busy machine too.
const TRANSIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a frame is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(100);

/// Until the end of time, on the monotonic clock.
const ALWAYS: Duration = Duration::from_secs(1 << 32);

const POD: Mac = [2, 0, 0, 0, 0, 1];
const SWITCH: Mac = [2, 0, 0, 0, 0, 2];
const NEXT_HOP: Mac = [2, 0, 0, 0, 0, 3];
/// Offset of the checksum in a UDP header.
const UDP_FIELD: u16 = 6;

impl Kernel {
    /// Forwards frames with unfinished checksums, in a network namespace of their own, and compares what leaves with
    /// what the graph would send. To be called before the first heartbeat.
    ///
    /// # Errors
    /// If a frame leaves that must not, one that must does not or is another one, or a step fails; a network
    /// namespace needs CAP_SYS_ADMIN.
    pub fn self_test(&self) -> Result<(), Error> {
        let namespace = Namespace::create().map_err(failed)?;
        self.beat(ALWAYS)?;
        let tested = namespace.run(|| Rig::new(self)?.test_and_close()).map_err(failed)?;
        self.clear_counters();
        self.beat(Duration::ZERO)?;
        tested
    }
}

/// Two veth pairs: the far end of the first is a pod's interface, the near end of the second the uplink.
struct Rig<'a> {
    kernel: &'a Kernel,
    pod: PacketSocket,
    wire: PacketSocket,
    from_pod: u32,
    uplink: u32,
    netlink: Netlink,
    _ingress: Ingress,
}

impl<'a> Rig<'a> {
    fn new(kernel: &'a Kernel) -> Result<Self, Error> {
        let mut netlink = Netlink::open().map_err(failed)?;
        let [pod, from_pod] = pair(&mut netlink, ["pod", "from-pod"]).map_err(failed)?;
        let [uplink, wire] = pair(&mut netlink, ["uplink", "wire"]).map_err(failed)?;
        switch_off_offloads("uplink").map_err(failed)?;
        let ingress = Ingress::open()?;
        ingress.attach(kernel.from_pod, "from_pod", from_pod)?;
        let open = |ifindex| PacketSocket::open(ifindex).map_err(failed);
        let (pod, wire) = (open(pod)?, open(wire)?);
        Ok(Self { kernel, pod, wire, from_pod, uplink, netlink, _ingress: ingress })
    }

    /// Tests the programs, and deletes the interfaces: none of them runs there afterwards.
    fn test_and_close(mut self) -> Result<(), Error> {
        let tested = self.test();
        for index in [self.from_pod, self.uplink] {
            self.netlink.delete_link(index).map_err(failed)?;
        }
        tested
    }

    fn test(&self) -> Result<(), Error> {
        let ethernet = || PacketBuilder::ethernet2(POD, SWITCH);
        let v4 = ethernet().ipv4([10, 0, 0, 1], [192, 0, 2, 1], 64).udp(1000, 53);
        let v6 = ethernet().ipv6([0xfd; 16], [0xfe; 16], 64).udp(1000, 53);
        for builder in [v4, v6] {
            let mut frame = Vec::new();
            builder.write(&mut frame, &[7; 64]).expect("a vector takes it");
            self.test_datagram(frame)?;
        }
        Ok(())
    }

    fn test_datagram(&self, mut frame: Vec<u8>) -> Result<(), Error> {
        let headers = parse(&frame).expect("a whole packet");
        partial_checksum::renew_pseudo(&mut frame, &headers);
        let key = FlowKey::new(self.from_pod, &headers.flow);
        let entry = FlowEntry {
            egress: self.uplink,
            on_wire: 1,
            ingress_mac: POD,
            destination_mac: NEXT_HOP,
            source_mac: SWITCH,
            ..FlowEntry::default()
        };
        self.kernel.put_flows(&[key], &[entry]);
        let start = headers.l4;
        let end = Instant::now() + TRANSIT_TIMEOUT;
        // The kernel may drop what is sent in an interface's first moments.
        let left = loop {
            // The first field is that of the destination's port. Both frames take one way, in order.
            for field in [2, UDP_FIELD] {
                self.pod.send(&frame, UnfinishedChecksum { start, field }).map_err(failed)?;
            }
            let left = self.next_datagram(&frame[12..14])?;
            if left.is_some() || Instant::now() > end {
                break left;
            }
        };
        self.kernel.remove_flow(&key)?;
        match left {
            Some(left) if left == forwarded(frame, &headers) => Ok(()),
            Some(_) => Err(failed("a datagram with an unfinished checksum leaves as it must not")),
            None => Err(failed("no datagram with an unfinished checksum leaves within 10 s")),
        }
    }

    /// The next frame of an ethertype that left for the next hop, if one does soon.
    fn next_datagram(&self, ethertype: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let end = Instant::now() + RESEND_INTERVAL;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let frame = self.wire.receive(left).map_err(failed)?;
            // The kernel looks for neighbours by itself, and late frames of the other family may come.
            let is_wanted = |it: &Vec<u8>| it.starts_with(&NEXT_HOP) && it[12..14] == *ethertype;
            if frame.as_ref().is_none_or(is_wanted) {
                return Ok(frame);
            }
        }
    }
}

/// A datagram as the graph sends it on.
fn forwarded(mut frame: Vec<u8>, headers: &Headers) -> Vec<u8> {
    frame[..6].copy_from_slice(&NEXT_HOP);
    frame[6..12].copy_from_slice(&SWITCH);
    decrement_ttl(&mut frame, headers);
    partial_checksum::complete(&mut frame, headers);
    frame
}

/// Creates a veth pair whose ends are up; returns their indices. The near end, which sends, is the second one up: an
/// interface that waits for its carrier drops frames for up to a second after it.
fn pair(netlink: &mut Netlink, names: [&str; 2]) -> Result<[u32; 2], linux_net::Error> {
    let [near, far] = names.map(|name| VethEnd {
        name: name.to_owned(),
        mac: MacAddress(if name == "from-pod" { SWITCH } else { POD }),
    });
    netlink.create_veth(&VethPair { near, far, far_namespace: None, mtu: 1500 })?;
    let mut indices = [0; 2];
    for (index, name) in indices.iter_mut().zip(names).rev() {
        *index = netlink.link(name)?.index;
        netlink.set_up(*index)?;
    }
    Ok(indices)
}

fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new("test the programs of flow offload", io::Error::other(cause))
}
