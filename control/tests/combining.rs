//! The renderer cache of Contiv's policy plugin, written plainly, gives the verdicts of the ACLs.
//!
//! There a connection meets one table on its way out of the switch: the *local table* of the
//! pod it goes to, which holds the pod's ingress combined with the egress of every pod that
//! may send to it; or the *global table* towards uplink and host, which holds the egress of
//! every local pod with the pod's address filled in, then permit-all. Here each end has an
//! ACL of its own, and both classify. The verdicts must be equal.
//!
//! Rules name single networks: exceptions are subtracted, selectors are written out as the
//! addresses they stand for at the moment.

use std::net::IpAddr;

use crate::common::generate::{Edit, edits};
use crate::common::reference::{Cluster, addresses, is_peer_at_all};
use crate::common::{ICMP, TCP, UDP, apply, egress_at, ingress_at};
use control::{Control, Kind, Scope};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;

/// One rule about connections between a source and a destination; fields left out match all.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    source: Option<IpNet>,
    destination: Option<IpNet>,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    permit: bool,
}

const DENY_ALL: Rule =
    Rule { source: None, destination: None, protocol: None, ports: None, permit: false };
const PERMIT_ALL: Rule = Rule { permit: true, ..DENY_ALL };

/// First match; an empty table lets everything through.
fn judge(table: &[Rule], from: IpAddr, to: IpAddr, protocol: u8, port: u16) -> bool {
    let inside = |net: &Option<IpNet>, address: &IpAddr| net.is_none_or(|it| it.contains(address));
    let matching = table.iter().find(|rule| {
        inside(&rule.source, &from)
            && inside(&rule.destination, &to)
            && rule.protocol.is_none_or(|it| it == protocol)
            && rule.ports.is_none_or(|(first, last)| (first..=last).contains(&port))
    });
    matching.is_none_or(|rule| rule.permit)
}

/// A network less one exception: itself, nothing, or one sibling for each further bit.
fn subtract(net: IpNet, except: IpNet) -> Vec<IpNet> {
    if except.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&except) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).unwrap();
    halves.flat_map(|half| subtract(half, except)).collect()
}

/// The rules that policies make for one direction of a pod; the other end is `peer`.
fn basic_rules(cluster: &Cluster, pod: &Pod, is_ingress: bool) -> Vec<Rule> {
    let rules = cluster.written_out(pod, is_ingress);
    let Some(rules) = rules else { return Vec::new() };
    let mut table: Vec<Rule> = rules
        .into_iter()
        .flat_map(|written| {
            let nets: Vec<Option<IpNet>> = match written.net {
                None => vec![None],
                Some(net) => {
                    let left = written.except.iter().fold(vec![net], |nets, except| {
                        nets.into_iter().flat_map(|net| subtract(net, *except)).collect()
                    });
                    left.into_iter().map(Some).collect()
                }
            };
            nets.into_iter().map(move |net| {
                let (source, destination) = if is_ingress { (net, None) } else { (None, net) };
                let (protocol, ports) = (written.protocol, written.ports);
                Rule { source, destination, protocol, ports, permit: true }
            })
        })
        .collect();
    table.dedup();
    table.push(DENY_ALL);
    table
}

/// Matches what both rules match; permits if both permit.
fn both(a: &Rule, b: &Rule) -> Option<Rule> {
    let net = |a: Option<IpNet>, b: Option<IpNet>| match (a, b) {
        (None, net) | (net, None) => Some(net),
        (Some(a), Some(b)) if a.contains(&b) => Some(Some(b)),
        (Some(a), Some(b)) => b.contains(&a).then_some(Some(a)),
    };
    let protocol = match (a.protocol, b.protocol) {
        (Some(a), Some(b)) if a != b => return None,
        (a, b) => a.or(b),
    };
    let ports = match (a.ports, b.ports) {
        (Some(a), Some(b)) => {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            (first <= last).then_some(Some((first, last)))?
        }
        (a, b) => a.or(b),
    };
    Some(Rule {
        source: net(a.source, b.source)?,
        destination: net(a.destination, b.destination)?,
        protocol,
        ports,
        permit: a.permit && b.permit,
    })
}

fn with(rules: &[Rule], source: Option<IpNet>, destination: Option<IpNet>) -> Vec<Rule> {
    let end = Rule { source, destination, ..PERMIT_ALL };
    rules.iter().filter_map(|rule| both(rule, &end)).collect()
}

/// The local table of a pod's address: for each sender its egress combined with the pod's
/// ingress, then the ingress alone for everybody else.
fn local_table(ingress: &[Rule], own: IpNet, senders: &[(IpNet, Vec<Rule>)]) -> Vec<Rule> {
    let everything = [PERMIT_ALL];
    let ingress = if ingress.is_empty() { &everything } else { ingress };
    let mut table = Vec::new();
    for (sender, egress) in
        senders.iter().filter(|(sender, egress)| *sender != own && !egress.is_empty())
    {
        for egress in with(egress, Some(*sender), None) {
            table.extend(ingress.iter().filter_map(|ingress| both(&egress, ingress)));
        }
    }
    table.extend_from_slice(ingress);
    table
}

/// The table towards uplink and host.
fn global_table(senders: &[(IpNet, Vec<Rule>)]) -> Vec<Rule> {
    let mut table: Vec<Rule> = Vec::new();
    for (sender, egress) in senders {
        table.extend(with(egress, Some(*sender), None));
    }
    table.push(PERMIT_ALL);
    table
}

fn only_namespaced(edit: &Edit) -> bool {
    let kind = match edit {
        Edit::Apply(value) => value["kind"].as_str().unwrap(),
        Edit::Delete(kind, ..) => kind,
    };
    !Kind::ALL.into_iter().any(|it| it.name() == kind && it.may_be_absent())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_gates_are_the_local_and_the_global_table(history in edits(10..40)) {
        let mut cluster = Cluster::default();
        let mut control = Control::new(Scope::All);
        for edit in history.iter().filter(|edit| only_namespaced(edit)) {
            cluster.apply(edit);
            apply(&mut control, edit);
        }
        control.commit();
        let view = control.view();
        let pods: Vec<&Pod> = cluster.pods.values().filter(|pod| is_peer_at_all(pod)).collect();
        let hosts = |pod: &Pod| addresses(pod).into_iter().map(IpNet::from).collect::<Vec<_>>();
        let senders: Vec<(IpNet, Vec<Rule>)> = pods
            .iter()
            .flat_map(|pod| {
                let egress = basic_rules(&cluster, pod, false);
                hosts(pod).into_iter().map(move |host| (host, egress.clone()))
            })
            .collect();
        let kinds = [(TCP, 53), (TCP, 80), (TCP, 8080), (UDP, 53), (UDP, 80), (ICMP, 0)];
        let global = global_table(&senders);
        for pod in &pods {
            let ingress = basic_rules(&cluster, pod, true);
            for own in hosts(pod) {
                let local = local_table(&ingress, own, &senders);
                let (own, outside) = (own.addr(), ["198.51.100.7", "203.0.113.9", "2001:db8::9"]);
                for (protocol, port) in kinds {
                    let sending = senders.iter().map(|(net, _)| net.addr());
                    for from in sending.filter(|it| *it != own && it.is_ipv4() == own.is_ipv4()) {
                        let asked = egress_at(&view, from, own, protocol, port)
                            && ingress_at(&view, from, own, protocol, port);
                        prop_assert_eq!(asked, judge(&local, from, own, protocol, port),
                            "{} to {} {} {}", from, own, protocol, port);
                    }
                    for outside in outside.map(|it| it.parse::<IpAddr>().unwrap()) {
                        let asked = ingress_at(&view, outside, own, protocol, port);
                        prop_assert_eq!(asked, judge(&local, outside, own, protocol, port));
                        let asked = egress_at(&view, own, outside, protocol, port);
                        prop_assert_eq!(asked, judge(&global, own, outside, protocol, port));
                    }
                }
            }
        }
    }
}
