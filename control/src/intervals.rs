//! The ports of a rule as one list of intervals.

use std::sync::Arc;

use acl::PortRange;

/// Protocols and their destination ports: sorted, disjoint, and not adjacent. A clone shares the
/// list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intervals(Option<Arc<[(u8, PortRange)]>>);

impl Intervals {
    /// Every protocol and port.
    pub(crate) fn all() -> Self {
        Self(None)
    }

    /// These ranges, each of an IP protocol by its number.
    pub(crate) fn of(mut ranges: Vec<(u8, PortRange)>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, known| {
            let meets = next.0 == known.0 && next.1.first <= known.1.last.saturating_add(1);
            if meets {
                known.1.last = known.1.last.max(next.1.last);
            }
            meets
        });
        Self(Some(ranges.into()))
    }

    /// Whether nothing matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(|ranges| ranges.is_empty())
    }

    /// Number of conditions that say it all.
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(1, |ranges| ranges.len())
    }

    /// The conditions: a protocol (`None` is any) and ports.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<u8>, PortRange)> {
        let all = self.0.is_none().then_some((None, PortRange::ANY));
        let ranges = self.0.iter().flat_map(|ranges| ranges.iter());
        all.into_iter().chain(ranges.map(|(protocol, range)| (Some(*protocol), *range)))
    }

    /// What is in both, in the time that reading both takes.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let (Some(own), Some(others)) = (&self.0, &other.0) else {
            return if self.0.is_none() { other.clone() } else { self.clone() };
        };
        let (mut a, mut b) = (own.iter().peekable(), others.iter().peekable());
        let mut met = Vec::new();
        while let (Some((protocol, range)), Some((other_protocol, other_range))) =
            (a.peek(), b.peek())
        {
            if protocol == other_protocol {
                let first = range.first.max(other_range.first);
                let last = range.last.min(other_range.last);
                if first <= last {
                    met.push((*protocol, PortRange { first, last }));
                }
            }
            if (protocol, range.last) <= (other_protocol, other_range.last) {
                a.next();
            } else {
                b.next();
            }
        }
        Self(Some(met.into()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = (u8, PortRange)> {
        let ports = prop_oneof![
            Just((0, u16::MAX)),
            (0_u16..12, 0_u16..4),
            (65_530_u16..=65_535, 0..1_u16)
        ];
        (prop_oneof![Just(6_u8), Just(17)], ports).prop_map(|(protocol, (first, more))| {
            (protocol, PortRange { first, last: first.saturating_add(more) })
        })
    }

    proptest! {
        #[test]
        fn a_port_is_in_them_if_it_is_in_a_range(
            a in prop::collection::vec(range(), 0..6),
            b in prop::collection::vec(range(), 0..6),
        ) {
            let (own, others) = (Intervals::of(a.clone()), Intervals::of(b.clone()));
            let both = own.and(&others);
            prop_assert!(own.iter().zip(own.iter().skip(1)).all(|(one, next)| {
                one.0 != next.0 || u32::from(one.1.last) + 1 < u32::from(next.1.first)
            }), "adjacent ones are one");
            for protocol in [6_u8, 17] {
                for port in (0..20).chain(65_525..=u16::MAX) {
                    let is_in = |it: &Intervals| {
                        it.iter().any(|(of, range)| of == Some(protocol) && range.contains(port))
                    };
                    let meant = |ranges: &[(u8, PortRange)]| {
                        ranges.iter().any(|(of, range)| *of == protocol && range.contains(port))
                    };
                    prop_assert_eq!(is_in(&own), meant(&a));
                    prop_assert_eq!(is_in(&both), meant(&a) && meant(&b));
                }
            }
        }
    }

    #[test]
    fn everything_meets_the_rest() {
        let some = Intervals::of(vec![(6, PortRange::one(80)), (6, PortRange::one(81))]);
        assert_eq!(some.len(), 1);
        assert_eq!(Intervals::all().and(&some), some);
        assert_eq!(some.and(&Intervals::all()), some);
        assert!(Intervals::of(Vec::new()).is_empty() && !Intervals::all().is_empty());
    }
}
