//! Pairs of ends with their sessions, for the page of browsers.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Serialize;

use super::shared_status::SharedStatus;

/// Two ends with their sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PairOfEnds {
    /// The pod or address that opened the sessions.
    pub(crate) from: String,
    /// The pod or address that they were opened to.
    pub(crate) to: String,
    /// Number of sessions.
    pub(crate) sessions: u64,
    /// Their bytes; `None` where these are not counted.
    pub(crate) bytes: Option<u64>,
}

/// Sessions that are looked at: this runs while the HTTP server waits.
const MOST_SESSIONS: usize = 50_000;

/// The pairs with the most bytes or, where these are not counted, sessions.
pub(crate) fn pairs_of_ends(shared: &SharedStatus, most: usize) -> Vec<PairOfEnds> {
    let sessions = shared.switch.sessions();
    let counts = sessions.counts_packets();
    let mut pairs: HashMap<(IpAddr, IpAddr), (u64, u64)> = HashMap::new();
    for (found, tuples) in sessions.iter().take(MOST_SESSIONS) {
        let flow = tuples.policy_flow();
        let pair = pairs.entry((flow.source.to_ip(), flow.destination.to_ip())).or_default();
        pair.0 += 1;
        pair.1 += if counts { sessions.usage(&found).bytes } else { 0 };
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(ends, (sessions, bytes))| (u64::MAX - bytes, u64::MAX - sessions, *ends));
    pairs.truncate(most);
    let name = |address: IpAddr| {
        shared
            .broker
            .directory()
            .pod_at(address)
            .map_or_else(|| address.to_string(), |pod| pod.to_string())
    };
    let pair = |((from, to), (sessions, bytes)): ((IpAddr, IpAddr), (u64, u64))| PairOfEnds {
        from: name(from),
        to: name(to),
        sessions,
        bytes: counts.then_some(bytes),
    };
    pairs.into_iter().map(pair).collect()
}
