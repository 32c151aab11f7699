//! Masquerades pods' packets to the world as the node's, in the kernel.
//!
//! One nftables table, written as a whole by `nft`; tables of other programs stay as they are. The
//! table outlives the process, so connections continue while the switch restarts.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::error::Error;
use super::nft;
use super::redirect::{OTHER_PORT, OTHER_PORT_IF};
use super::sysctl::{self, Family};

/// The masquerading's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// This node's pods.
    pub pods: Vec<IpNet>,
    /// Networks of the cluster, towards which pods keep their own addresses.
    pub cluster: Vec<IpNet>,
    /// Protocol and port of services at the node's addresses, of IPv4 and IPv6: no connection
    /// leaves under such a port, as its answers would be taken for requests.
    pub taken: [BTreeSet<(u8, u16)>; 2],
}

/// The kernel's table.
pub type Masquerader = nft::Written<Rules>;

impl nft::WholeTable for Rules {
    const TABLE: &'static str = "podgate";
    const ABOUT: &'static str = "masquerade";

    fn script(&self) -> String {
        let mut lines = String::new();
        for (family, v6) in [("ip", false), ("ip6", true)] {
            let Some(pods) = nft::networks(&self.pods, v6) else { continue };
            let others = match nft::networks(&self.cluster, v6) {
                None => String::new(),
                Some(cluster) => format!(" {family} daddr != {{ {cluster} }}"),
            };
            let from = format!("    {family} saddr {{ {pods} }}{others}");
            let taken = self.taken[usize::from(v6)].iter();
            let taken: Vec<_> =
                taken.map(|(protocol, port)| format!("{protocol} . {port}")).collect();
            if !taken.is_empty() {
                let taken = taken.join(", ");
                lines += &format!("{from} {OTHER_PORT_IF} {{ {taken} }} {OTHER_PORT}\n");
            }
            lines += &format!("{from} masquerade\n");
        }
        let chain = format!(
            "  chain postrouting {{\n    type nat hook postrouting priority srcnat; policy \
             accept;\n    oifname \"podgate-host\" accept\n{lines}  }}\n"
        );
        nft::replaced(Self::TABLE, &chain)
    }

    /// Switches forwarding on in the kernel, and has segments that come late or early translated.
    fn prepare(&self) -> Result<(), Error> {
        for family in [Family::V4, Family::V6] {
            if self.pods.iter().any(|net| Family::of(net.addr()) == family) {
                sysctl::switch_forwarding_on(family)?;
            }
        }
        sysctl::track_segments_outside_of_windows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nft::WholeTable;

    #[test]
    fn pods_are_masqueraded_towards_everything_outside_the_cluster() {
        let net = |text: &str| text.parse().unwrap();
        let rules = Rules {
            pods: vec![net("10.1.0.0/24"), net("fd01::/64")],
            cluster: vec![net("10.1.0.0/24"), net("10.1.1.0/24"), net("fd01::/64")],
            taken: [[(17, 5060), (6, 30080)].into(), BTreeSet::new()],
        };
        let script = rules.script();
        let v4 = "ip saddr { 10.1.0.0/24 } ip daddr != { 10.1.0.0/23 } masquerade";
        assert!(script.contains(v4), "{script}");
        assert!(script.contains("ip6 saddr { fd01::/64 } ip6 daddr != { fd01::/64 } masquerade"));
        let other = "meta l4proto . th sport { 6 . 30080, 17 . 5060 } masquerade to :32768-60999";
        assert_eq!(script.matches(other).count(), 1, "{script}");
        assert!(script.find(other) < script.find(v4));
        let none = Rules { pods: Vec::new(), cluster: Vec::new(), taken: Default::default() };
        assert!(!none.script().contains("masquerade\n"));
    }
}
