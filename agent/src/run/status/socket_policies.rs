//! Socket policies in the status.

use cli_runtime::counted;
use serde::{Deserialize, Serialize};

/// State of the programs at pods' cgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketPoliciesStatus {
    /// `on`, `off`, or `unavailable`: requested, but the node lacks what it needs.
    pub state: String,
    /// Why they cannot be had, or the error of the last attempt to enter rules.
    pub reason: Option<String>,
    /// Pods whose cgroups have the programs.
    pub attached: usize,
    /// Pods without them, with the reason.
    pub missing: Vec<String>,
    /// Pods, addresses and namespaces that are closed since their rules or services find no room.
    pub no_room: Vec<String>,
    /// Calls that the programs were asked about.
    pub asked: u64,
    /// Calls that a rule denied.
    pub denied: u64,
    /// Calls denied because the rules of the pod were not known.
    pub closed: u64,
    /// Denied calls without a verdict in the stream, which had no room for them.
    pub lost: u64,
    /// Packets that a rule denied to sockets of pods on the host network.
    pub arrivals_denied: u64,
    /// Raw sockets that were refused, and packets that pods on the host network sent past the rules: of open raw sockets, or with a
    /// route.
    pub raw_denied: u64,
    /// Connections of pods on the host network that were open and that rules came to deny.
    pub ended: u64,
    /// Why the last of these could not be ended.
    pub not_ended: Option<String>,
    /// Calls denied that the switch would have allowed.
    pub stricter: u64,
    /// Connections denied by the switch that the programs had let through, or not been asked about.
    pub looser: u64,
    /// The last of both, in words.
    pub last_difference: Option<String>,
}

impl SocketPoliciesStatus {
    /// Off, or not to be had for a reason.
    pub(in crate::run) fn without(reason: Option<String>) -> Self {
        let state = if reason.is_some() { "unavailable" } else { "off" };
        Self { state: state.to_owned(), reason, ..Self::default() }
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        if self.state != "on" {
            return match &self.reason {
                Some(reason) => format!("{}: {reason}", self.state),
                None => self.state.clone(),
            };
        }
        let Self { attached, missing, denied, arrivals_denied, ended, stricter, looser, .. } = self;
        let without = match &missing[..] {
            [] => String::new(),
            [first, ..] => format!(", {} without ({first})", counted(missing.len(), "pod")),
        };
        let differences = match stricter + looser {
            0 => String::new(),
            count => format!("; {} other than the switch's", counted(count, "decision")),
        };
        let of_host = match arrivals_denied + ended {
            0 => String::new(),
            _ => format!(
                ", {} denied, {} ended",
                counted(*arrivals_denied, "arrival"),
                counted(*ended, "connection")
            ),
        };
        let (pods, calls) = (counted(*attached, "pod"), counted(*denied, "call"));
        format!("on at {pods}{without}, {calls} denied{of_host}{differences}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_people() {
        assert_eq!(SocketPoliciesStatus::without(None).line(), "off");
        let v1 = SocketPoliciesStatus::without(Some("/sys/fs/cgroup is cgroup v1".into()));
        assert_eq!(v1.line(), "unavailable: /sys/fs/cgroup is cgroup v1");
        let on = SocketPoliciesStatus {
            state: "on".into(),
            attached: 3,
            missing: vec!["a/b: no cgroup".into()],
            denied: 4,
            stricter: 1,
            looser: 1,
            ..SocketPoliciesStatus::default()
        };
        assert_eq!(
            on.line(),
            "on at 3 pods, 1 pod without (a/b: no cgroup), 4 calls denied; 2 decisions other than \
             the switch's"
        );
        let host = SocketPoliciesStatus { arrivals_denied: 2, ended: 1, ..on };
        let line = host.line();
        assert!(line.contains("4 calls denied, 2 arrivals denied, 1 connection ended;"), "{line}");
    }
}
