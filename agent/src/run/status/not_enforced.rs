//! What of the desired protection is not in force: switched off, weakened or refused.
//!
//! Status, `/metrics`, health and the page show the findings of [`NotEnforced::all`], and the alert
//! `PodgateNotEnforced` fires by the metric. A new kind is a variant of [`Reason`]: the compiler then asks for its
//! name and for the place where it is found.

use std::fmt;
use std::time::Duration;

use cli_runtime::{Networks, Span, counted};
use control::model::Stage;
use serde::{Deserialize, Serialize};

use crate::run::control_loop::{HOST_FIREWALL, NFTABLES};
use crate::run::shared_status::SharedStatus;

/// Why something is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::run) enum Reason {
    /// The kernel does not have the rules that it is to enforce.
    KernelRules,
    /// Policies are staged by default.
    StageAll,
    /// Policies that cannot be read as they stand: their pods are closed.
    PolicyClosed,
    /// Files that cannot be read: their last readable versions are in force.
    FileRefused,
    /// Nodes that encrypted packets cannot be sent to.
    Encryption,
    /// Programs at cgroups that are missing, and pods and services that are closed because their rules do not fit.
    SocketPolicies,
    /// The kernel forwards for longer than usual without the switch.
    FlowOffloadGrace,
    /// Services take addresses by their own word.
    ExternalIps,
}

impl Reason {
    /// All reasons, the most urgent first.
    pub(in crate::run) const ALL: [Self; 8] = [
        Self::KernelRules,
        Self::StageAll,
        Self::PolicyClosed,
        Self::FileRefused,
        Self::Encryption,
        Self::SocketPolicies,
        Self::FlowOffloadGrace,
        Self::ExternalIps,
    ];

    /// Its name in JSON, and the label `reason` of the metric.
    pub(in crate::run) const fn name(self) -> &'static str {
        match self {
            Self::KernelRules => "kernel-rules",
            Self::StageAll => "stage-all",
            Self::PolicyClosed => "policy-closed",
            Self::FileRefused => "file-refused",
            Self::Encryption => "encryption",
            Self::SocketPolicies => "socket-policies",
            Self::FlowOffloadGrace => "flow-offload-grace",
            Self::ExternalIps => "external-ips",
        }
    }

    /// Whether rules that the objects demand are not in force, against the configuration: `/readyz` fails.
    pub(in crate::run) const fn is_failure(self) -> bool {
        match self {
            Self::KernelRules => true,
            Self::StageAll
            | Self::PolicyClosed
            | Self::FileRefused
            | Self::Encryption
            | Self::SocketPolicies
            | Self::FlowOffloadGrace
            | Self::ExternalIps => false,
        }
    }

    /// What is concerned now, if anything is.
    fn found(self, shared: &SharedStatus) -> Option<Found> {
        let (state, config) = (shared.state(), &shared.config);
        match self {
            Self::KernelRules => {
                let of_rules = state.programming.iter().filter(|it| ENFORCING.contains(&it.name));
                let failed: Vec<String> = of_rules
                    .filter_map(|it| Some(format!("kernel's {}: {}", it.name, it.error.as_ref()?)))
                    .collect();
                Found::of(failed.len(), failed.join("; "))
            }
            Self::StageAll if config.default_stage == Stage::Staged => {
                let staged = shared.policies.staged().len();
                let what =
                    "stage-all is on: no policy without podgate.io/stage=enforced is enforced";
                Found::of(staged.max(1), format!("{what}, {staged} staged"))
            }
            Self::PolicyClosed => {
                let first = state.closed_policies.first()?;
                let count = state.closed_policies.len();
                let what = "not enforced as written, but closed where they have faults";
                Found::of(count, format!("policies {what}: {count}, the first: {first}"))
            }
            Self::FileRefused => {
                let first = state.refused_files.first()?;
                let count = state.refused_files.len();
                let what = "files refused, their last readable versions are in force";
                Found::of(count, format!("{what}: {count}, the first: {first}"))
            }
            Self::Encryption => {
                let device = shared.encryption.as_ref()?.device_state();
                if let Some(error) = device.error {
                    return Found::of(1, format!("encryption: {error}"));
                }
                let (node, why) = device.without.first_key_value()?;
                let more = more(device.without.len());
                let what = format!("encryption: nothing is sent to Node {node}: {why}{more}");
                Found::of(device.without.len(), what)
            }
            Self::SocketPolicies => {
                let sockets = shared.socket_policies();
                if let Some(why) = sockets.reason {
                    return Found::of(1, format!("socket policies: {why}"));
                }
                if let Some(first) = sockets.no_room.first() {
                    return Found::of(sockets.no_room.len(), format!("socket policies: {first}"));
                }
                let (count, first) = (sockets.missing.len(), sockets.missing.first()?);
                let pods = counted(count, "pod");
                Found::of(count, format!("{pods} without socket policies, the first: {first}"))
            }
            Self::FlowOffloadGrace if config.flow_offload_grace > USUAL_GRACE => {
                let grace = Span(config.flow_offload_grace);
                let what =
                    "open connections are not evaluated again for so long after the switch dies";
                Found::of(1, format!("flow-offload-grace is {grace}: {what}"))
            }
            Self::ExternalIps => {
                let networks = &config.network.external_ips;
                let what = "whoever may write a Service takes traffic to these addresses";
                let text = format!("external-ips is {}: {what}", Networks(networks.clone()));
                Found::of(networks.len(), text)
            }
            Self::StageAll | Self::FlowOffloadGrace => None,
        }
    }
}

/// How many things are concerned, and what is so, in words.
struct Found {
    count: usize,
    what: String,
}

impl Found {
    /// `None` if nothing is concerned.
    fn of(count: usize, what: String) -> Option<Self> {
        (count > 0).then_some(Self { count, what })
    }
}

/// Something that is not enforced, as part of the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotEnforced {
    /// The kind, as in the label of the metric: `stage-all`, `policy-closed`, …
    pub reason: String,
    /// Number of things concerned.
    pub count: usize,
    /// The finding, in words.
    pub what: String,
}

impl NotEnforced {
    /// All that is not enforced now, the most urgent first.
    pub(in crate::run) fn all(shared: &SharedStatus) -> Vec<Self> {
        let all = Reason::ALL.into_iter().filter_map(|reason| {
            let Found { count, what } = reason.found(shared)?;
            Some(Self { reason: reason.name().to_owned(), count, what })
        });
        all.collect()
    }

    /// Whether rules that the objects demand are not in force, against the configuration.
    pub(in crate::run) fn is_failure(&self) -> bool {
        Reason::ALL.into_iter().any(|it| it.is_failure() && it.name() == self.reason)
    }
}

impl fmt::Display for NotEnforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// The parts of the kernel's configuration that are rules.
pub(super) const ENFORCING: [&str; 2] = [NFTABLES, HOST_FIREWALL];

/// The grace of flow offload that is not pointed out: its default.
const USUAL_GRACE: Duration = Duration::from_secs(30);

fn more(count: usize) -> String {
    if count > 1 { format!(", and to {} more", count - 1) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::kernel::Programming;
    use crate::run::shared_status::PublishedState;
    use crate::run::shared_status::tests::{started, started_with};
    use crate::run::status::Status;

    fn reasons(shared: &SharedStatus) -> Vec<String> {
        NotEnforced::all(shared).into_iter().map(|it| it.reason).collect()
    }

    #[test]
    fn a_switch_with_the_defaults_enforces_everything() {
        let folder = testkit::TempDir::new("all-enforced");
        let shared = started(folder.path());
        assert_eq!(reasons(&shared), [""; 0]);
        assert_eq!(Status::of(&shared).problems, [""; 0]);
    }

    #[test]
    fn what_the_configuration_switches_off_is_a_problem_and_no_ill_health() {
        let folder = testkit::TempDir::new("switched-off");
        let shared = started_with(folder.path(), |options| {
            options.stage_all = Some("on".parse().unwrap());
            options.flow_offload_grace = Some("10m".parse().unwrap());
            options.external_ips = Some("192.0.2.0/24".parse().unwrap());
        });
        assert_eq!(reasons(&shared), ["stage-all", "flow-offload-grace", "external-ips"]);
        let status = Status::of(&shared);
        assert!(status.problems[0].starts_with("stage-all is on"), "{:?}", status.problems);
        assert!(status.problems[1].contains("10m") && status.problems[2].contains("192.0.2.0/24"));
        assert!(status.healthy);
        let text = status.to_string();
        assert!(text.starts_with("Attention:\n  stage-all is on"), "{text}");
        assert!(
            text.contains("not enforced: stage-all, flow-offload-grace, external-ips"),
            "{text}"
        );
        shared.set_source_stuck(true);
        let status = Status::of(&shared);
        assert!(
            !status.healthy && status.problems[0].contains("is stuck"),
            "{:?}",
            status.problems
        );
    }

    #[test]
    fn closed_policies_refused_files_and_failed_rules_are_named() {
        let folder = testkit::TempDir::new("refused");
        let shared = started(folder.path());
        let failed =
            |name, error: &str| Programming { name, in_sync: false, error: Some(error.to_owned()) };
        shared.set_state(PublishedState {
            closed_policies: vec!["NetworkPolicy a/b".into(), "NetworkPolicy a/c".into()],
            refused_files: vec!["x.yaml".into()],
            programming: vec![failed("nftables", "no space"), failed("masquerade", "other")],
            ..PublishedState::default()
        });
        let found = NotEnforced::all(&shared);
        let counts: Vec<_> = found.iter().map(|it| (it.reason.as_str(), it.count)).collect();
        assert_eq!(counts, [("kernel-rules", 1), ("policy-closed", 2), ("file-refused", 1)]);
        assert_eq!(found[0].what, "kernel's nftables: no space");
        assert!(found[0].is_failure() && !found[1].is_failure());
        assert!(found[1].what.ends_with("2, the first: NetworkPolicy a/b"), "{}", found[1].what);
    }
}
