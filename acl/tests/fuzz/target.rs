//! From any bytes to checks of the classifier.

use std::sync::Arc;

use acl::{
    Action, Address, AddressMapEditor, Block, End, Key, PeerSetId, PortRange, Rule, Table,
    TcpFlags, linear,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Reads bytes as blocks, rules, changes and keys, and compares all answers; panics where two
/// differ.
pub(crate) fn check(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let mut addresses = AddressMapEditor::default();
    let mut blocks: Vec<(PeerSetId, Block)> = Vec::new();
    for _ in 0..input.below(12) {
        let block = (input.set(), input.block());
        addresses.add(block.0, &block.1);
        blocks.push(block);
    }
    let mut map = Arc::new(addresses.version());
    let rules: Vec<Rule> = (0..input.below(12)).map(|_| input.rule()).collect();
    for _ in 0..input.below(12) {
        match input.below(4) {
            0 | 1 if !blocks.is_empty() => {
                let (set, block) = blocks.swap_remove(input.below(blocks.len()));
                addresses.remove(set, &block);
                map = Arc::new(addresses.version());
            }
            _ => {
                let block = (input.set(), input.block());
                addresses.add(block.0, &block.1);
                blocks.push(block);
                map = Arc::new(addresses.version());
            }
        }
    }
    let table = Table::compile(rules.clone().into(), &map);
    let keys: Vec<Key> = (0..32)
        .map(|_| {
            let key = input.key();
            for address in [key.source, key.destination] {
                check_membership(address, &blocks, &map);
            }
            let (source_identity, destination_identity) =
                (map.lookup(key.source), map.lookup(key.destination));
            Key { source_identity, destination_identity, ..key }
        })
        .collect();
    let mut in_vector = vec![0; keys.len()];
    table.lookup_vector(&keys, &mut in_vector);
    for (at, key) in keys.iter().enumerate() {
        let expected = linear::lookup(&rules, &map, key);
        assert_eq!(table.lookup(key), expected, "{key:?}");
        assert_eq!(in_vector[at], expected.map_or(Table::NONE, |at| at as u32), "{key:?}");
    }
}

fn check_membership(address: Address, blocks: &[(PeerSetId, Block)], map: &acl::AddressMap) {
    let ip = address.to_ip();
    for set in (0..8).map(PeerSetId) {
        let expected = blocks.iter().any(|(of, block)| {
            *of == set
                && block.net.contains(&ip)
                && !block.except.iter().any(|except| except.contains(&ip))
        });
        assert_eq!(map.is_member(map.lookup(address), set), expected, "{address} in {set:?}");
    }
}

/// Bytes to be read; zeros once there are none left.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn set(&mut self) -> PeerSetId {
        PeerSetId(self.below(8) as u32)
    }

    /// One byte decides, so that addresses and networks meet often.
    fn address(&mut self) -> Address {
        let byte = self.byte();
        let low = byte & 0x3f;
        match byte >> 6 {
            0 | 1 => Address::from_v4_bits(0x0a00_0000 | (u32::from(low) * 0x0004_1041)),
            2 => Address::from_bits((0xfd00 << 112) | (u128::from(low) * (1 << 90 | 1 << 62 | 1))),
            // IPv4-mapped and other numbers near the border between the families.
            _ => Address::from_bits((u128::from(low) << 44) | u128::from(low)),
        }
    }

    fn net(&mut self) -> IpNet {
        let (address, length) = (self.address(), self.byte());
        match address.to_ip() {
            std::net::IpAddr::V4(v4) => Ipv4Net::new_assert(v4, length % 33).into(),
            std::net::IpAddr::V6(v6) => Ipv6Net::new_assert(v6, length % 129).into(),
        }
    }

    fn block(&mut self) -> Block {
        Block { net: self.net(), except: (0..self.below(3)).map(|_| self.net()).collect() }
    }

    fn end(&mut self) -> End {
        match self.below(3) {
            0 => End::Any,
            _ => End::Set(self.set()),
        }
    }

    fn port(&mut self) -> u16 {
        [0, 1, 2, 80, 255, 256, 443, 65535][self.below(8)]
    }

    /// Mostly sound ranges; contradictory ones match nothing.
    fn ports(&mut self) -> PortRange {
        match self.below(4) {
            0 => PortRange { first: self.port(), last: self.port() },
            1 => PortRange::one(self.port()),
            _ => PortRange::ANY,
        }
    }

    fn protocol(&mut self) -> u8 {
        [6, 17, 1, 0][self.below(4)]
    }

    fn rule(&mut self) -> Rule {
        let action = [Action::Permit, Action::Deny, Action::Pass][self.below(3)];
        let tcp_flags = match self.below(6) {
            0 => TcpFlags { mask: self.byte() & 3, value: self.byte() & 3 },
            _ => TcpFlags::ANY,
        };
        let protocol = (self.below(3) > 0).then(|| self.protocol());
        Rule { protocol, tcp_flags, ..Rule::new(action, "") }
            .source(self.end())
            .destination(self.end())
            .source_ports(self.ports())
            .destination_ports(self.ports())
    }

    fn key(&mut self) -> Key {
        Key {
            source: self.address(),
            destination: self.address(),
            protocol: self.protocol(),
            source_port: self.port(),
            destination_port: self.port(),
            tcp_flags: self.byte() & 3,
            ..Key::default()
        }
    }
}
