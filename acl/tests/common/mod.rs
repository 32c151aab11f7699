//! Generators: rules, sets and keys drawn from small worlds, so that they meet often.

use acl::{
    Action, Address, AddressMap, AddressMapBuilder, Block, End, Key, PeerSetId, PortRange, Rule,
    TcpFlags,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::collection::vec;
use proptest::prelude::*;

/// Addresses of few values in each byte that prefixes of all lengths tell apart.
pub(crate) fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        any::<[bool; 6]>().prop_map(|bits| Address::from_v4_bits(v4_bits(bits))),
        any::<[bool; 6]>().prop_map(|bits| Address::from_bits(v6_bits(bits))),
    ]
}

fn v4_bits(b: [bool; 6]) -> u32 {
    let bit = |at: usize, place: u32| u32::from(b[at]) << place;
    0x0a00_0000 | bit(0, 26) | bit(1, 20) | bit(2, 15) | bit(3, 9) | bit(4, 5) | bit(5, 0)
}

fn v6_bits(b: [bool; 6]) -> u128 {
    let bit = |at: usize, place: u32| u128::from(b[at]) << place;
    0xfd00 << 112 | bit(0, 115) | bit(1, 90) | bit(2, 66) | bit(3, 62) | bit(4, 17) | bit(5, 0)
}

/// Networks of any length around such addresses, both families; some with host bits.
pub(crate) fn net() -> impl Strategy<Value = IpNet> {
    (any::<[bool; 6]>(), any::<bool>(), 0_u8..=32, 0_u8..=128).prop_map(|(bits, v4, l4, l6)| {
        if v4 {
            IpNet::V4(Ipv4Net::new(v4_bits(bits).into(), l4).unwrap())
        } else {
            IpNet::V6(Ipv6Net::new(v6_bits(bits).into(), l6).unwrap())
        }
    })
}

/// Blocks with exceptions, inside them or not.
pub(crate) fn block() -> impl Strategy<Value = Block> {
    (net(), vec(net(), 0..3)).prop_map(|(net, except)| Block { net, except })
}

/// Blocks of a few peer sets.
pub(crate) fn sets() -> impl Strategy<Value = Vec<(PeerSetId, Block)>> {
    vec(((0_u32..6).prop_map(PeerSetId), block()), 0..20)
}

pub(crate) fn map(blocks: &[(PeerSetId, Block)]) -> AddressMap {
    let mut builder = AddressMapBuilder::default();
    for (set, block) in blocks {
        builder.add(*set, [block.clone()]);
    }
    builder.build()
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        1 => Just(End::Any),
        // Set 6 is always empty.
        2 => (0_u32..7).prop_map(|set| End::Set(PeerSetId(set))),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![0_u16..4, Just(80), Just(255), Just(256), Just(65535)]
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        2 => Just(PortRange::ANY),
        2 => port().prop_map(PortRange::one),
        1 => (port(), port()).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) }),
    ]
}

fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![Just(6_u8), Just(17), Just(1), Just(255)]
}

/// Rules over all of these.
pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![Just(Action::Permit), Just(Action::Deny), Just(Action::Pass)];
    let flags = prop_oneof![
        4 => Just(TcpFlags::ANY),
        1 => (0_u8..4, 0_u8..4).prop_map(|(mask, value)| TcpFlags { mask, value: mask & value }),
    ];
    let protocol = proptest::option::of(protocol());
    (end(), end(), protocol, ports(), ports(), flags, action).prop_map(
        |(source, destination, protocol, source_ports, destination_ports, tcp_flags, action)| {
            Rule {
                protocol,
                tcp_flags,
                ..Rule::new(action, "test")
                    .source(source)
                    .destination(destination)
                    .source_ports(source_ports)
                    .destination_ports(destination_ports)
            }
        },
    )
}

/// Keys without their identities.
pub(crate) fn key() -> impl Strategy<Value = Key> {
    (address(), address(), protocol(), port(), port(), 0_u8..4).prop_map(
        |(source, destination, protocol, source_port, destination_port, tcp_flags)| Key {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            tcp_flags,
            ..Key::default()
        },
    )
}
