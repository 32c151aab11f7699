//! Filters of packet traces.

use std::sync::Arc;

use acl::Address;
use ipnet::IpNet;

use crate::wire::{Flow, Headers, Kind, protocol};
use crate::{Outcome, Verdict};

/// Conditions that a packet must meet, all of them; `None` matches every packet.
///
/// Addresses and ports are those that the packet came with (for a packet out of a tunnel also
/// those inside), before a service gives it others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Name of the ingress port.
    pub in_port: Option<Arc<str>>,
    /// Name of the egress port.
    pub out_port: Option<Arc<str>>,
    /// Its source is in one of these.
    pub from: Option<Vec<IpNet>>,
    /// Its destination is in one of these.
    pub to: Option<Vec<IpNet>>,
    /// Its source or destination is in one of these.
    pub address: Option<Vec<IpNet>>,
    /// Its IP protocol. ICMP stands for ICMPv6 too.
    pub protocol: Option<u8>,
    /// Its source or destination port.
    pub port: Option<u16>,
    /// Its verdict.
    pub verdict: Option<Verdict>,
    /// Why.
    pub outcome: Option<Outcome>,
}

impl Filter {
    /// Whether a packet of an allowed connection may match, which enters by one port with one of
    /// these flows and leaves by another.
    pub fn matches_session(&self, [ingress, egress]: [&str; 2], flows: &[Flow]) -> bool {
        self.matches_entry(Some(ingress))
            && self.matches_end(Some(Outcome::Session), Some(egress))
            && flows.iter().any(|flow| self.matches_flow(flow))
    }

    /// Whether the ingress port matches.
    pub(super) fn matches_entry(&self, in_port: Option<&str>) -> bool {
        self.in_port.as_deref().is_none_or(|wanted| in_port == Some(wanted))
    }

    /// Whether the headers match; malformed ones match filters without conditions on headers.
    pub(crate) fn matches_headers(&self, headers: &Headers) -> bool {
        let Self { from, to, address, protocol, port, .. } = self;
        let asks_nothing = from.is_none()
            && to.is_none()
            && address.is_none()
            && protocol.is_none()
            && port.is_none();
        let has_flow = headers.end > 0 && matches!(headers.kind, Kind::Ipv4 | Kind::Ipv6);
        asks_nothing || has_flow && self.matches_flow(&headers.flow)
    }

    /// Whether a packet of this flow matches.
    pub fn matches_flow(&self, flow: &Flow) -> bool {
        let inside = |nets: &Option<Vec<IpNet>>, addresses: &[Address]| {
            let contains =
                |net: &IpNet| addresses.iter().any(|address| net.contains(&address.to_ip()));
            nets.as_ref().is_none_or(|nets| nets.iter().any(contains))
        };
        let protocol = match flow.protocol {
            protocol::ICMPV6 => protocol::ICMP,
            other => other,
        };
        inside(&self.from, &[flow.source])
            && inside(&self.to, &[flow.destination])
            && inside(&self.address, &[flow.source, flow.destination])
            && self.protocol.is_none_or(|wanted| wanted == protocol || wanted == flow.protocol)
            && self.port.is_none_or(|port| {
                let has_ports = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
                has_ports && [flow.source_port, flow.destination_port].contains(&port)
            })
    }

    /// Whether the outcome and the egress port match.
    pub(super) fn matches_end(&self, outcome: Option<Outcome>, out_port: Option<&str>) -> bool {
        self.out_port.as_deref().is_none_or(|wanted| out_port == Some(wanted))
            && self.verdict.is_none_or(|wanted| outcome.map(Outcome::verdict) == Some(wanted))
            && self.outcome.is_none_or(|wanted| outcome == Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::parse;
    use testkit::packet::{arp_request, ping, udp};

    fn nets(text: &str) -> Option<Vec<IpNet>> {
        Some(vec![text.parse().unwrap()])
    }

    #[test]
    fn terms_about_headers() {
        let dns = parse(&udp("10.1.0.2:5000", "10.2.0.3:53").build()).unwrap();
        let echo = parse(&ping("fd00::1", "fd00::2", 7, 1).build()).unwrap();
        let arp = parse(&arp_request("10.1.0.2", "10.1.0.3").build()).unwrap();
        let all = Filter::default();
        let cases = [
            (Filter { from: nets("10.1.0.0/16"), ..all.clone() }, [true, false, false]),
            (Filter { to: nets("10.1.0.0/16"), ..all.clone() }, [false, false, false]),
            (Filter { address: nets("10.2.0.3/32"), ..all.clone() }, [true, false, false]),
            (Filter { address: nets("fd00::/64"), ..all.clone() }, [false, true, false]),
            (Filter { protocol: Some(1), ..all.clone() }, [false, true, false]),
            (Filter { protocol: Some(17), ..all.clone() }, [true, false, false]),
            (Filter { port: Some(53), ..all.clone() }, [true, false, false]),
            (Filter { port: Some(7), ..all.clone() }, [false, false, false]),
            (all, [true, true, true]),
        ];
        for (filter, expected) in cases {
            let matched = [dns, echo, arp].map(|headers| filter.matches_headers(&headers));
            assert_eq!(matched, expected, "{filter:?}");
        }
    }

    #[test]
    fn terms_about_both_ends_of_the_way() {
        let filter = Filter {
            in_port: Some("default/web".into()),
            out_port: Some("host".into()),
            verdict: Some(Verdict::Forward),
            outcome: Some(Outcome::Session),
            ..Filter::default()
        };
        let flows = [parse(&udp("10.1.0.2:5000", "10.2.0.3:53").build()).unwrap().flow];
        assert!(filter.matches_session(["default/web", "host"], &flows));
        assert!(!filter.matches_session(["host", "default/web"], &flows));
        let other = Filter { port: Some(80), ..filter.clone() };
        assert!(!other.matches_session(["default/web", "host"], &flows));
        let dropped = Filter { verdict: Some(Verdict::Drop), outcome: None, ..filter.clone() };
        assert!(!dropped.matches_session(["default/web", "host"], &flows));
        assert!(filter.matches_entry(Some("default/web")));
        assert!(!filter.matches_entry(None));
        assert!(filter.matches_end(Some(Outcome::Session), Some("host")));
        assert!(!filter.matches_end(Some(Outcome::Session), None));
        assert!(!filter.matches_end(Some(Outcome::Related), Some("host")));
        assert!(!filter.matches_end(None, Some("host")));
    }
}
