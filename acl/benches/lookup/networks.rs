//! Networks as peer sets: each distinct one is a set of its own, so that an address is in the sets of all networks
//! around it.

use std::collections::HashMap;

use acl::{Address, AddressMap, AddressMapBuilder, Block, End, PeerSetId};
use ipnet::IpNet;

/// The networks that rules name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks {
    numbers: HashMap<IpNet, u32>,
    /// By number of the set.
    nets: Vec<IpNet>,
}

impl Networks {
    /// The peer set of a network.
    pub(crate) fn end(&mut self, net: IpNet) -> End {
        let net = net.trunc();
        let fresh = self.nets.len() as u32;
        let number = *self.numbers.entry(net).or_insert(fresh);
        if number == fresh {
            self.nets.push(net);
        }
        End::Set(PeerSetId(number))
    }

    /// The network of a peer set.
    pub(crate) fn net(&self, end: End) -> Option<IpNet> {
        match end {
            End::Any => None,
            End::Set(PeerSetId(number)) => self.nets.get(number as usize).copied(),
        }
    }

    /// An address inside an end, with these bits where the network leaves them open.
    pub(crate) fn inside(&self, end: End, bits: u128) -> Address {
        match self.net(end) {
            None => Address::from_v4_bits(bits as u32),
            Some(IpNet::V4(net)) => Address::from_v4_bits(
                u32::from(net.network()) | bits as u32 & u32::from(net.hostmask()),
            ),
            Some(IpNet::V6(net)) => {
                Address::from_bits(u128::from(net.network()) | bits & u128::from(net.hostmask()))
            }
        }
    }

    /// The identities of all addresses.
    pub(crate) fn map(&self) -> AddressMap {
        let mut builder = AddressMapBuilder::default();
        for (number, net) in (0..).zip(&self.nets) {
            builder.add(PeerSetId(number), [Block { net: *net, except: Vec::new() }]);
        }
        builder.build()
    }
}
