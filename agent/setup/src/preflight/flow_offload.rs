//! Flow offload: the programs are loaded and attached to a veth pair in a network namespace of its own.

use flow_offload::Kernel;

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial;

/// Entries of the trial's map.
const ENTRIES: u32 = 1024;

/// Checks whether the switch can offload connections: the answer and the finding.
pub(crate) fn look(wanted: bool, capabilities: &[String]) -> (bool, Finding) {
    let finding = |level, detail: &str| Finding::new("flow-offload", level, detail);
    if !wanted {
        return (false, finding(Level::Good, "not asked for"));
    }
    match trial::run(capabilities, attach) {
        None => (true, finding(Level::Note, trial::NOT_ALLOWED)),
        Some(Ok(())) => (true, finding(Level::Good, "the kernel takes its programs")),
        Some(Err(why)) => {
            let detail = format!("not possible: {why}");
            let hint = "each pod gets AF_XDP sockets of its own; Linux 5.14 forwards connections \
                        between pods, 6.3 those in tunnels too";
            (false, finding(Level::Note, &detail).hint(hint))
        }
    }
}

fn attach() -> Result<(), trial::Failure> {
    let far = trial::veth_pair()?;
    Ok(Kernel::load(ENTRIES)?.set_punt(far)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_tried() {
        testkit::requires_root!();
        let (on, finding) = look(true, &["SYS_ADMIN".to_owned()]);
        assert_eq!((on, finding.level), (true, Level::Good), "{finding:?}");
    }

    #[test]
    fn what_is_not_asked_for_is_not_tried() {
        let (on, finding) = look(false, &["SYS_ADMIN".to_owned()]);
        assert_eq!((on, finding.detail.as_str()), (false, "not asked for"));
    }

    #[test]
    fn without_the_right_nothing_is_tried() {
        let (on, finding) = look(true, &["NET_ADMIN".to_owned()]);
        assert_eq!((on, finding.level), (true, Level::Note));
        assert_eq!(finding.detail, trial::NOT_ALLOWED);
    }
}
