//! Drops tunnel packets and forged sources that the kernel would route.
//!
//! The switch sees neither packets that the kernel sends through the uplink, nor the receiving
//! interface of packets that the kernel routes to the host port. One nftables table, written in one
//! transaction, drops:
//!
//! - packets for the overlay's port that leave outside of tunnels: routed ones, which the kernel may
//!   masquerade as the cluster node, and those of processes (a tunnel device of the kernel's own is
//!   no process);
//! - packets routed to the host port whose source is the cluster node's own or a pod's.
//!
//! The table outlives the process, so that a restart leaves no gap.

use ipnet::IpNet;

use super::nft;

/// The filter's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// UDP port of the overlay, if there is one.
    pub tunnel_port: Option<u16>,
    /// Networks of pods whose packets arrive through the switch's own ports only.
    pub pods: Vec<IpNet>,
}

/// Name of the table.
const TABLE: &str = "podgate-filter";

/// The kernel's table, as written last.
#[derive(Debug)]
pub struct Filter {
    table: nft::Table,
    rules: Option<Rules>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { table: nft::Table::new(TABLE), rules: None }
    }
}

impl Filter {
    /// Brings the kernel into this state. A call with the same rules writes only if another program
    /// changed the table.
    ///
    /// # Errors
    /// In words, with the output of `nft`.
    pub fn set(&mut self, rules: &Rules) -> Result<(), String> {
        if self.rules.as_ref() == Some(rules) && self.table.is_intact()? {
            return Ok(());
        }
        if self.rules.take().as_ref() == Some(rules) {
            tracing::warn!("filter: table {TABLE} was changed by another program; it is restored");
        }
        self.table.change(&script(rules))?;
        self.rules = Some(rules.clone());
        Ok(())
    }
}

/// The table as `nft` reads it: replaced in one transaction.
fn script(rules: &Rules) -> String {
    const ROUTED_IN: &str = "iifname != \"podgate-host\" oifname \"podgate-host\"";
    let (mut forward, mut output) = (String::new(), String::new());
    if let Some(port) = rules.tunnel_port {
        let stray = format!("    oifname != \"podgate-host\" udp dport {port}");
        forward += &format!("{stray} drop\n");
        output += &format!("{stray} meta skuid 0-4294967295 drop\n");
    }
    forward += &format!("    {ROUTED_IN} fib saddr type local drop\n");
    for (family, v6) in [("ip", false), ("ip6", true)] {
        let of_family = rules.pods.iter().filter(|net| matches!(net, IpNet::V6(_)) == v6);
        let networks = IpNet::aggregate(&of_family.map(IpNet::trunc).collect());
        if !networks.is_empty() {
            let networks: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            let networks = networks.join(", ");
            forward += &format!("    {ROUTED_IN} {family} saddr {{ {networks} }} drop\n");
        }
    }
    let chain = |hook: &str, rules: &str| {
        format!(
            "  chain {hook} {{\n    type filter hook {hook} priority filter; policy accept;\n\
             {rules}  }}\n"
        )
    };
    format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{}{}}}\n",
        chain("forward", &forward),
        chain("output", &output)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_packets_and_forged_sources_are_dropped() {
        let net = |text: &str| text.parse().unwrap();
        let pods = vec![net("10.1.0.0/24"), net("10.1.1.0/24"), net("fd01::/64")];
        let all = script(&Rules { tunnel_port: Some(4789), pods });
        for line in [
            "    oifname != \"podgate-host\" udp dport 4789 drop",
            "    oifname != \"podgate-host\" udp dport 4789 meta skuid 0-4294967295 drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" fib saddr type local drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" ip saddr { 10.1.0.0/23 } drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" ip6 saddr { fd01::/64 } drop",
        ] {
            assert!(all.lines().any(|it| it == line), "{line}\n{all}");
        }
        let none = script(&Rules::default());
        assert!(!none.contains("udp dport") && !none.contains("ip saddr"));
    }
}
