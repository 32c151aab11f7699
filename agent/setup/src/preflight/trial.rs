//! A network namespace without a name, in which things are tried with the privileges that the
//! switch has. It ends with the trial.

use confine::capabilities::CapabilitySet;
use linux_net::{MacAddress, Namespace, Netlink, VethEnd, VethPair};

use crate::preflight::has;

/// The two ends of [`veth_pair`].
pub(crate) const NEAR: &str = "pgcheck0";
pub(crate) const FAR: &str = "pgcheck1";

pub(crate) const NOT_ALLOWED: &str = "not tried: a network namespace needs SYS_ADMIN";

/// The failure of a trial. A finding prints its text.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Privileges of a trial.
#[derive(Clone, Copy)]
pub(crate) struct Privileges<'a> {
    /// Names of the capabilities that this process has.
    pub(crate) held: &'a [String],
    /// Those that the switch keeps.
    pub(crate) kept: CapabilitySet,
}

impl Privileges<'_> {
    /// In a network namespace of its own: calls `load` with the privileges of this process, as the
    /// switch's start does, and `attempt` with those of the running switch. `None` without the
    /// capability that a namespace needs.
    pub(crate) fn run<P, T: Send>(
        self,
        load: impl FnOnce() -> Result<P, Failure> + Send,
        attempt: impl FnOnce(P) -> Result<T, Failure> + Send,
    ) -> Option<Result<T, Failure>> {
        let kept = self.kept;
        let work = move || {
            let loaded = load()?;
            confine::restrict(kept, [])?;
            attempt(loaded)
        };
        has(self.held, "SYS_ADMIN").then(|| Namespace::create()?.run(work)?)
    }
}

/// Creates a veth pair that is up; returns the index of its far end.
pub(crate) fn veth_pair() -> Result<u32, linux_net::Error> {
    let mut netlink = Netlink::open()?;
    let end = |name: &str, last| VethEnd {
        name: name.to_owned(),
        mac: MacAddress([0x02, 0, 0, 0, 0, last]),
    };
    let (near, far) = (end(NEAR, 1), end(FAR, 2));
    let pair = VethPair { near, far, far_namespace: None, mtu: 1500 };
    netlink.create_veth(&pair)?;
    for name in ["lo", NEAR, FAR] {
        let link = netlink.link(name)?;
        netlink.set_up(link.index)?;
    }
    Ok(netlink.link(FAR)?.index)
}

#[cfg(test)]
mod tests {
    use confine::Confinement;
    use confine::capabilities::SWITCH;

    use super::*;

    /// Programs are loaded with all of them, and tried with those of the switch.
    #[test]
    fn things_are_tried_with_the_privileges_of_the_switch() {
        testkit::requires_root!();
        let held = Confinement::now().capabilities;
        // Of this thread: `/proc/self` is the process.
        let is_confined = || {
            let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (text.contains("\nSeccomp:\t2"), text.contains("\nCapEff:\t0000008000007000"))
        };
        let privileges = Privileges { held: &held, kept: SWITCH };
        let tried = privileges.run(|| Ok(is_confined()), |before| Ok((before, is_confined())));
        assert_eq!(tried.unwrap().unwrap(), ((false, false), (true, true)));
        assert_eq!(is_confined(), (false, false), "it ends with the trial");
    }
}
