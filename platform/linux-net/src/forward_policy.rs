//! Finds chains of other programs that drop what the kernel forwards: Docker and ufw give iptables'
//! chain FORWARD the policy DROP. No rule in another chain lets a packet past them.

use super::error::Error;
use super::nft;
use super::ruleset::Ruleset;

/// The base chains for forwarded packets, as found last.
#[derive(Debug, Default)]
pub struct ForwardPolicy {
    ruleset: Option<Ruleset>,
    /// The ruleset's generation, and the chains found in it.
    known: Option<(u32, Vec<String>)>,
}

impl ForwardPolicy {
    /// The base chains of the hook `forward` that drop what their rules do not accept, as `FAMILY
    /// TABLE CHAIN`, but for those in a table with a rule about `interface`. While the ruleset does
    /// not change, this does not run `nft`.
    ///
    /// # Errors
    /// With the output of `nft`, or if the kernel does not answer.
    pub fn dropping(&mut self, interface: &str) -> Result<&[String], Error> {
        let now = nft::generation(&mut self.ruleset)?;
        if self.known.as_ref().is_none_or(|(generation, _)| *generation != now) {
            let mut chains = Vec::new();
            for (table, chain) in dropping(&nft::listed(&["chains"])?) {
                let words: Vec<&str> = ["table"].into_iter().chain(table.split(' ')).collect();
                if !nft::listed(&words)?.contains(interface) {
                    chains.push(format!("{table} {chain}"));
                }
            }
            self.known = Some((now, chains));
        }
        Ok(self.known.as_ref().map_or(&[], |(_, chains)| chains))
    }
}

/// Table and name of the chains in the output of `nft list chains` that drop by default what is
/// forwarded.
fn dropping(listed: &str) -> Vec<(&str, &str)> {
    let (mut table, mut chain, mut found) = ("", "", Vec::new());
    for line in listed.lines().map(str::trim) {
        let name = |kind: &str| line.strip_prefix(kind).and_then(|rest| rest.strip_suffix(" {"));
        table = name("table ").unwrap_or(table);
        chain = name("chain ").unwrap_or(chain);
        let is_ip = ["ip ", "ip6 ", "inet "].iter().any(|family| table.starts_with(family));
        if is_ip && line.contains(" hook forward ") && line.contains("policy drop;") {
            found.push((table, chain));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_found_by_hook_and_policy() {
        let listed = "\
table ip filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t}
\tchain FORWARD {
\t\ttype filter hook forward priority filter; policy drop;
\t}
\tchain DOCKER {
\t}
}
table inet podgate-filter {
\tchain forward {
\t\ttype filter hook forward priority filter; policy accept;
\t}
}
table bridge filter {
\tchain forward {
\t\ttype filter hook forward priority filter; policy drop;
\t}
}
";
        assert_eq!(dropping(listed), [("ip filter", "FORWARD")]);
        assert!(dropping("").is_empty());
    }
}
