//! Drops tunnel packets and forged sources that the kernel would route.
//!
//! The switch sees neither packets that the kernel sends through the uplink, nor the receiving
//! interface of packets that the kernel routes to the host port. One nftables table, written in one
//! transaction, drops:
//!
//! - packets for the overlay's port that leave outside of tunnels: routed ones, which the kernel may
//!   masquerade as the node, and those of processes (a tunnel device of the kernel's own is
//!   no process);
//! - packets for the overlay's port that reach the kernel: the switch takes its own from the uplink, and a tunnel
//!   device of another program on that port, such as one that an earlier network left, would trust them;
//! - packets routed to the host port whose source is the node's own or a pod's.
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

/// The kernel's table.
pub type Filter = nft::Written<Rules>;

impl nft::WholeTable for Rules {
    const TABLE: &'static str = "podgate-filter";
    const ABOUT: &'static str = "filter";

    fn script(&self) -> String {
        const ROUTED_IN: &str = "iifname != \"podgate-host\" oifname \"podgate-host\"";
        let [mut forward, mut output, mut input] = [const { String::new() }; 3];
        if let Some(port) = self.tunnel_port {
            let stray = format!("    oifname != \"podgate-host\" udp dport {port}");
            forward += &format!("{stray} drop\n");
            output += &format!("{stray} meta skuid 0-4294967295 drop\n");
            input += &format!("    udp dport {port} drop\n");
        }
        forward += &format!("    {ROUTED_IN} fib saddr type local drop\n");
        for (family, v6) in [("ip", false), ("ip6", true)] {
            if let Some(networks) = nft::networks(&self.pods, v6) {
                forward += &format!("    {ROUTED_IN} {family} saddr {{ {networks} }} drop\n");
            }
        }
        let chain = |hook: &str, rules: String| {
            format!(
                "  chain {hook} {{\n    type filter hook {hook} priority filter; policy accept;\n\
                 {rules}  }}\n"
            )
        };
        let chains = [("forward", forward), ("output", output), ("input", input)];
        let chains: String = chains.into_iter().map(|(hook, rules)| chain(hook, rules)).collect();
        nft::replaced(Self::TABLE, &chains)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nft::WholeTable;

    #[test]
    fn tunnel_packets_and_forged_sources_are_dropped() {
        let net = |text: &str| text.parse().unwrap();
        let pods = vec![net("10.1.0.0/24"), net("10.1.1.0/24"), net("fd01::/64")];
        let all = Rules { tunnel_port: Some(4789), pods }.script();
        for line in [
            "    oifname != \"podgate-host\" udp dport 4789 drop",
            "    oifname != \"podgate-host\" udp dport 4789 meta skuid 0-4294967295 drop",
            "    udp dport 4789 drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" fib saddr type local drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" ip saddr { 10.1.0.0/23 } drop",
            "    iifname != \"podgate-host\" oifname \"podgate-host\" ip6 saddr { fd01::/64 } drop",
        ] {
            assert!(all.lines().any(|it| it == line), "{line}\n{all}");
        }
        let none = Rules::default().script();
        assert!(!none.contains("udp dport") && !none.contains("ip saddr"));
    }
}
