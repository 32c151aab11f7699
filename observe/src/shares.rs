//! Shares of a bounded table: a pod that fills it leaves room for others.

use std::collections::HashMap;
use std::sync::Arc;

/// Shares of a bounded table, by the pod that opens connections. A pod gets at most as much as it leaves free: one
/// alone gets half, each of N one part of N + 1. All other initiators count as one pod.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    taken: HashMap<Option<Arc<str>>, u64>,
    total: u64,
}

impl Shares {
    /// Gives so much of `most` to this pod; returns whether there was room for it.
    pub(crate) fn take(&mut self, pod: Option<&Arc<str>>, amount: u64, most: u64) -> bool {
        let taken = self.taken.get(&pod.cloned()).copied().unwrap_or_default();
        if taken.saturating_add(amount) > most.saturating_sub(self.total) {
            return false;
        }
        *self.taken.entry(pod.cloned()).or_default() += amount;
        self.total += amount;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_no_more_than_it_leaves_free() {
        let mut shares = Shares::default();
        let mut fill = |pod: &str| {
            let pod: Arc<str> = pod.into();
            let pod = Some(&pod).filter(|pod| !pod.is_empty());
            (0..100).filter(|_| shares.take(pod, 1, 100)).count()
        };
        let taken = ["a", "b", "", "c", "a", "d"].map(&mut fill);
        assert_eq!(taken, [50, 25, 13, 6, 0, 3]);
    }
}
