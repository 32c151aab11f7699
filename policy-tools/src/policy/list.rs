//! Every allowed connection of workloads.
//!
//! Ends are workloads, the internet, the networks that policies name, and a pod that could exist in a namespace that
//! no file has, without labels. Pods that all tables treat alike are decided about once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use control::PodKey;
use serde::Serialize;

use super::matrix::{self, Matrix, PairDecision};
use super::representatives;
use super::suite::Side;
use crate::input::Manifests;
use crate::probe::complete::complete;
use crate::probe::{Endpoint, Protocol};

/// The end of pods that could exist in a namespace that no file has.
pub const ANY_POD: &str = "any-pod";
/// The end of addresses that no policy names.
pub const INTERNET: &str = "internet";

/// Connections that the same rules allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Allowed {
    /// The end that opens them: `NS/NAME`, `internet`, `any-pod` or a network.
    pub from: String,
    /// The end that they are opened to.
    pub to: String,
    /// The protocol.
    pub protocol: &'static str,
    /// The ports, as `80,8000-8010`; `*` for all of them, and empty for ICMP.
    pub ports: String,
    /// The rules that allow them.
    pub by: Vec<Origin>,
}

impl Allowed {
    /// Returns whether it opens a workload to everybody, or lets one reach everybody.
    pub fn is_open(&self) -> bool {
        let is_everybody =
            |end: &str| matches!(end, ANY_POD | INTERNET) || matches!(end, "0.0.0.0/0" | "::/0");
        is_everybody(&self.from) || is_everybody(&self.to)
    }
}

/// One address of an end.
struct End {
    name: String,
    pod: Option<PodKey>,
    node: Option<Arc<str>>,
    address: IpAddr,
    is_workload: bool,
}

/// Inclusive ranges of ports that the same rules allow, of one protocol.
type Ranges = BTreeMap<(Protocol, Vec<Origin>), BTreeSet<(u16, u16)>>;

/// Lists what policies allow; connections that are open to everybody, or towards everybody, come first.
///
/// # Errors
/// Fails if there are more pods than addresses or ports for them.
pub fn list(mut manifests: Manifests) -> Result<Vec<Allowed>, String> {
    let any_pod = match representatives::end(&mut manifests, &Side::AnyNamespace)? {
        Endpoint::Pod(key) => Some(key),
        _ => None,
    };
    manifests.families = manifests.families.widened();
    let families = manifests.families;
    let outside: Vec<(IpAddr, String)> = [true, false]
        .into_iter()
        .filter(|v4| families.has(*v4))
        .flat_map(|v4| matrix::outside(&manifests.objects, v4))
        .collect();
    complete(&mut manifests, [])?;
    let matrix = Matrix::new(manifests.control().view())?;
    let ends = ends(&manifests, &matrix, any_pod.as_ref(), outside);
    let classes = classes(&matrix, &ends);
    let mut known: HashMap<(usize, usize), Ranges> = HashMap::new();
    let mut found: BTreeMap<(&str, &str), Ranges> = BTreeMap::new();
    for (from, of_from) in ends.iter().zip(&classes) {
        for (to, of_to) in ends.iter().zip(&classes) {
            let is_listed = (from.is_workload || to.is_workload)
                && from.name != to.name
                && from.address.is_ipv4() == to.address.is_ipv4();
            if !is_listed {
                continue;
            }
            let ranges =
                known.entry((*of_from, *of_to)).or_insert_with(|| allowed(&matrix, from, to));
            let all = found.entry((&from.name, &to.name)).or_default();
            for (key, ports) in ranges {
                all.entry(key.clone()).or_default().extend(ports.iter().copied());
            }
        }
    }
    let mut list: Vec<Allowed> = found
        .into_iter()
        .flat_map(|((from, to), ranges)| {
            ranges.into_iter().map(move |((protocol, by), ports)| Allowed {
                from: from.to_owned(),
                to: to.to_owned(),
                protocol: protocol.name(),
                ports: in_words(protocol, &ports),
                by,
            })
        })
        .collect();
    list.sort_by_key(|it| !it.is_open());
    Ok(list)
}

fn ends(
    manifests: &Manifests,
    matrix: &Matrix,
    any_pod: Option<&PodKey>,
    outside: Vec<(IpAddr, String)>,
) -> Vec<End> {
    let mut ends = Vec::new();
    for (key, pod) in matrix.view().pods.iter() {
        let is_any = any_pod == Some(key);
        let name = if is_any { ANY_POD.to_owned() } else { manifests.workload(key) };
        ends.extend(pod.addresses.iter().map(|address| End {
            name: name.clone(),
            pod: Some(key.clone()),
            node: Some(Arc::clone(&pod.node)),
            address: *address,
            is_workload: !is_any,
        }));
    }
    ends.extend(outside.into_iter().map(|(address, name)| End {
        name,
        pod: None,
        node: None,
        address,
        is_workload: false,
    }));
    ends
}

/// The class of each end: ends of one class are decided about alike.
fn classes(matrix: &Matrix, ends: &[End]) -> Vec<usize> {
    let view = matrix.view();
    let mut known = HashMap::new();
    let class = |end: &End| {
        let tables = end.pod.as_ref().map(|pod| matrix::tables(view, pod));
        let tables = tables.map(|pair| pair.map(|table| table.as_ref().map(Arc::as_ptr)));
        let identity = view.addresses.lookup(end.address.into());
        let next = known.len();
        *known.entry((tables, identity, end.address.is_ipv4())).or_insert(next)
    };
    ends.iter().map(class).collect()
}

/// The ranges of ports of connections between two ends that are allowed.
fn allowed(matrix: &Matrix, from: &End, to: &End) -> Ranges {
    let ends = [from, to].map(|end| (end.pod.as_ref(), end.node.as_ref()));
    let tables = matrix::tables_between(matrix.view(), ends);
    let mut found = Ranges::new();
    for protocol in Protocol::ALL {
        let firsts: Vec<u16> = matrix::port_ranges(&tables, protocol).into_iter().collect();
        for (n, first) in firsts.iter().enumerate() {
            let last = firsts.get(n + 1).map_or(u16::MAX, |next| next - 1);
            let PairDecision { permits, by } =
                matrix.decide(from.address, to.address, protocol, *first);
            if permits {
                found.entry((protocol, by)).or_default().insert((*first, last));
            }
        }
    }
    found
}

/// Ranges in words, neighbours joined.
fn in_words(protocol: Protocol, ranges: &BTreeSet<(u16, u16)>) -> String {
    if protocol == Protocol::Icmp {
        return String::new();
    }
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if end.checked_add(1).is_none_or(|next| *first <= next) => {
                *end = (*end).max(*last);
            }
            _ => joined.push((*first, *last)),
        }
    }
    let words = joined.iter().map(|range| match range {
        (1, u16::MAX) => "*".to_owned(),
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}
