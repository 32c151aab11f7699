//! Flow offload: the programs are loaded and attached to a veth pair in a network namespace of its own.

use flow_offload::Kernel;

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial::{self, Privileges};

/// Entries of the trial's map.
const ENTRIES: u32 = 1024;

/// Checks whether the switch can offload connections: the answer and the finding.
pub(crate) fn look(wanted: bool, privileges: Privileges<'_>) -> (bool, Finding) {
    let finding = |level, detail: &str| Finding::new("flow-offload", level, detail);
    if !wanted {
        return (false, finding(Level::Good, "not asked for"));
    }
    match privileges.run(load, attach) {
        None => (true, finding(Level::Note, trial::NOT_ALLOWED)),
        Some(Ok(())) => {
            (true, finding(Level::Good, "the kernel takes its programs, and runs them as it must"))
        }
        Some(Err(why)) => {
            let detail = format!("not possible: {why}");
            let hint = "each pod gets AF_XDP sockets of its own; Linux 6.3 forwards connections in \
                        tunnels too";
            (false, finding(Level::Note, &detail).hint(hint))
        }
    }
}

/// As a start does: loads the programs, and tests them on frames of their own.
fn load() -> Result<Kernel, trial::Failure> {
    let kernel = Kernel::load(ENTRIES)?;
    kernel.self_test()?;
    Ok(kernel)
}

fn attach(kernel: Kernel) -> Result<(), trial::Failure> {
    Ok(kernel.set_punt(trial::veth_pair()?)?)
}

#[cfg(test)]
mod tests {
    use confine::capabilities::SWITCH;

    use super::*;

    fn look_with(wanted: bool, capability: &str) -> (bool, Finding) {
        look(wanted, Privileges { held: &[capability.to_owned()], kept: SWITCH })
    }

    #[test]
    fn the_programs_are_tried() {
        testkit::requires_root!();
        let (on, finding) = look_with(true, "SYS_ADMIN");
        assert_eq!((on, finding.level), (true, Level::Good), "{finding:?}");
    }

    #[test]
    fn what_is_not_asked_for_is_not_tried() {
        let (on, finding) = look_with(false, "SYS_ADMIN");
        assert_eq!((on, finding.detail.as_str()), (false, "not asked for"));
    }

    #[test]
    fn without_the_right_nothing_is_tried() {
        let (on, finding) = look_with(true, "NET_ADMIN");
        assert_eq!((on, finding.level), (true, Level::Note));
        assert_eq!(finding.detail, trial::NOT_ALLOWED);
    }
}
