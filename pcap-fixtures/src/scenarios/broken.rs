//! Frames that are wrong, layer by layer.

use testkit::packet::{SWITCH_MAC, cut, icmp, mac_of, other, patch, patch_ipv4, ping, tcp, udp};

use crate::Scenario;

/// Whatever is wrong has a name, and nothing wrong passes.
pub(super) fn malformed() -> Scenario {
    let pod = "default/a";
    let syn = || tcp("10.1.1.110:40000", "10.1.1.111:80").syn();
    let syn6 = || tcp("[fd00:1:1::6e]:40000", "[fd00:1:1::6f]:80").syn();
    let mut s = Scenario::new(
        "malformed",
        "node1",
        "frames cut at every layer, bad lengths, checksums, flags and addresses are dropped by name",
    );
    // Cut at every layer.
    s.from(pod, Vec::new()).dropped("truncated");
    s.from(pod, cut(syn(), 5)).dropped("truncated");
    s.from(pod, cut(syn(), 13)).dropped("truncated");
    s.from(pod, cut(syn(), 14)).dropped("truncated");
    s.from(pod, cut(syn(), 14 + 19)).dropped("truncated");
    s.from(pod, cut(syn(), 14 + 20)).dropped("truncated");
    s.from(pod, cut(syn(), 14 + 20 + 19)).dropped("truncated");
    s.from(pod, cut(syn6(), 14 + 39)).dropped("truncated");
    s.from(pod, cut(syn6().extension(0, &[]), 14 + 40 + 4)).dropped("truncated");
    s.from(pod, cut(syn6(), 14 + 40 + 10)).dropped("truncated");
    // Captured whole on the wire, but cut by the snap length, within the headers.
    s.from(pod, syn().data(&[1; 100])).dropped("no-session");
    s.from(pod, syn().payload(&[1; 100])).snapped(40).dropped("truncated");

    // Lengths that contradict each other.
    s.from(pod, patch_ipv4(syn(), 14, &[0x44])).dropped("malformed-ip"); // header of 16 bytes
    s.from(pod, patch_ipv4(syn(), 14, &[0x55])).dropped("malformed-ip"); // version 5
    s.from(pod, patch_ipv4(syn(), 16, &[0, 19])).dropped("malformed-ip"); // shorter than its header
    s.from(pod, patch_ipv4(syn(), 16, &[1, 0])).dropped("truncated"); // longer than the frame
    s.from(pod, patch(syn6(), 14, &[0x40])).dropped("malformed-ip"); // IPv6 that says it is IPv4
    s.from(pod, patch(syn6(), 18, &[1, 0])).dropped("truncated"); // longer than the frame
    s.from(pod, patch(syn(), 14 + 20 + 12, &[0x40])).dropped("malformed-transport"); // TCP header of 16 bytes
    s.from(pod, patch(syn(), 14 + 20 + 12, &[0xf0])).dropped("malformed-transport"); // and of 60
    let datagram = || udp("10.1.1.110:1", "10.1.1.111:2").payload(&[1; 8]);
    s.from(pod, patch(datagram(), 14 + 20 + 4, &[0, 7])).dropped("malformed-transport"); // shorter than its header
    s.from(pod, patch(datagram(), 14 + 20 + 4, &[0, 99])).dropped("malformed-transport"); // longer than the packet
    s.from(pod, icmp("10.1.1.110", "10.1.1.111", 8, 0)).allowed("default/b", &["default-allow"]);
    s.from(pod, other("10.1.1.110", "10.1.1.111", 1).payload(&[8, 0]))
        .dropped("malformed-transport");

    // The header checksum.
    s.from(pod, patch(syn(), 24, &[0xde, 0xad])).dropped("bad-checksum");
    s.from(pod, patch(syn(), 22, &[63])).dropped("bad-checksum");

    // Flags that no connection has.
    s.from(pod, syn().fin()).dropped("malformed-transport");
    s.from(pod, syn().rst()).dropped("malformed-transport");
    s.from(pod, tcp("10.1.1.110:40000", "10.1.1.111:80")).dropped("malformed-transport");
    // Flags that open none.
    s.from(pod, tcp("10.1.1.110:40000", "10.1.1.111:80").ack()).dropped("no-session");
    s.from(pod, syn().ack()).dropped("no-session");
    s.from(pod, tcp("10.1.1.110:40000", "10.1.1.111:80").rst()).dropped("no-session");

    // Addresses that cannot be: LAND, loopback, mapped, unspecified, multicast as a source.
    s.from(pod, tcp("10.1.1.110:80", "10.1.1.110:80").syn()).dropped("martian");
    let own = mac_of([10, 1, 1, 110].into());
    for source in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        s.from(pod, tcp(&format!("{source}:1"), "10.1.1.111:80").syn().from_mac(own))
            .dropped("martian");
    }
    for source in ["::1", "::", "ff02::1", "::ffff:10.1.1.112"] {
        s.from(pod, tcp(&format!("[{source}]:1"), "[fd00:1:1::6f]:80").syn().from_mac(own))
            .dropped("martian");
    }
    s.from(pod, ping("10.1.1.110", "127.0.0.1", 1, 1)).dropped("martian");
    s.from(pod, tcp("[fd00:1:1::6e]:1", "[::ffff:10.1.1.111]:80").syn()).dropped("martian");

    // Not IP at all: LLDP, an 802.3 length, nothing but a header.
    let frame = |kind: [u8; 2]| [&SWITCH_MAC[..], &own, &kind, &[0; 46]].concat();
    s.from(pod, frame([0x88, 0xcc])).dropped("unknown-ethertype");
    s.from(pod, frame([0x00, 0x2e])).dropped("unknown-ethertype");
    // Groups are not served.
    s.from(pod, udp("10.1.1.110:5353", "224.0.0.251:5353")).dropped("multicast");
    s.from(pod, udp("10.1.1.110:68", "255.255.255.255:67")).dropped("multicast");
    s.from(pod, udp("[fd00:1:1::6e]:5353", "[ff02::fb]:5353")).dropped("multicast");
    // The TTL is exhausted.
    s.from(pod, syn().ttl(1)).dropped("ttl-expired");
    s.from(pod, syn().ttl(0)).dropped("ttl-expired");
    s.from(pod, syn6().ttl(1)).dropped("ttl-expired");
    // And after all this, a good one.
    s.from(pod, tcp("10.1.1.110:40001", "10.1.1.111:80").syn())
        .allowed("default/b", &["default-allow"]);
    s
}
