//! The interface towards other nodes: which it is, its MTU, XDP programs on it.

use std::net::IpAddr;

use dataplane::port::af_xdp::Umem;
use dataplane::wire::vxlan::Vxlan;
use linux_net::{Link, Netlink};

use crate::preflight::Wanted;
use crate::preflight::finding::{Finding, Level};

/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

pub(crate) fn look(wanted: &Wanted) -> Vec<Finding> {
    match (find(wanted), &wanted.uplink) {
        (Ok(Some(link)), Some(_)) => {
            let program = Umem::foreign_program(&link.name).ok().flatten();
            vec![rate_program(&link, program), rate_mtu(&link, wanted)]
        }
        (Ok(Some(link)), None) => {
            let detail = format!("none configured; {} would be found by auto", link.name);
            vec![Finding::new("uplink", Level::Note, detail)]
        }
        (Ok(None), None) => vec![Finding::new("uplink", Level::Note, "none configured")],
        (Ok(None), Some(name)) => {
            let detail = match name.as_str() {
                "auto" => "no interface has an address of the Node, nor is there a default route",
                _ => "there is no such interface",
            };
            let detail = format!("{name}: {detail}");
            vec![Finding::new("uplink", Level::Fatal, detail).hint("name it with uplink")]
        }
        (Err(error), _) => vec![Finding::new("uplink", Level::Warning, error.to_string())],
    }
}

/// The largest MTU of pods whose packets pass the uplink whole.
pub(crate) fn pod_mtu(wanted: &Wanted) -> Option<u32> {
    wanted.uplink.as_ref()?;
    let link = find(wanted).ok()??;
    Some(largest(&link, wanted))
}

fn largest(link: &Link, wanted: &Wanted) -> u32 {
    link.mtu.saturating_sub(headers(wanted).iter().sum())
}

/// Bytes that a tunnel and encryption take, by the family of the node's first address.
fn headers(wanted: &Wanted) -> [u32; 2] {
    let is_v6 = wanted.node_addresses.first().is_some_and(IpAddr::is_ipv6);
    let tunnel = if wanted.tunnels { Vxlan::overhead(!is_v6) as u32 } else { 0 };
    let encryption = if wanted.encryption { encryption::overhead(is_v6).into() } else { 0 };
    [tunnel, encryption]
}

fn find(wanted: &Wanted) -> Result<Option<Link>, linux_net::Error> {
    let mut netlink = Netlink::open()?;
    match wanted.uplink.as_deref() {
        Some(name) if name != "auto" => netlink.find_link(name),
        _ => netlink.uplink(&wanted.node_addresses),
    }
}

fn rate_program(link: &Link, foreign: Option<String>) -> Finding {
    let name = &link.name;
    match foreign {
        None => Finding::new("uplink", Level::Good, format!("{name}, no XDP program of others")),
        Some(program) => {
            let detail = format!("{name} has the XDP program {program} of another program");
            Finding::new("uplink", Level::Fatal, detail)
                .hint(format!("find out whose it is; ip link set dev {name} xdp off removes it"))
        }
    }
}

fn rate_mtu(link: &Link, wanted: &Wanted) -> Finding {
    let (mtu, largest) = (link.mtu, largest(link, wanted));
    let takes = headers(wanted).into_iter().zip(["the tunnel", "encryption"]);
    let takes = takes.filter(|(bytes, _)| *bytes > 0);
    let less: String = takes.map(|(bytes, what)| format!(" less {bytes} for {what}")).collect();
    let detail = format!("{mtu}{less}: pods have up to {largest}");
    match largest < LEAST_MTU {
        true => Finding::new("mtu", Level::Warning, detail).hint("IPv6 needs 1280"),
        false => Finding::new("mtu", Level::Good, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::memory::tests::wanted;

    fn link(mtu: u32) -> Link {
        Link {
            is_loopback: false,
            tunnel_port: None,
            index: 2,
            name: "eth0".into(),
            mac: None,
            mtu,
            up: true,
            running: true,
            arp: true,
            kind: String::new(),
            alias: String::new(),
            peer: None,
            xdp_program: None,
            controller: None,
            filters_bridged: false,
        }
    }

    #[test]
    fn a_tunnel_takes_its_part_of_the_mtu() {
        assert_eq!(largest(&link(1500), &wanted()), 1450);
        let routed = Wanted { tunnels: false, ..wanted() };
        assert_eq!(largest(&link(1500), &routed), 1500);
        let encrypted = Wanted { encryption: true, ..wanted() };
        assert_eq!(largest(&link(1500), &encrypted), 1390);
        let over_v6 = Wanted { node_addresses: vec!["2001:db8::1".parse().unwrap()], ..encrypted };
        assert_eq!(largest(&link(1500), &over_v6), 1350);
        assert_eq!(rate_mtu(&link(1300), &wanted()).level, Level::Warning);
        assert_eq!(rate_mtu(&link(9000), &wanted()).level, Level::Good);
    }

    #[test]
    fn a_program_of_somebody_else_keeps_the_switch_off() {
        assert_eq!(rate_program(&link(1500), None).level, Level::Good);
        let taken = rate_program(&link(1500), Some("firewall".into()));
        assert_eq!(taken.level, Level::Fatal);
        assert!(taken.detail.contains("firewall"), "{}", taken.detail);
    }

    #[test]
    fn an_uplink_that_is_not_there_is_named() {
        let findings = look(&Wanted { uplink: Some("pgnone0".into()), ..wanted() });
        assert_eq!((findings.len(), findings[0].level), (1, Level::Fatal));
        assert!(findings[0].detail.contains("pgnone0"), "{findings:?}");
    }
}
