//! Ranks of nodes: links lead from lower ranks to higher ones, but for the few that close a circle.

use std::collections::{BTreeMap, BTreeSet};

/// The length of the longest way to each node, without the links against the order.
pub(super) fn ranks(count: usize, links: &[(usize, usize)]) -> Vec<usize> {
    let order = order(count, links);
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(at, n)| (*n, at)).collect();
    let mut ranks = vec![0; count];
    for n in order {
        for (_, to) in links.iter().filter(|(from, to)| *from == n && place[to] > place[from]) {
            ranks[*to] = ranks[*to].max(ranks[n] + 1);
        }
    }
    ranks
}

/// An order that few links run against: nodes without outgoing links go last, those without
/// incoming ones first, else the one with the most outgoing over incoming links.
fn order(count: usize, links: &[(usize, usize)]) -> Vec<usize> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut left: BTreeSet<usize> = (0..count).collect();
    while !left.is_empty() {
        let balance = |n: usize| {
            let among =
                links.iter().filter(|(a, b)| a != b && left.contains(a) && left.contains(b));
            among.fold((0, 0), |(outgoing, incoming), (a, b)| {
                (outgoing + usize::from(*a == n), incoming + usize::from(*b == n))
            })
        };
        let balances: Vec<(usize, (usize, usize))> =
            left.iter().map(|n| (*n, balance(*n))).collect();
        if let Some((n, _)) =
            balances.iter().find(|(_, (out, incoming))| *out == 0 && *incoming > 0)
        {
            last.push(*n);
            left.remove(n);
            continue;
        }
        let most = balances.iter().max_by_key(|(n, (out, incoming))| {
            (*incoming == 0, *out as i64 - *incoming as i64, std::cmp::Reverse(*n))
        });
        let Some((n, _)) = most else { break };
        first.push(*n);
        left.remove(n);
    }
    first.extend(last.into_iter().rev());
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_longest_way_and_cut_circles() {
        assert_eq!(ranks(4, &[(0, 1), (1, 2), (0, 2)]), [0, 1, 2, 0]);
        assert_eq!(ranks(3, &[(0, 1), (1, 2), (2, 1)]), [0, 1, 2]);
        assert_eq!(ranks(2, &[(0, 1), (1, 0)]), [0, 1]);
    }
}
