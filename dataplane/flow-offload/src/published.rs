//! The snapshot in force and the generations that belong to it.
//!
//! Two snapshots are compared port by port: a port's generation changes if anything has that a
//! decision about a connection between two pods depends on. So a change that concerns neither end
//! of a connection leaves its entries alone. What is behind the uplink and the host port depends on routes,
//! next hops and the identities of all addresses: their generations change with every snapshot.

use std::sync::Arc;

use dataplane::{AclBinding, PortId, PortState, Snapshot};

use crate::Kernel;
use crate::layout::{GUARD_PORTS, GUARD_SERVICES};

/// A snapshot, and the generations under which its decisions hold.
#[derive(Clone, Default)]
pub(crate) struct Published {
    pub(crate) snapshot: Arc<Snapshot>,
    generations: Arc<Vec<u32>>,
}

impl Published {
    /// The generation of a guard.
    pub(crate) fn generation(&self, guard: u32) -> u32 {
        self.generations.get(guard as usize).copied().unwrap_or(0)
    }

    /// The next state, and the guards that have new generations in it.
    pub(crate) fn next(&self, snapshot: &Arc<Snapshot>) -> (Self, Vec<u32>) {
        let (old, new) = (&*self.snapshot, &**snapshot);
        let last = |snapshot: &Snapshot| snapshot.ports().map(|(id, _)| id.0 + 1).max();
        let count = last(old).max(last(new)).unwrap_or(0);
        let mut changed: Vec<u32> = (0..count)
            .map(PortId)
            .filter(|id| [new.uplink(), new.host()].contains(&Some(*id)) || !is_same(old, new, *id))
            .map(Kernel::guard_of)
            .collect();
        if !std::ptr::eq(old.services(), new.services()) {
            changed.push(GUARD_SERVICES);
        }
        let mut next =
            Self { snapshot: Arc::clone(snapshot), generations: Arc::clone(&self.generations) };
        next.advance(&changed);
        (next, changed)
    }

    /// The same snapshot, where nothing that was decided about a port holds any more.
    pub(crate) fn without(&self, port: PortId) -> (Self, Vec<u32>) {
        let mut next = self.clone();
        let changed = vec![Kernel::guard_of(port)];
        next.advance(&changed);
        (next, changed)
    }

    fn advance(&mut self, changed: &[u32]) {
        let Some(most) = changed.iter().max() else { return };
        let generations = Arc::make_mut(&mut self.generations);
        let least = (*most as usize + 1).max(GUARD_PORTS as usize);
        if generations.len() < least {
            generations.resize(least, 0);
        }
        for guard in changed {
            let generation = &mut generations[*guard as usize];
            *generation = generation.wrapping_add(1);
        }
    }
}

/// Whether both snapshots decide the same about the port, whatever its peer is: both ends of a
/// connection are compared.
fn is_same(old: &Snapshot, new: &Snapshot, id: PortId) -> bool {
    let (before, after) = match (old.port(id), new.port(id)) {
        (Some(before), Some(after)) => (before, after),
        (None, None) => return true,
        _ => return false,
    };
    // A table decides by the identities of the peers' addresses: the peer's part is here.
    let maps = (old.address_map(), new.address_map());
    let has_same_identities = std::ptr::eq(maps.0, maps.1)
        || after.addresses.iter().all(|it| maps.0.lookup(*it) == maps.1.lookup(*it));
    if old.shares_ports(new) {
        return has_same_identities;
    }
    let PortState {
        name,
        kind,
        mac,
        addresses,
        own_mac,
        mtu,
        follows_names,
        to_pod,
        from_pod,
        // What is forwarded has no reply, and staged ACLs decide nothing.
        denied_reply: _,
        staged: _,
    } = after;
    has_same_identities
        && before.name == *name
        && before.kind == *kind
        && before.mac == *mac
        && before.addresses == *addresses
        && before.own_mac == *own_mac
        && before.mtu == *mtu
        && before.follows_names == *follows_names
        && is_same_binding(&before.to_pod, to_pod)
        && is_same_binding(&before.from_pod, from_pod)
        && addresses.iter().all(|address| old.owner(*address) == new.owner(*address))
}

/// Both snapshots live, so that one place in memory is one table.
fn is_same_binding(before: &AclBinding, after: &AclBinding) -> bool {
    match (before, after) {
        (AclBinding::Closed, AclBinding::Closed) | (AclBinding::Open, AclBinding::Open) => true,
        (AclBinding::Table(before), AclBinding::Table(after)) => Arc::ptr_eq(before, after),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acl::Address;
    use dataplane::services::Services;
    use dataplane::{Parts, PortKind};

    fn pod(n: u32) -> Option<PortState> {
        Some(PortState {
            addresses: vec![Address::from_v4_bits(0x0a01_0000 + n)],
            to_pod: AclBinding::Open,
            from_pod: AclBinding::Open,
            ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
        })
    }

    #[test]
    fn what_changes_about_a_port_changes_its_generation_alone() {
        let parts = Parts { ports: vec![pod(1), pod(2), None, pod(4)], ..Parts::default() };
        let (first, changed) = Published::default().next(&Arc::new(Snapshot::new(parts.clone())));
        let guard = |n| Kernel::guard_of(PortId(n));
        assert_eq!(changed, [guard(0), guard(1), guard(3), GUARD_SERVICES]);
        let change = |change: &dyn Fn(&mut Parts)| {
            let mut parts = parts.clone();
            change(&mut parts);
            let (next, changed) = first.next(&Arc::new(Snapshot::new(parts)));
            for guard in &changed {
                assert_ne!(next.generation(*guard), first.generation(*guard));
            }
            changed
        };
        assert_eq!(change(&|parts| parts.generation = 9), [0_u32; 0]);
        let port = |parts: &mut Parts, change: fn(&mut PortState)| {
            change(parts.ports[1].as_mut().unwrap());
        };
        let changes: [fn(&mut PortState); 9] = [
            |port| port.to_pod = AclBinding::Closed,
            |port| port.from_pod = AclBinding::Closed,
            |port| port.mtu = 1400,
            |port| port.mac = Some([2; 6]),
            |port| port.own_mac = [2; 6],
            |port| port.addresses.clear(),
            // Its DNS has to pass by the switch from now on.
            |port| port.follows_names = true,
            // The number is another pod's.
            |port| port.name = "default/other".into(),
            |port| port.kind = PortKind::Host,
        ];
        for (n, one) in changes.into_iter().enumerate() {
            assert_eq!(change(&|parts| port(parts, one)), [guard(1)], "change {n}");
        }
        assert_eq!(change(&|parts| parts.ports[3] = None), [guard(3)]);
        let (without, changed) = first.without(PortId(1));
        assert_eq!(changed, [guard(1)], "a port that is taken away");
        assert_ne!(without.generation(guard(1)), first.generation(guard(1)));
        for kind in [PortKind::Uplink, PortKind::Host] {
            let snapshot = || {
                let ports = vec![pod(1), Some(PortState::new(kind.name(), kind))];
                let services = parts.services.clone();
                Arc::new(Snapshot::new(Parts { ports, services, ..Parts::default() }))
            };
            let (with_port, _) = Published::default().next(&snapshot());
            assert_eq!(with_port.next(&snapshot()).1, [guard(1)], "{kind:?}, with every snapshot");
        }
        assert_eq!(change(&|parts| parts.ports[2] = pod(3)), [guard(2)]);
        // Another pod claims an address: both are concerned.
        let claim = |parts: &mut Parts| {
            let address = parts.ports[1].as_ref().unwrap().addresses[0];
            parts.ports[3].as_mut().unwrap().addresses.push(address);
        };
        assert_eq!(change(&claim), [guard(1), guard(3)]);
        let services = |parts: &mut Parts| parts.services = Arc::new(Services::default());
        assert_eq!(change(&services), [GUARD_SERVICES]);
    }

    #[test]
    fn a_peers_identity_is_part_of_what_a_port_is() {
        use acl::{AddressMap, AddressMapBuilder, Block, PeerSetId};
        let map = |member: Option<u32>| -> Arc<AddressMap> {
            let mut builder = AddressMapBuilder::default();
            if let Some(n) = member {
                let address = Address::from_v4_bits(0x0a01_0000 + n).to_ip();
                builder.add(PeerSetId(0), [Block { net: address.into(), except: vec![] }]);
            }
            Arc::new(builder.build())
        };
        let snapshot = |member| {
            let ports = vec![pod(1), pod(2)];
            let addresses = map(member);
            Arc::new(Snapshot::new(Parts { ports, addresses, ..Parts::default() }))
        };
        let (first, _) = Published::default().next(&snapshot(None));
        let guards = |member| {
            let (_, changed) = first.next(&snapshot(member));
            changed.into_iter().filter(|guard| *guard >= GUARD_PORTS).collect::<Vec<_>>()
        };
        assert_eq!(guards(Some(2)), [Kernel::guard_of(PortId(1))]);
        assert_eq!(guards(Some(7)), [0_u32; 0], "no pod of this node");
    }
}
