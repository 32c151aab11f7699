//! Masquerades pods' packets to the world as the cluster node's, in the kernel.
//!
//! One nftables table, written as a whole by `nft`; tables of other programs stay as they are. The
//! table outlives the process, so connections continue while the switch restarts.

use ipnet::IpNet;

use super::nft;
use super::sysctl::{self, Family};

/// The masquerading's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// This cluster node's pods.
    pub pods: Vec<IpNet>,
    /// Networks of the cluster, towards which pods keep their own addresses.
    pub cluster: Vec<IpNet>,
}

/// Name of the table.
const TABLE: &str = "podgate";

/// The kernel's table, as written last.
#[derive(Debug)]
pub struct Masquerader {
    table: nft::Table,
    rules: Option<Rules>,
}

impl Default for Masquerader {
    fn default() -> Self {
        Self { table: nft::Table::new(TABLE), rules: None }
    }
}

impl Masquerader {
    /// Brings the kernel into this state, forwarding included. A call with the same rules writes
    /// only if another program changed the table.
    ///
    /// # Errors
    /// In words, with the output of `nft`.
    pub fn set(&mut self, rules: &Rules) -> Result<(), String> {
        for family in [Family::V4, Family::V6] {
            if rules.pods.iter().any(|net| Family::of(net.addr()) == family) {
                sysctl::switch_forwarding_on(family).map_err(|error| error.to_string())?;
            }
        }
        if self.rules.as_ref() == Some(rules) && self.table.is_intact()? {
            return Ok(());
        }
        if self.rules.take().as_ref() == Some(rules) {
            tracing::warn!(
                "masquerade: table {TABLE} was changed by another program; it is restored"
            );
        }
        self.table.change(&script(rules))?;
        self.rules = Some(rules.clone());
        Ok(())
    }
}

/// The table as `nft` reads it: replaced in one transaction.
fn script(rules: &Rules) -> String {
    let mut lines = String::new();
    for (family, v6) in [("ip", false), ("ip6", true)] {
        let of_family = |nets: &[IpNet]| {
            let is_it = |net: &&IpNet| matches!(net, IpNet::V6(_)) == v6;
            let mut nets: Vec<IpNet> = nets.iter().filter(is_it).map(IpNet::trunc).collect();
            nets = IpNet::aggregate(&nets);
            nets.iter().map(IpNet::to_string).collect::<Vec<_>>()
        };
        let (pods, cluster) = (of_family(&rules.pods), of_family(&rules.cluster));
        if pods.is_empty() {
            continue;
        }
        let others = match cluster.is_empty() {
            true => String::new(),
            false => format!(" {family} daddr != {{ {} }}", cluster.join(", ")),
        };
        let pods = pods.join(", ");
        lines += &format!("    {family} saddr {{ {pods} }}{others} masquerade\n");
    }
    format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n  \
         chain postrouting {{\n    type nat hook postrouting priority srcnat; policy accept;\n    \
         oifname \"podgate-host\" accept\n{lines}  }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_masqueraded_towards_everything_outside_the_cluster() {
        let net = |text: &str| text.parse().unwrap();
        let rules = Rules {
            pods: vec![net("10.1.0.0/24"), net("fd01::/64")],
            cluster: vec![net("10.1.0.0/24"), net("10.1.1.0/24"), net("fd01::/64")],
        };
        let script = script(&rules);
        let v4 = "ip saddr { 10.1.0.0/24 } ip daddr != { 10.1.0.0/23 } masquerade";
        assert!(script.contains(v4), "{script}");
        assert!(script.contains("ip6 saddr { fd01::/64 } ip6 daddr != { fd01::/64 } masquerade"));
        let none = Rules { pods: Vec::new(), cluster: Vec::new() };
        assert!(!super::script(&none).contains("masquerade\n"));
    }
}
