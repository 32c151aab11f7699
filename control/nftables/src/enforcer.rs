//! Keeps the kernel's tables in the desired state.

use std::collections::BTreeSet;
use std::net::IpAddr;

use control::View;
use linux_net::nft::LargeTable;
use linux_net::{Error, delete_connections};

use crate::ruleset::{Ruleset, TABLES};

/// Writes rulesets into the kernel.
#[derive(Debug)]
pub struct Enforcer {
    names: [&'static str; 2],
    table: LargeTable,
    /// The rules in the kernel, with the name of their tables; `None` if they are not known.
    current: Option<(Ruleset, &'static str)>,
    whole: u64,
}

impl Default for Enforcer {
    /// Writes the tables of pods' policies.
    fn default() -> Self {
        Self::new(TABLES)
    }
}

impl Enforcer {
    /// Writes tables of these names.
    pub fn new(names: [&'static str; 2]) -> Self {
        Self { names, table: LargeTable::default(), current: None, whole: 0 }
    }

    /// Brings the kernel into this state: by transactions with the differences, or by new tables the first time and if
    /// the kernel refuses the differences. New tables enforce beside the old ones before those are removed. A failure
    /// leaves the earlier state in force.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn set(&mut self, next: Ruleset) -> Result<(), Error> {
        if let Some((current, table)) = &self.current {
            let transactions = current.difference(&next, table);
            let done = transactions.0.iter().try_for_each(|script| self.table.change(script));
            match done {
                Ok(()) => {
                    self.current = Some((next, table));
                    return Ok(());
                }
                Err(error) => tracing::warn!("table {table} is written anew: {error}"),
            }
        }
        self.write(next)
    }

    /// Sets the state after pods have left addresses, and deletes the conntrack entries of these: before the next pod
    /// gets the address, or once the address is closed if no pod of `view` has it.
    ///
    /// # Errors
    /// The kernel's. If entries stay, the ruleset is in force nevertheless.
    pub fn replace(
        &mut self,
        next: Ruleset,
        view: &View,
        departed: &BTreeSet<IpAddr>,
    ) -> Result<(), Error> {
        if departed.is_empty() {
            return self.set(next);
        }
        let addresses = view.pods.values().flat_map(|pod| pod.addresses.iter().copied());
        let taken: BTreeSet<IpAddr> = addresses.filter(|it| departed.contains(it)).collect();
        let vacant = departed.difference(&taken).copied().collect();
        let before = delete_connections(&taken);
        self.set(next)?;
        let after = delete_connections(&vacant);
        before.and(after).map(drop)
    }

    fn write(&mut self, next: Ruleset) -> Result<(), Error> {
        self.current = None;
        self.whole += 1;
        // These rules may be the first ones that make the kernel track connections.
        if let Err(error) = linux_net::track_open_connections() {
            tracing::warn!(
                "{error}: the end that sends next counts as the initiator of an open connection"
            );
        }
        let is_there = |table: &&str| LargeTable::outline("inet", table).is_ok();
        let [first, second] = self.names;
        let (fresh, old) = if is_there(&first) { (second, first) } else { (first, second) };
        self.table.change(&next.whole(fresh))?;
        self.table.change(&Ruleset::removal(&[old]))?;
        self.current = Some((next, fresh));
        Ok(())
    }

    /// Writes the tables anew if another program has removed chains, rules or sets from them. The elements of sets are
    /// not compared.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn verify(&mut self) -> Result<(), Error> {
        let Some((current, table)) = &self.current else { return Ok(()) };
        if self.table.is_untouched()? {
            return Ok(());
        }
        let is_whole = ["inet", "bridge"].iter().all(|family| {
            let wanted = current.counts(family);
            let outline = || LargeTable::outline(family, table);
            wanted == [0; 3] || outline().is_ok_and(|outline| counts(&outline) == wanted)
        });
        if is_whole {
            return self.table.accept();
        }
        tracing::warn!("table {table} was changed by another program; it is restored");
        let (next, _) = self.current.take().unwrap_or_default();
        self.write(next)
    }

    /// Removes the tables, which ends the enforcement.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn remove(&mut self) -> Result<(), Error> {
        self.current = None;
        self.table.change(&Ruleset::removal(&self.names))
    }

    /// Returns whether tables exist, of this process or an earlier one.
    pub fn is_in_force(&self) -> bool {
        self.names.iter().any(|table| LargeTable::outline("inet", table).is_ok())
    }

    /// Returns how many times whole tables were written, the first included.
    pub fn written_whole(&self) -> u64 {
        self.whole
    }
}

/// Sets, chains and rules in what `nft` lists.
fn counts(outline: &str) -> [usize; 3] {
    let [mut sets, mut chains, mut rules] = [0; 3];
    let mut in_chain = false;
    for line in outline.lines() {
        let Some(line) = line.strip_prefix('\t') else { continue };
        match line.strip_prefix('\t') {
            None => {
                in_chain = line.starts_with("chain ");
                chains += usize::from(in_chain);
                sets += usize::from(line.starts_with("set ") || line.starts_with("map "));
            }
            Some(line) => rules += usize::from(in_chain && !line.starts_with("type ")),
        }
    }
    [sets, chains, rules]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_chains_and_rules_are_counted() {
        let outline = "table inet podgate-policy {\n\tset a {\n\t\ttype ipv4_addr\n\t\tflags \
            interval\n\t}\n\n\tmap b {\n\t\ttype ipv4_addr : verdict\n\t}\n\n\tchain c {\n\t\ttype \
            filter hook forward priority 0; policy accept;\n\t\tdrop\n\t}\n\n\tchain d {\n\t\t\
            return\n\t\tdrop\n\t}\n}\n";
        assert_eq!(counts(outline), [2, 2, 3]);
    }
}
