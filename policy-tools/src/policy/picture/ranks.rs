//! Ranks of nodes: links lead from lower ranks to higher ones, but for the few that close a circle.

use std::collections::{BTreeMap, BTreeSet};

/// The length of the longest way to each node, without the links against the order.
pub(super) fn ranks(count: usize, links: &[(usize, usize)]) -> Vec<usize> {
    let links: BTreeSet<(usize, usize)> = links.iter().filter(|(a, b)| a != b).copied().collect();
    let order = order(count, &links);
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(at, n)| (*n, at)).collect();
    let mut ranks = vec![0; count];
    for n in order {
        let own = links.range((n, 0)..(n + 1, 0));
        for (_, to) in own.filter(|(from, to)| place[to] > place[from]) {
            ranks[*to] = ranks[*to].max(ranks[n] + 1);
        }
    }
    ranks
}

/// An order that few links run against: nodes without outgoing links go last, those without
/// incoming ones first, else the one with the most outgoing over incoming links.
fn order(count: usize, links: &BTreeSet<(usize, usize)>) -> Vec<usize> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut left: BTreeSet<usize> = (0..count).collect();
    // Numbers of outgoing and incoming links among the nodes that are left.
    let mut balances = vec![(0, 0); count];
    for (from, to) in links {
        balances[*from].0 += 1;
        balances[*to].1 += 1;
    }
    while !left.is_empty() {
        let is_last = |n: &&usize| balances[**n].0 == 0 && balances[**n].1 > 0;
        let most = |n: &usize| {
            let (out, incoming) = balances[*n];
            (incoming == 0, out as i64 - incoming as i64, std::cmp::Reverse(*n))
        };
        let n = match left.iter().find(is_last) {
            Some(n) => {
                last.push(*n);
                *n
            }
            None => {
                let Some(n) = left.iter().copied().max_by_key(most) else { break };
                first.push(n);
                n
            }
        };
        left.remove(&n);
        for (from, to) in links.iter().filter(|(from, to)| *from == n || *to == n) {
            balances[*from].0 -= 1;
            balances[*to].1 -= 1;
        }
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
