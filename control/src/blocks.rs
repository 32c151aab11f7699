//! Networks with exceptions, in one form whatever they were made of.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;

/// Disjoint networks, each with the networks inside it that do not belong to it; sorted. Equal sets
/// of addresses made of the same networks are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Blocks {
    nets: Arc<[(IpNet, Vec<IpNet>)]>,
    /// First and last addresses of the same; sorted and disjoint, where a network may lie in an
    /// exception of another one.
    ranges: Arc<[(IpAddr, IpAddr)]>,
}

impl Blocks {
    /// The addresses that lie in at least `least` of these networks less their exceptions. Takes
    /// the time of sorting them, and makes at most as many networks and exceptions as there are.
    pub(crate) fn covered<'a>(
        blocks: impl IntoIterator<Item = (IpNet, &'a [IpNet])>,
        least: i64,
    ) -> Self {
        // How many more of the networks hold the addresses from here inwards.
        let mut steps: Vec<(IpNet, i64)> = Vec::new();
        for (net, except) in blocks {
            let net = net.trunc();
            let mut except: Vec<IpNet> = except.iter().map(IpNet::trunc).collect();
            if except.iter().any(|except| except.contains(&net)) {
                continue;
            }
            except.retain(|except| net.contains(except));
            except.sort_unstable();
            // Sorted, an outer network comes right before all that it contains.
            except.dedup_by(|inner, outer| outer.contains(&*inner));
            steps.push((net, 1));
            steps.extend(except.into_iter().map(|except| (except, -1)));
        }
        steps.sort_unstable();
        let mut made: Vec<(IpNet, Vec<IpNet>)> = Vec::new();
        // The networks around, outermost first, with their count and the one made that holds them.
        let mut around: Vec<(IpNet, i64, Option<usize>)> = Vec::new();
        for same in steps.chunk_by(|a, b| a.0 == b.0) {
            let net = same[0].0;
            while around.last().is_some_and(|(outer, ..)| !outer.contains(&net)) {
                around.pop();
            }
            let (outer, holder) = around.last().map_or((0, None), |(_, count, it)| (*count, *it));
            let count = outer + same.iter().map(|(_, change)| change).sum::<i64>();
            let holder = match holder {
                None if count >= least => {
                    made.push((net, Vec::new()));
                    Some(made.len() - 1)
                }
                Some(holder) if count < least => {
                    made[holder].1.push(net);
                    None
                }
                holder => holder,
            };
            around.push((net, count, holder));
        }
        let mut ranges: Vec<(IpAddr, IpAddr)> =
            made.iter().flat_map(|(net, except)| ranges(net, except)).collect();
        ranges.sort_unstable();
        Self { nets: made.into(), ranges: ranges.into() }
    }

    /// Whether one of the networks holds the address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= address);
        behind.checked_sub(1).is_some_and(|at| address <= self.ranges[at].1)
    }

    /// First and last addresses, sorted and disjoint.
    pub(crate) fn ranges(&self) -> &[(IpAddr, IpAddr)] {
        &self.ranges
    }
}

/// A network less exceptions that lie in it, sorted and disjoint, as ranges.
fn ranges(net: &IpNet, except: &[IpNet]) -> Vec<(IpAddr, IpAddr)> {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let address = |bits: u128| match net {
        IpNet::V4(_) => IpAddr::from((bits as u32).to_be_bytes()),
        IpNet::V6(_) => IpAddr::from(bits.to_be_bytes()),
    };
    let mut ranges = Vec::with_capacity(except.len() + 1);
    let mut next = Some(bits(net.network()));
    for hole in except {
        let (from, to) = (bits(hole.network()), bits(hole.broadcast()));
        if let Some(first) = next.filter(|first| *first < from) {
            ranges.push((address(first), address(from - 1)));
        }
        next = to.checked_add(1);
    }
    let last = bits(net.broadcast());
    let rest = next.filter(|first| *first <= last);
    ranges.extend(rest.map(|first| (address(first), address(last))));
    ranges
}

impl Deref for Blocks {
    type Target = [(IpNet, Vec<IpNet>)];

    fn deref(&self) -> &Self::Target {
        &self.nets
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn covered(blocks: &[(&str, &[&str])], least: i64) -> Vec<(String, Vec<String>)> {
        let blocks: Vec<(IpNet, Vec<IpNet>)> = blocks
            .iter()
            .map(|(of, except)| (net(of), except.iter().map(|it| net(it)).collect()))
            .collect();
        let made = Blocks::covered(blocks.iter().map(|(net, except)| (*net, &except[..])), least);
        let text = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect();
        made.iter().map(|(net, except)| (net.to_string(), text(except))).collect()
    }

    #[test]
    fn overlapping_networks_become_disjoint_ones() {
        let made = covered(
            &[
                ("10.0.0.0/8", &["10.1.0.0/16", "10.2.0.0/16"]),
                ("10.1.2.0/24", &[]),
                ("10.2.0.0/15", &[]),
                ("2001:db8::/32", &["2001:db8::/32"]),
            ],
            1,
        );
        let wanted = [("10.0.0.0/8", vec!["10.1.0.0/16"]), ("10.1.2.0/24", vec![])];
        let wanted = wanted.map(|(net, except)| {
            (net.to_owned(), except.into_iter().map(str::to_owned).collect::<Vec<_>>())
        });
        assert_eq!(made, wanted);
    }

    #[test]
    fn so_many_exceptions_as_networks_remain() {
        let holes: Vec<IpNet> = (0..50_000_u32)
            .map(|n| IpNet::from(IpAddr::from((n * 77_777).to_be_bytes())))
            .collect();
        let made = Blocks::covered([(net("0.0.0.0/0"), &holes[..])], 1);
        assert_eq!((made.len(), made[0].1.len()), (1, holes.len()));
        assert!(!made.contains(holes[7].addr()) && made.contains([1, 1, 1, 1].into()));
    }

    proptest! {
        #[test]
        fn an_address_is_counted_as_the_networks_say(
            blocks in prop::collection::vec(
                ((0_u8..8, 28_u8..=32), prop::collection::vec((0_u8..8, 28_u8..=32), 0..4)), 0..6),
            least in 1_i64..4,
        ) {
            let net = |(d, length): (u8, u8)| IpNet::new([10, 0, 0, d].into(), length).unwrap();
            let blocks: Vec<(IpNet, Vec<IpNet>)> = blocks
                .into_iter()
                .map(|(of, except)| (net(of), except.into_iter().map(net).collect()))
                .collect();
            let made = Blocks::covered(blocks.iter().map(|(net, except)| (*net, &except[..])), least);
            for d in 0..20 {
                let address = IpAddr::from([10, 0, 0, d]);
                let holds = |(net, except): &&(IpNet, Vec<IpNet>)| {
                    net.trunc().contains(&address)
                        && !except.iter().any(|it| it.trunc().contains(&address))
                };
                let wanted = blocks.iter().filter(holds).count() as i64 >= least;
                prop_assert_eq!(made.contains(address), wanted, "{}", address);
            }
        }
    }
}
