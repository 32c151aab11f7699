//! Programs at pods' cgroups: they are loaded, and attached nowhere.

use socket_policy::{Options, SocketPolicy};

use crate::preflight::finding::{Finding, Level};
use crate::preflight::has;

/// Checks whether the switch can have them; `None` if they are not wanted. Their start needs
/// PERFMON, which SYS_ADMIN includes.
pub(crate) fn look(wanted: bool, held: &[String]) -> Option<Finding> {
    let finding = |level, detail: &str| Finding::new("socket-policies", level, detail);
    if !wanted {
        return None;
    }
    if !has(held, "BPF") {
        return Some(finding(Level::Note, "not tried: it needs BPF"));
    }
    Some(match SocketPolicy::load(Options::default()) {
        Ok(_) => finding(Level::Good, "the kernel takes the programs"),
        Err(error) => finding(Level::Warning, &format!("not possible: {error}"))
            .hint("policies hold for packets alone; leave socket-policies off"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_tried_where_they_are_wanted() {
        testkit::requires_root!();
        let held = ["BPF".to_owned()];
        assert_eq!(look(false, &held), None);
        assert_eq!(look(true, &[]).map(|it| it.level), Some(Level::Note));
        let finding = look(true, &held).unwrap();
        assert_eq!(finding.level, Level::Good, "{finding:?}");
    }
}
